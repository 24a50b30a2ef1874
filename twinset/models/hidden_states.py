"""What a language model makes of a text when it is asked about a label: hidden states as features.

Private records are for `record_states`: in a batch others decide how a text's states are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twinset.models.base_model import context_length
from twinset.models.device import GPU_TOKENS, is_cpu
from twinset.models.packed_layers import PackedLinears

QUESTION = "\n\nThe {} of this text is"
TOKENS_AT_ONCE = 1024  # on a processor: more are no faster, and longer rows' attention slower
DEPTH = 28 / 30  # of the layer that is read: the last ones are for the next token (docs/tuning.md)


def usual_layer(layers: int) -> int:
    """Return which of a model's layers is read; the last one's states are normalised.

    >>> usual_layer(30), usual_layer(6)
    (28, 6)
    """
    return round(DEPTH * layers)


class Questions:
    """Reads a text, and behind it a question about each attribute.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        attributes: names of the label columns.
        layer: whose states are read, counted from 1; None: the usual one.
        packed: the model's weights, laid out to be multiplied faster; None: they are as they are.

    Attributes:
        longest: tokens that the model reads, at most.
        vocabulary: how many tokens it knows.
        alone: of each shape that was tried, whether its rows are read as if alone; `record_states`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        attributes: Sequence[str],
        layer: int | None = None,
        packed: PackedLinears | None = None,
    ) -> None:
        self._model, self._tokenizer, self._packed = model, tokenizer, packed
        self.layer = layer or usual_layer(model.config.num_hidden_layers)
        asked = [QUESTION.format(name.replace("_", " ")) for name in attributes]
        questions = tokenizer(asked, add_special_tokens=False)["input_ids"]
        self._asked = [token for question in questions for token in question]
        self._ends = np.cumsum([len(question) for question in questions])
        self.longest, self.vocabulary = context_length(model), model.config.vocab_size
        self._room = self.longest - 1 - len(self._asked)
        self._start = tokenizer.bos_token_id or tokenizer.eos_token_id
        self.alone: dict[tuple[int, int], bool] = {}

    def tokens(self, text: str, longest: int) -> list[int]:
        """Return a text's token ids, so many at most."""
        ids: list[int] = self._tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"]
        return ids[:longest]

    def of_tokens(self, ids: Sequence[int]) -> np.ndarray:
        """Return the hidden state (A, d) float64 behind each question about a text's token ids."""
        found: np.ndarray = self.of_batch([ids])[0]
        return found

    def of_rows(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the same of several texts (A, d): no private records.

        Those of about one length are read together, so many tokens at once.
        """
        found: dict[int, np.ndarray] = {}
        for some in self._together([len(ids) for ids in rows]):
            found |= zip(some, self.of_batch([rows[i] for i in some]), strict=True)
        return [found[i] for i in range(len(rows))]

    @property
    def device(self) -> torch.device:
        """Where texts are read."""
        found: torch.device = self._model.device
        return found

    def _together(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield the numbers of texts that are read together, the shortest first."""
        some: list[int] = []
        at_once = TOKENS_AT_ONCE if is_cpu(self.device) else GPU_TOKENS
        for number in sorted(range(len(lengths)), key=lengths.__getitem__):
            if some and (len(some) + 1) * self.read_length(lengths[number]) > at_once:
                yield some
                some = []
            some.append(number)
        if some:
            yield some

    def read_length(self, tokens: int) -> int:
        """Return how many tokens are read of a text of so many, questions included."""
        return 1 + min(tokens, self._room) + len(self._asked)

    def of_batch(
        self, rows: Sequence[Sequence[int]], shape: tuple[int, int] | None = None
    ) -> np.ndarray:
        """Return the same of several texts (B, A, d); private records are for `record_states`.

        The questions follow one another in one pass. What has no room before them is not read, and
        what fills shorter rows up stands behind all that is asked: no token looks so far ahead.

        Args:
            rows: token ids of each text.
            shape: of all that is read, rows and tokens, filler included; None: the smallest.
        """
        read = [[self._start, *ids[: self._room], *self._asked] for ids in rows]
        lengths = np.array([len(ids) for ids in read])
        number, tokens = shape or (len(read), int(lengths.max()))
        filled = torch.full((number, tokens), self._start)
        for row, ids in zip(filled, read, strict=False):
            row[: len(ids)] = torch.tensor(ids)
        ends = torch.tensor(lengths[:, None] - len(self._asked) - 1 + self._ends)
        places = torch.arange(len(read))[:, None].to(self.device), ends.to(self.device)
        states = self.hidden(filled)[places]
        found: np.ndarray = states.double().cpu().numpy()
        return found

    @torch.inference_mode()
    def hidden(self, ids: Tensor) -> Tensor:
        """Return the hidden states (B, T, d) of tokens (B, T) in the layer that is read."""
        with self._packed.in_use() if self._packed else nullcontext():
            passed = self._model.base_model(
                input_ids=ids.to(self.device),
                use_cache=False,
                output_hidden_states=self.layer,
            )
        found: Tensor = passed.hidden_states[self.layer]
        return found
