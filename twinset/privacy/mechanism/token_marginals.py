"""How many texts of each label value have each token: noisy counts of all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twinset.privacy.accounting.events import TOKEN_MARGINALS, GaussianRelease
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.token_weights import TokenWeights
from twinset.privacy.mechanism.vector_sum import VectorSum


@dataclass(frozen=True)
class TokenMarginals:
    """Released counts.

    Args:
        counts: for each attribute (K, V) texts with a label value and a token, with noise.
        deviation: of the noise on counts of tokens of weight 1.
        units: how many were counted, taken as public.
        weights: what each token counted.
    """

    counts: Sequence[np.ndarray]
    deviation: float
    units: int
    weights: TokenWeights

    @property
    def noise(self) -> np.ndarray:
        """Standard deviation (V,) of the noise on each token's counts; inf: it is not counted."""
        return _over(np.full(len(self.weights.weights), self.deviation), self.weights, np.inf)

    def save(self, path: Path) -> None:
        """Write what was released, exactly."""
        arrays = {str(number): counts for number, counts in enumerate(self.counts)}
        np.savez(
            path,
            deviation=self.deviation,
            units=self.units,
            weights=self.weights.weights,
            bound=self.weights.bound,
            **arrays,  # type: ignore[arg-type]
        )

    @classmethod
    def load(cls, path: Path) -> TokenMarginals:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as kept:
            counts = [kept[str(number)] for number in range(len(kept.files) - 4)]
            weights = TokenWeights(kept["weights"], float(kept["bound"]))
            return cls(counts, float(kept["deviation"]), int(kept["units"]), weights)


Text = tuple[Sequence[int], Sequence[int]]  # token ids, and the number of each attribute's value


def release_token_marginals(
    units: Iterable[Sequence[Text]],
    values: Sequence[int],
    weights: TokenWeights,
    noise_multiplier: float,
    randomness: Randomness,
) -> tuple[TokenMarginals, GaussianRelease | None]:
    """Count, for each attribute, the texts (K, V) that have a label value and a token, with noise.

    Guarantee: one Gaussian release of multiplier σ (`VectorSum`), for adding or removing one unit.
    A unit adds the mean of its texts' vectors, whose tokens count as much as their weights; counts
    are divided by these afterwards. Sets of tokens and label values, and the weights, are public.

    Args:
        units: the texts of each unit, at least one.
        values: number of label values K of each attribute.
        weights: of V tokens, with a bound that is finite.
        noise_multiplier: σ; 0: no noise, no event and no guarantee.
        randomness: its noise streams are used.
    """
    vocabulary = len(weights.weights)
    offsets = np.cumsum([0, *(vocabulary * count for count in values)])
    longest = weights.bound * len(values) ** 0.5  # of the weights of a text, all attributes'
    event = GaussianRelease(noise_multiplier, TOKEN_MARGINALS) if noise_multiplier else None
    total, number = VectorSum(int(offsets[-1])), 0
    for texts in units:
        number += 1
        parts = [part for text in texts for part in _places(text, weights, offsets)]
        places, where = np.unique(np.concatenate([p for p, _ in parts]), return_inverse=True)
        added = np.bincount(where, np.concatenate([a for _, a in parts]), len(places))
        total.add_at(places, added / (longest * len(texts)))
    noisy = total.release(noise_multiplier, randomness) * longest
    each = [part.reshape(-1, vocabulary) for part in np.split(noisy, offsets[1:-1])]
    counts = [_over(part, weights, 0.0) for part in each]
    return TokenMarginals(counts, noise_multiplier * longest, number, weights), event


def _places(
    text: Text, weights: TokenWeights, offsets: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each attribute the places of a text's tokens, and what is added there."""
    tokens, share = weights.of(text[0])
    for offset, value in zip(offsets, text[1], strict=False):
        yield tokens + offset + value * len(weights.weights), share * weights.weights[tokens]


def _over(numbers: np.ndarray, weights: TokenWeights, uncounted: float) -> np.ndarray:
    """Return numbers (..., V) divided by weights, and what stands for tokens without weight."""
    found = np.full_like(numbers, uncounted)
    return np.divide(numbers, weights.weights, out=found, where=weights.weights > 0)
