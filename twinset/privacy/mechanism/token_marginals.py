"""How many texts of each label value have each token, or a length: noisy counts, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twinset.privacy.accounting.events import TOKEN_MARGINALS, GaussianRelease
from twinset.privacy.mechanism.length_bins import LengthBins
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.token_weights import TokenWeights
from twinset.privacy.mechanism.vector_sum import VectorSum

COUNTS, LENGTHS = "", "lengths-"  # names of arrays in a file, before an attribute's number
LENGTH_WEIGHT = 1.0  # what a text's length counts for, beside tokens of at most as much


@dataclass(frozen=True)
class TokenMarginals:
    """Released counts.

    Args:
        counts: for each attribute (K, V) texts with a label value and a token, with noise.
        deviation: of the noise on counts of tokens of weight 1.
        units: how many were counted, taken as public.
        weights: what each token counted.
        lengths: for each attribute (K, B) texts with a label value and a length, with noise of
            `deviation`; none: lengths were not counted.
    """

    counts: Sequence[np.ndarray]
    deviation: float
    units: int
    weights: TokenWeights
    lengths: Sequence[np.ndarray] = ()

    @property
    def noise(self) -> np.ndarray:
        """Standard deviation (V,) of the noise on each token's counts; inf: it is not counted."""
        return _over(np.full(len(self.weights.weights), self.deviation), self.weights, np.inf)

    def save(self, path: Path) -> None:
        """Write what was released, exactly."""
        arrays = {f"{COUNTS}{number}": counts for number, counts in enumerate(self.counts)}
        arrays |= {f"{LENGTHS}{number}": each for number, each in enumerate(self.lengths)}
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
            weights = TokenWeights(kept["weights"], float(kept["bound"]))
            deviation, units = float(kept["deviation"]), int(kept["units"])
            return cls(_series(kept, COUNTS), deviation, units, weights, _series(kept, LENGTHS))


def _series(kept: Any, kind: str) -> list[np.ndarray]:
    """Return the arrays of a kind, by their numbers."""
    names = [f"{kind}{number}" for number in range(len(kept.files))]
    return [kept[name] for name in names if name in kept.files]


Text = tuple[Sequence[int], Sequence[int]]  # token ids, and the number of each attribute's value


def release_token_marginals(
    units: Iterable[Sequence[Text]],
    values: Sequence[int],
    weights: TokenWeights,
    noise_multiplier: float,
    randomness: Randomness,
    bins: LengthBins | None = None,
) -> tuple[TokenMarginals, GaussianRelease | None]:
    """Count, for each attribute, the texts (K, V) that have a label value and a token, with noise.

    And, in the same release, those (K, B) that have a label value and a length.

    Guarantee: one Gaussian release of multiplier σ (`VectorSum`), for adding or removing one unit.
    A unit adds the mean of its texts' vectors, whose tokens count as much as their weights; counts
    are divided by these afterwards. Sets of tokens, label values and bins, and the weights, are
    public.

    Args:
        units: the texts of each unit, at least one.
        values: number of label values K of each attribute.
        weights: of V tokens, with a bound that is finite.
        noise_multiplier: σ; 0: no noise, no event and no guarantee.
        randomness: its noise streams are used.
        bins: of lengths, B; None: they are not counted.
    """
    layout = _Layout.of(values, weights, bins)
    event = GaussianRelease(noise_multiplier, TOKEN_MARGINALS) if noise_multiplier else None
    total, number = VectorSum(layout.size), 0
    for texts in units:
        number += 1
        parts = [part for text in texts for part in layout.places(text)]
        places, where = np.unique(np.concatenate([p for p, _ in parts]), return_inverse=True)
        added = np.bincount(where, np.concatenate([a for _, a in parts]), len(places))
        total.add_at(places, added / (layout.longest * len(texts)))
    noisy = total.release(noise_multiplier, randomness) * layout.longest
    counts, lengths = layout.tables(noisy)
    deviation = noise_multiplier * layout.longest
    return TokenMarginals(counts, deviation, number, weights, lengths), event


@dataclass(frozen=True)
class _Layout:
    """Where a vector has which count: tokens of one attribute after another, then lengths.

    Args:
        shapes: (K, V) of each attribute, then (K, B) where lengths are counted.
        offsets: of each of these, and the vector's size.
        weights: of tokens.
        bins: of lengths.
    """

    shapes: Sequence[tuple[int, int]]
    offsets: np.ndarray
    weights: TokenWeights
    bins: LengthBins | None

    @classmethod
    def of(cls, values: Sequence[int], weights: TokenWeights, bins: LengthBins | None) -> _Layout:
        shapes = [(count, len(weights.weights)) for count in values]
        shapes += [(count, len(bins)) for count in values] if bins else []
        offsets = np.cumsum([0, *(rows * columns for rows, columns in shapes)])
        return cls(shapes, offsets, weights, bins)

    @property
    def size(self) -> int:
        return int(self.offsets[-1])

    @property
    def attributes(self) -> int:
        return len(self.shapes) // (2 if self.bins else 1)

    @property
    def longest(self) -> float:
        """The longest that a text's vector may be: of all attributes together."""
        squared = self.weights.bound**2 + (LENGTH_WEIGHT**2 if self.bins else 0.0)
        return float((self.attributes * squared) ** 0.5)

    def places(self, text: Text) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each attribute the places of a text's tokens and length, and what is added."""
        ids, numbers = text
        tokens, share = self.weights.of(ids)
        for offset, (_, columns), value in zip(self.offsets, self.shapes, numbers, strict=False):
            yield offset + value * columns + tokens, share * self.weights.weights[tokens]
        if self.bins:
            offsets, own = self.offsets[self.attributes :], self.bins.of(ids)
            for offset, value in zip(offsets, numbers, strict=False):
                place = offset + value * len(self.bins) + own
                yield np.array([place]), np.array([LENGTH_WEIGHT])

    def tables(self, noisy: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return what was counted of tokens and of lengths, out of a vector of all of it."""
        parts = np.split(noisy, self.offsets[1:-1])
        tables = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        counts = [_over(each, self.weights, 0.0) for each in tables[: self.attributes]]
        return counts, [each / LENGTH_WEIGHT for each in tables[self.attributes :]]


def _over(numbers: np.ndarray, weights: TokenWeights, uncounted: float) -> np.ndarray:
    """Return numbers (..., V) divided by weights, and what stands for tokens without weight."""
    found = np.full_like(numbers, uncounted)
    return np.divide(numbers, weights.weights, out=found, where=weights.weights > 0)
