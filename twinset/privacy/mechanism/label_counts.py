"""The noisy count of records per label combination, and how the twin's rows follow from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np

from twinset.privacy.accounting.events import LABEL_COUNTS, GaussianRelease
from twinset.privacy.mechanism.noise import GaussianGrid
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.simplex import on_simplex

Combination = TypeVar("Combination", bound=Hashable)


def release_label_counts(
    labels: Sequence[Combination],
    combinations: Sequence[Combination],
    noise_multiplier: float,
    randomness: Randomness,
    most: int = 1,
) -> tuple[tuple[int, ...], GaussianRelease]:
    """Count the records of every public combination, and add N(0, σ²m²) to each count.

    They are whole numbers, below 0 too: `without_negatives` makes rows' proportions of them.

    Guarantee: adding or removing one unit of at most m of the records that are counted changes the
    counts by at most m in L2 norm (if all have one label), so that this is one Gaussian release
    of multiplier σ, as computed: what leaves is the whole number nearest to count + σm · Z for a
    real Gaussian Z (`noise`), and no other bit of it. Combinations that no record has get
    noise too; leaving them out would reveal them. The set of combinations itself is taken as
    public.

    Args:
        labels: one combination per record that is counted.
        combinations: all public combinations, distinct.
        noise_multiplier: σ.
        randomness: its first noise stream is used.
        most: m.

    Returns:
        The noisy counts, in the order of `combinations`, and the event to record.

    Raises:
        ValueError: a label is not in the public set (its value is not shown), or that set is empty
            or holds a combination twice.
    """
    event = GaussianRelease(noise_multiplier, LABEL_COUNTS)
    public = set(combinations)
    if not public or len(public) < len(combinations):
        raise ValueError("the public label combinations must be distinct, and at least one")
    for row, label in enumerate(labels, start=1):
        if label not in public:
            raise ValueError(f"row {row} has a label outside the public set of combinations")
    counts = Counter(labels)
    noisy = np.array([counts[combination] for combination in combinations], dtype=np.float64)
    grid = GaussianGrid(randomness.noise[0], randomness.refinement[0])
    grid.add(noisy, noise_multiplier * most, step=1.0)
    return tuple(int(count) for count in noisy), event


def without_negatives(noisy_counts: Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers, 0 or more and as many in all, nearest to noisy counts.

    Were those below 0 set to 0 alone, combinations that no record has would have, in the mean, more
    than none, and others less than their share. Of 0 and less in all, each is 1.

    Guarantee: post-processing of counts already released.

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

    Guarantee: post-processing of counts already released.

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
