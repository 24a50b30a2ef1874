"""What each token of a text adds to the counts of tokens: less where it is very common or rare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COMMON = 0.01  # share of texts; a token of more is counted for less, as its count is known anyway
RARE = 0.003  # one of less, as no noise that can be afforded would leave its count readable
LEAST = 0.25  # of a rare one: private texts may have it more often than a model expects


@dataclass(frozen=True)
class TokenWeights:
    """Weights of tokens, and the length that the vector of a text's weights may have.

    All of it must be public, or have been released before: noise is measured in it.

    Args:
        weights: (V,) float64 of at most 1; 0: the token is not counted.
        bound: a text whose vector is longer counts for less, all of its tokens alike.
    """

    weights: np.ndarray
    bound: float

    @classmethod
    def equal(cls, vocabulary: int, end: int) -> TokenWeights:
        """Return weights of 1, of texts of any length: of counts without noise.

        >>> TokenWeights.equal(4, end=0).of([3, 1, 3, 0])
        (array([1, 3]), 1.0)
        """
        weights = np.ones(vocabulary)
        weights[end] = 0
        return cls(weights, np.inf)

    @classmethod
    def from_frequencies(cls, frequencies: np.ndarray, end: int) -> TokenWeights:
        """Return weights for texts that have tokens about this often.

        The noise on a count is proportional to the bound over the token's weight, and a token of
        frequency f adds f · weight² to the squared bound. So common tokens, which are counted far
        above the noise, and rare ones, whose counts it hides, make way for those between.

        Args:
            frequencies: (V,) share of texts that have a token, of rows of a public model.
            end: token that every text may end with; it is not counted.
        """
        shares = np.maximum(frequencies, RARE * LEAST**2)
        weights = np.minimum(1.0, np.minimum((shares / RARE) ** 0.5, (COMMON / shares) ** 0.25))
        weights[end] = 0
        return cls(weights, max(1.0, float(frequencies @ weights**2) ** 0.5))

    def of(self, ids: Sequence[int]) -> tuple[np.ndarray, float]:
        """Return the distinct tokens (k,) of a text that are counted, and what it counts for."""
        found = np.unique(np.asarray(ids, np.int64))
        found = found[self.weights[found] > 0]
        length = float(np.square(self.weights[found]).sum()) ** 0.5
        return found, min(1.0, self.bound / max(length, 1e-300))
