"""Documents as one long row of tokens on the disk, read in blocks, in an order that a seed decides.

A block begins with the last token of the one before, so that every token is predicted once. The
order is a function of seed and step alone: nothing of it must be kept to go on where one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

DOCUMENTS_AT_ONCE = 1000


def write_tokens(
    documents: Sequence[str],
    tokenizer: Any,
    path: Path,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Write the ids of all documents, each behind an end of text, in the order of a shuffle.

    Args:
        documents: texts.
        tokenizer: with an end-of-text token.
        path: of the file.
        on_progress: called with how many documents are done, of how many.
    """
    kind = token_type(len(tokenizer))
    order = np.random.default_rng(0).permutation(len(documents))
    with open(path, "wb") as file:
        for start in range(0, len(order), DOCUMENTS_AT_ONCE):
            some = [documents[i] for i in order[start : start + DOCUMENTS_AT_ONCE]]
            encoded = tokenizer(some, add_special_tokens=False)["input_ids"]
            for ids in encoded:
                file.write(np.array([tokenizer.eos_token_id, *ids], dtype=kind).tobytes())
            on_progress(start + len(some), len(order))


def token_type(vocabulary: int) -> Any:
    """Return the narrowest type of an id."""
    return np.uint16 if vocabulary <= 1 << 16 else np.uint32


def read_tokens(path: Path, vocabulary: int) -> np.ndarray:
    """Return the ids of a file of `write_tokens`, read from the disk where they are looked at."""
    return np.memmap(path, dtype=token_type(vocabulary), mode="r")


def tokens_in(path: Path, vocabulary: int) -> int:
    """Return how many ids a file of `write_tokens` holds."""
    return path.stat().st_size // np.dtype(token_type(vocabulary)).itemsize


def blocks_of(tokens: int, context: int) -> int:
    """Return how many blocks so many tokens fill.

    >>> blocks_of(64, 32)
    2
    """
    return max(0, tokens - 1) // (context - 1)


class Blocks:
    """Blocks of a row of tokens.

    Args:
        path: file of `write_tokens`.
        vocabulary: size of the tokenizer.
        context: tokens of a block.
    """

    def __init__(self, path: Path, vocabulary: int, context: int) -> None:
        self._tokens = read_tokens(path, vocabulary)
        self._context = context

    def __len__(self) -> int:
        return blocks_of(len(self._tokens), self._context)

    @property
    def share(self) -> float:
        """Share of the tokens that blocks foretell: what is left over at the end is none of it."""
        return len(self) * (self._context - 1) / (len(self._tokens) - 1)

    def read(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the ids of blocks: (B, context) int64."""
        step = self._context - 1
        found = [self._tokens[i * step : i * step + self._context] for i in numbers]
        return np.stack(found).astype(np.int64)


@dataclass(frozen=True)
class Order:
    """Which blocks a step takes: each once in an epoch.

    Args:
        blocks: how many there are.
        batch_size: blocks a step.
        seed: of the shuffles, one an epoch.
    """

    blocks: int
    batch_size: int
    seed: int

    def of_step(self, step: int) -> np.ndarray:
        """Return block numbers: (batch_size,).

        >>> order = Order(5, 2, seed=0)
        >>> sorted(np.concatenate([order.of_step(s) for s in range(5)]).tolist())
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        """
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs = places // self.blocks
        shuffles = [_shuffle(self.blocks, self.seed, int(e)) for e in epochs]
        pairs = zip(shuffles, places % self.blocks, strict=True)
        return np.array([shuffle[place] for shuffle, place in pairs])


@lru_cache(maxsize=2)
def _shuffle(blocks: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(blocks)
