"""Noisy histograms of records' columns, and noisy scores of pairs of columns.

A column is an array of numbers of public values, one for each record. `release_histograms` counts
all records in several histograms at once. `release_pair_scores` says how far pairs of columns are
from what earlier releases predict. Both together, with a selection of values (`counts`), are the
release of a table's other columns. Of what a value means this module knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from twinset.privacy.accounting.events import COLUMNS
from twinset.privacy.mechanism.gate import Measured, Noisy
from twinset.privacy.mechanism.noise import add_gaussian_
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import UNIT_STEPS, VectorSum


def unit_weights(units: Sequence[Sequence[int]], records: int) -> np.ndarray:
    """Return (N,) the weight of each record, as a whole number of `UNIT_STEPS`.

    The records of a unit weigh 1 together, or a little less. A record that is not counted weighs 0.

    >>> (unit_weights([[0], [1, 3], []], 4) / UNIT_STEPS).tolist()
    [1.0, 0.5, 0.0, 0.5]
    """
    weights = np.zeros(records, np.int64)
    for unit in units:
        if len(unit):
            weights[list(unit)] = UNIT_STEPS // len(unit)
    return weights


def release_histograms(
    codes: Sequence[np.ndarray],
    sizes: Sequence[int],
    weights: np.ndarray,
    noise_multiplier: float,
    randomness: Randomness,
    most: int | None = None,
) -> Noisy[tuple[list[np.ndarray], float]]:
    """Count records in H histograms, with noise. Return the counts and the noise's deviation.

    Guarantee: one Gaussian release of multiplier σ (`VectorSum`), for using or leaving out one
    unit. A record is in at most `most` of the histograms, so its vector of ones is at most √most
    long. A unit adds the weighted mean of its records' vectors, which is no longer. The sizes are
    public or were released before. With σ = 0 counts are exact, and nothing is guaranteed.

    Args:
        codes: for each histogram (N,) the place of each record, -1 for none.
        sizes: of the histograms.
        weights: (N,) of `unit_weights`.
        noise_multiplier: σ.
        randomness: its noise streams are used.
        most: histograms that have a record. None: all.

    Raises:
        ValueError: a record is in more histograms, or outside of one.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    most = len(codes) if most is None else most
    inside = [(c < size).all() for c, size in zip(codes, sizes, strict=True)]
    held = sum((c >= 0).astype(np.int32) for c in codes)  # (N,)
    if not all(inside) or np.max(held, initial=0) > most:
        raise ValueError("a record is in more histograms than planned, or outside of one")
    total = VectorSum(int(offsets[-1]))
    total.add_ones(codes, offsets, weights, most)
    deviation = noise_multiplier * most**0.5
    noisy = total.release(noise_multiplier, randomness, COLUMNS)
    return noisy.then(lambda sums: (np.split(sums * most**0.5, offsets[1:-1]), deviation))


def release_pair_scores(
    codes: Sequence[np.ndarray],
    sizes: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    expected: Callable[[int, int], np.ndarray],
    weights: np.ndarray,
    noise_multiplier: float,
    randomness: Randomness,
) -> Noisy[tuple[np.ndarray, float]]:
    """Return for each pair of columns how many records another table would have to move, twice.

    The score of a pair is the sum over its table of |records − expected records|.

    Guarantee: one Gaussian release of multiplier σ, for using or leaving out one unit. A unit's
    weights sum to 1 or less, so it changes the cells of one pair's table by 1 in sum, and its score
    by at most 1. All P scores together change by √P at most. Tables, expected tables and scores are
    whole numbers of `UNIT_STEPS`, so they are exact, and the expected ones follow from earlier
    releases alone. With σ = 0 nothing is guaranteed.

    Args:
        codes: for each column (N,) the value of each record, -1 for none.
        sizes: number of values of each column.
        pairs: P pairs of columns.
        expected: returns the expected records (K, K') of a pair.
        weights: (N,) of `unit_weights`.
        noise_multiplier: σ.
        randomness: its noise streams are used.

    Returns:
        (P,) scores and the deviation of their noise.
    """
    import torch

    scores = np.zeros(len(pairs), np.float64)
    for number, (a, b) in enumerate(pairs):
        # whole numbers, exact in float64 for up to 500 million units
        inside = (codes[a] >= 0) & (codes[b] >= 0)
        cells = codes[a][inside] * sizes[b] + codes[b][inside]
        table = np.bincount(cells, weights[inside], sizes[a] * sizes[b]).astype(np.int64)
        predicted = np.rint(expected(a, b).ravel() * UNIT_STEPS).astype(np.int64)
        scores[number] = np.abs(table - predicted).sum() / UNIT_STEPS
    longest = len(pairs) ** 0.5
    noisy = torch.from_numpy(scores.copy())
    found = add_gaussian_(noisy, noise_multiplier * longest, randomness).numpy()
    value, measured = (found, noise_multiplier * longest), Measured.of(scores, found, longest)
    return Noisy.gaussian(value, noise_multiplier, COLUMNS, measured)
