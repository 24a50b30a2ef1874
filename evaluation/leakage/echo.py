"""What the released rows alone tell of a canary: an n-gram model of them ranks its secret.

Source: Meeus et al. 2025, "The Canary's Echo: Auditing Privacy Risks of LLM-Generated Synthetic
Text", section 3: a bigram model with add-one smoothing, trained on the twin. Knows no model that
wrote it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from evaluation.leakage.canaries import Canary
from evaluation.leakage.exposure import Exposure, expected_rank
from evaluation.leakage.exposure_extrapolation import sampled_secrets

CANDIDATES = 10_000  # read at most
MODEL = "bigram model of the twin"


class Bigrams:
    """A bigram model of texts, with add-one smoothing over the words it has seen and one more.

    Args:
        tokenizer: cuts texts into tokens.
        texts: what it learns from.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        rows = self._tokens(texts)
        self._pairs = Counter(pair for row in rows for pair in pairwise(row))
        self._first = Counter(first for row in rows for first in row[:-1])
        self._kinds = len({token for row in rows for token in row}) + 1

    def losses(self, texts: Sequence[str]) -> np.ndarray:
        """Return the negative log-likelihood of each text: (N,), in nats."""
        return np.array([sum(map(self._nats, pairwise(row))) for row in self._tokens(texts)])

    def _nats(self, pair: tuple[int, int]) -> float:
        seen = self._first[pair[0]] + self._kinds
        return math.log(seen) - math.log(self._pairs[pair] + 1)

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return tokens as in training: a space before each text, and a mark for its beginning."""
        spaced = [" " + text for text in texts]
        encoded = self._tokenizer(spaced, add_special_tokens=False)["input_ids"]
        return [[-1, *ids] for ids in encoded]


def echo(bigrams: Bigrams, canary: Canary, seed: int) -> Exposure:
    """Rank a canary's secret by a model of the released rows.

    Among `CANDIDATES` drawn by the seed where the space is larger, whose ranks stand for the rest:
    no more than log2 of their number can be seen then.
    """
    space = canary.format.space
    if space <= CANDIDATES:
        losses = bigrams.losses(canary.format.candidates())
        return Exposure(canary, expected_rank(losses, canary.secret), space, f"exact rank, {MODEL}")
    others = sampled_secrets(canary, CANDIDATES - 1, seed)
    losses = bigrams.losses([canary.text, *map(canary.format.text, others)])
    method = f"rank among {CANDIDATES} candidates, {MODEL}"
    return Exposure(canary, expected_rank(losses, 0) / CANDIDATES * space, space, method)
