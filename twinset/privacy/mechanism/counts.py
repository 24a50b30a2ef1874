"""Noisy counts: records of each label combination, texts with a token or of a length.

`release_label_counts` counts labels. `without_negatives` and `proportional_rows` turn the counts
into proportions of rows. `release_token_marginals` counts, for each label value, the texts that
have a token (`TokenWeights`) and the texts of a length (`LengthBins`), all at once.
`select_label_values` finds undeclared values that many records have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from twinset.privacy.accounting.events import (
    LABEL_COUNTS,
    TOKEN_MARGINALS,
    LabelSelection,
)
from twinset.privacy.mechanism.gate import Measured, Noisy
from twinset.privacy.mechanism.noise import GaussianGrid
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import VectorSum


def on_simplex(counts: np.ndarray) -> np.ndarray:
    """Return the shares (B,), 0 or more with sum 1, that are nearest to those of noisy counts (B,).

    If the counts sum to 0 or less, but for rounding, all shares are equal (Duchi et al. 2008).

    >>> on_simplex(np.array([60.0, 50.0, -10.0])).round(2)
    array([0.55, 0.45, 0.  ])
    >>> on_simplex(np.array([-3.0, 2.1, 0.9])).round(2)
    array([0.33, 0.33, 0.33])
    """
    total = float(counts.sum())
    if total <= 1e-12 * float(np.abs(counts).sum()):
        return np.full(len(counts), 1 / len(counts))
    shares = counts / total
    falling = np.sort(shares)[::-1]
    surplus = (falling.cumsum() - 1) / np.arange(1, len(counts) + 1)
    level = surplus[np.flatnonzero(falling > surplus)[-1]]
    found: np.ndarray = np.maximum(shares - level, 0.0)
    return found


Combination = TypeVar("Combination", bound=Hashable)


def release_label_counts(
    labels: Sequence[Combination],
    combinations: Sequence[Combination],
    noise_multiplier: float,
    randomness: Randomness,
    most: int = 1,
) -> Noisy[tuple[int, ...]]:
    """Count the records of every public combination, and add N(0, σ²m²) to each count.

    The results are whole numbers, also below 0. `without_negatives` turns them into proportions.

    Guarantee: this is one Gaussian release of multiplier σ, as computed. Adding or removing one
    unit of at most m counted records changes the counts by at most m in L2 norm (if all have one
    label). The output is the whole number nearest to count + σm · Z for a real Gaussian Z
    (`noise`), and no other bit of it. Combinations without records get noise too. Leaving them out
    would reveal them. The set of combinations itself is taken as public.

    Args:
        labels: one combination per counted record.
        combinations: all public combinations, distinct.
        noise_multiplier: σ.
        randomness: its first noise stream is used.
        most: m.

    Returns:
        The noisy counts, in the order of `combinations`.

    Raises:
        ValueError: a label is not in the public set (its value is not shown), or that set is empty
            or holds a combination twice.
    """
    public = set(combinations)
    if not public or len(public) < len(combinations):
        raise ValueError("the public label combinations must be distinct, and at least one")
    for row, label in enumerate(labels, start=1):
        if label not in public:
            raise ValueError(f"row {row} has a label outside the public set of combinations")
    counts = Counter(labels)
    exact = np.array([counts[combination] for combination in combinations], dtype=np.float64)
    noisy = exact.copy()
    grid = GaussianGrid(randomness.noise[0], randomness.refinement[0])
    grid.add(noisy, noise_multiplier * most, step=1.0)
    measured = Measured.of(exact, noisy, most, rounded=0.5)
    counted = tuple(int(count) for count in noisy)
    return Noisy.gaussian(counted, noise_multiplier, LABEL_COUNTS, measured)


def select_label_values(
    labels: Sequence[Sequence[Combination]], selection: LabelSelection, randomness: Randomness
) -> Noisy[list[dict[Combination, int]]]:
    """Return the values of each label column that reach a threshold, with their noisy counts.

    Guarantee: that of `twinset.privacy.statement.theorems`, LABEL_VALUES. Noise is drawn for every
    value that a record has, and a count is the whole number nearest to count + noise, as in
    `release_label_counts`. Values are ordered by count, and equal counts by value.

    Args:
        labels: for each selected column, the values of the counted records, at most m of each
            unit.
        selection: A columns, m, noise and threshold.
        randomness: its first noise stream is used.
    """
    if len(labels) != selection.attributes:
        raise ValueError("a selection of other columns was planned")
    found: list[dict[Combination, int]] = []
    added = [np.empty(0)]  # the noise of each count
    grid = GaussianGrid(randomness.noise[0], randomness.refinement[0])
    for column in labels:
        counts = Counter(column)
        exact = np.array(list(counts.values()), dtype=np.float64)
        noisy = exact.copy()
        grid.add(noisy, selection.deviation, step=1.0)
        added.append(noisy - exact)
        reach = zip(counts, map(int, noisy), strict=True)
        kept = [(value, count) for value, count in reach if count >= selection.threshold]
        found.append(dict(sorted(kept, key=lambda pair: (-pair[1], str(pair[0])))))
    # the counts of all columns are one vector, which a unit changes by m√A
    together = np.concatenate(added)
    measured = Measured.of(np.zeros_like(together), together, selection.sensitivity, rounded=0.5)
    return Noisy(found, selection, measured)


def without_negatives(noisy_counts: Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers, 0 or more and with the same total, nearest to noisy counts.

    If only the negative counts were set to 0, combinations without records would get more than
    nothing on average, and others less than their share. If the total is 0 or less, each is 1.

    Guarantee: post-processing of released counts.

    >>> without_negatives((60, 50, -10)), without_negatives((7, 0)), without_negatives((-1, 1))
    ((55, 45, 0), (7, 0), (1, 1))
    """
    total = sum(noisy_counts)
    if min(noisy_counts) >= 0 < total:
        return tuple(noisy_counts)
    if total <= 0:
        return (1,) * len(noisy_counts)
    return proportional_rows(on_simplex(np.array(noisy_counts, float)).tolist(), total)


def proportional_rows(noisy_counts: Sequence[float], rows: int) -> tuple[int, ...]:
    """Share out exactly `rows` rows in proportion, by largest remainder (earlier wins a tie).

    Guarantee: post-processing of released counts.

    >>> proportional_rows((5.0, 3.0, 2.0), 7)
    (4, 2, 1)
    """
    finite = all(math.isfinite(count) and count >= 0 for count in noisy_counts)
    if rows < 0 or not finite or not any(noisy_counts):
        raise ValueError("need counts of at least 0, one of them above 0, and at least 0 rows")
    exact = [Fraction(count) for count in noisy_counts]  # so that the shares never exceed `rows`
    total = sum(exact)
    quotas = [rows * count / total for count in exact]
    shares = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: shares[i] - quotas[i])
    for i in by_remainder[: rows - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


# -- the counted parts of a text -----------------------------------------------------------------

SHORTEST, BINS = 4, 14  # tokens at which the second bin begins (bins of texts that end)


@dataclass(frozen=True)
class LengthBins:
    """Length bins of about equal ratio, and one bin for texts longer than the longest.

    Args:
        longest: tokens that are kept of a text. Public.
        end: id of the token that ends a text that was kept whole.
    """

    longest: int
    end: int

    @cached_property
    def edges(self) -> np.ndarray:
        """(B,) smallest length of each bin. The last bin is for texts that do not end.

        >>> LengthBins(64, end=0).edges.tolist()
        [1, 4, 5, 6, 8, 9, 12, 14, 18, 22, 27, 34, 42, 52, 64]
        """
        ends = np.geomspace(min(SHORTEST, self.longest), self.longest, BINS)
        return np.unique([1, *ends.round().astype(np.int64)])

    def __len__(self) -> int:
        return len(self.edges)

    def of(self, ids: Sequence[int]) -> int:
        """Return the number of a text's bin.

        >>> bins = LengthBins(64, end=0)
        >>> [bins.of(text) for text in ([0], [7] * 12 + [0], [7] * 64)]
        [0, 6, 14]
        """
        if not len(ids) or ids[-1] != self.end:
            return len(self) - 1
        last_whole = max(0, len(self) - 2)
        return min(last_whole, int(np.searchsorted(self.edges, max(1, len(ids) - 1), "right")) - 1)

    @cached_property
    def means(self) -> np.ndarray:
        """(B,) mean length of each bin, as `draw` returns them.

        >>> LengthBins(64, end=0).means[[0, 1, -1]].tolist()
        [2.0, 4.0, 64.0]
        """
        return np.append((self.edges[:-1] + self.edges[1:] - 1) / 2, float(self.longest))

    def draw(self, number: int, rng: np.random.Generator) -> int:
        """Return a random length of a bin, or `longest` for the last one.

        >>> LengthBins(64, end=0).draw(14, np.random.default_rng(0))
        64
        """
        if number == len(self) - 1:
            return self.longest
        return int(rng.integers(self.edges[number], self.edges[number + 1]))


@dataclass(frozen=True)
class TokenWeights:
    """Weights of tokens, and a bound on the length of the vector of a text's weights.

    All of it must be public or already released, because the noise is measured in it.

    Args:
        weights: (V,) float64 of at most 1. With 0 the token is not counted.
        bound: a text with a longer vector counts for less, with the same factor on all its tokens.
    """

    weights: np.ndarray
    bound: float

    @classmethod
    def equal(cls, vocabulary: int, end: int) -> TokenWeights:
        """Return weights of 1, for texts of any length and counts without noise.

        >>> TokenWeights.equal(4, end=0).of([3, 1, 3, 0])
        (array([1, 3]), 1.0)
        """
        weights = np.ones(vocabulary)
        weights[end] = 0
        return cls(weights, np.inf)

    def of(self, ids: Sequence[int]) -> tuple[np.ndarray, float]:
        """Return the distinct counted tokens (k,) of a text, and how much it counts."""
        found = np.unique(np.asarray(ids, np.int64))
        found = found[self.weights[found] > 0]
        length = float(np.square(self.weights[found]).sum()) ** 0.5
        return found, min(1.0, self.bound / max(length, 1e-300))

    def divide(self, numbers: np.ndarray, uncounted: float) -> np.ndarray:
        """Return numbers (…, V) divided by the weights, and `uncounted` for tokens not counted."""
        found = np.full_like(numbers, uncounted)
        return np.divide(numbers, self.weights, out=found, where=self.weights > 0)


# -- how often it was counted ----------------------------------------------------------------------

COUNTS, LENGTHS = "", "lengths-"  # names of arrays in a file, before an attribute's number
LENGTH_WEIGHT = 1.0  # weight of a text's length, where a token's weight is at most 1


@dataclass(frozen=True)
class TokenMarginals:
    """Released counts.

    Args:
        counts: for each attribute (K, V) texts with a label value and a token, with noise.
        deviation: of the noise on counts of tokens of weight 1.
        units: how many were counted, taken as public.
        weights: the weight of each token.
        lengths: for each attribute (K, B) texts with a label value and a length, with noise of
            `deviation`. Empty if lengths were not counted.
    """

    counts: Sequence[np.ndarray]
    deviation: float
    units: int
    weights: TokenWeights
    lengths: Sequence[np.ndarray] = ()

    @property
    def noise(self) -> np.ndarray:
        """Standard deviation (V,) of the noise on each token's counts. inf if it is not counted."""
        alike = np.full(len(self.weights.weights), self.deviation)
        return self.weights.divide(alike, uncounted=np.inf)

    def save(self, path: Path) -> None:
        """Write the released numbers exactly."""
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
        """Read a file written by `save`."""
        with np.load(path, allow_pickle=False) as kept:
            counts, lengths = (
                [kept[f"{kind}{i}"] for i in range(len(kept.files)) if f"{kind}{i}" in kept.files]
                for kind in (COUNTS, LENGTHS)
            )
            weights = TokenWeights(kept["weights"], float(kept["bound"]))
            return cls(counts, float(kept["deviation"]), int(kept["units"]), weights, lengths)


Text = tuple[Sequence[int], Sequence[int]]  # token ids, and the number of each attribute's value


def release_token_marginals(
    units: Iterable[Sequence[Text]],
    values: Sequence[int],
    weights: TokenWeights,
    noise_multiplier: float,
    randomness: Randomness,
    bins: LengthBins | None = None,
) -> Noisy[TokenMarginals]:
    """Count, for each attribute, the texts (K, V) that have a label value and a token, with noise.

    The same release counts the texts (K, B) that have a label value and a length.

    Guarantee: one Gaussian release of multiplier σ (`VectorSum`), for adding or removing one unit.
    A unit adds the mean of its texts' vectors, in which tokens count as much as their weights.
    Counts are divided by these afterwards. Sets of tokens, label values and bins, and the weights,
    are public.

    Args:
        units: the texts of each unit. A unit without texts counts as a unit, but adds nothing.
        values: number of label values K of each attribute.
        weights: of V tokens, with a finite bound.
        noise_multiplier: σ. 0: no noise, no event and no guarantee.
        randomness: its noise streams are used.
        bins: length bins, B. None: lengths are not counted.
    """
    # One vector holds the tokens of one attribute after another, (K, V) each, and then the lengths
    # of one attribute after another, (K, B) each.
    shapes = [(count, len(weights.weights)) for count in values]
    shapes += [(count, len(bins)) for count in values] if bins else []
    offsets = np.cumsum([0, *(rows * columns for rows, columns in shapes)])
    # The longest that a text's vector may be: of all attributes together.
    squared = weights.bound**2 + (LENGTH_WEIGHT**2 if bins else 0.0)
    longest = float((len(values) * squared) ** 0.5)

    total, number = VectorSum(int(offsets[-1])), 0
    for texts in units:
        number += 1
        if not texts:
            continue
        parts: list[tuple[np.ndarray, np.ndarray]] = []  # places in the vector, and summands there
        for ids, own in texts:
            tokens, share = weights.of(ids)
            starts = zip(offsets, shapes, own, strict=False)  # of each attribute's own value
            rows = [offset + value * columns for offset, (_, columns), value in starts]
            parts += [(row + tokens, share * weights.weights[tokens]) for row in rows]
            if bins:
                first = zip(offsets[len(values) :], own, strict=False)
                found = [offset + value * len(bins) + bins.of(ids) for offset, value in first]
                parts += [(np.array([place]), np.array([LENGTH_WEIGHT])) for place in found]
        places, inverse = np.unique(np.concatenate([p for p, _ in parts]), return_inverse=True)
        added = np.bincount(inverse, np.concatenate([a for _, a in parts]), len(places))
        total.add(added[None] / (longest * len(texts)), places)

    def split(sums: np.ndarray) -> TokenMarginals:
        flat = np.split(sums * longest, offsets[1:-1])
        tables = [part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)]
        counts = [weights.divide(table, uncounted=0.0) for table in tables[: len(values)]]
        lengths = [table / LENGTH_WEIGHT for table in tables[len(values) :]]
        return TokenMarginals(counts, noise_multiplier * longest, number, weights, lengths)

    return total.release(noise_multiplier, randomness, TOKEN_MARGINALS).then(split)
