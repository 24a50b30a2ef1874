"""How near a twin's rows lie to two tables of equal size, one of which it was made from.

A distance alone says nothing: a good twin is near all rows of its kind. So nothing here is shown
but train beside held-out. Knows nothing of where the vectors come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evaluation.findings import Score, proportion

SMALLEST = 1e-3  # distances below, or that differ by less, are rounding: 4e-4 in float32
PERCENTILE = 0.05


@dataclass(frozen=True)
class Nearest:
    """Each twin row's nearest row of a table.

    Args:
        distance: (N,) Euclidean, never below `SMALLEST`.
        row: (N,) which row of the table it is.
    """

    distance: np.ndarray
    row: np.ndarray


def nearest(vectors: np.ndarray, others: np.ndarray) -> Nearest:
    """Find each vector's nearest among the others.

    Args:
        vectors: (N, d), of length one.
        others: (M, d), of length one.
    """
    from sklearn.metrics import pairwise_distances_argmin_min

    row, distance = pairwise_distances_argmin_min(vectors, others)
    return Nearest(np.maximum(distance.astype(np.float64), SMALLEST), row)


def share_nearer(train: Nearest, heldout: Nearest) -> Score:
    """Return the share of rows nearer to train than to held-out; one as near to both is half.

    0.5 is what no leak gives. A row of either table may be the nearest to many a twin row, and all
    of these fall to one side together: Wilson's interval counts them as `independent` says.
    """
    difference = train.distance - heldout.distance
    hits = np.where(np.abs(difference) <= SMALLEST, 0.5, difference < 0)
    value, n = float(hits.mean()), int(independent(train, heldout))
    low = proportion("", math.floor(value * n), n).low
    high = proportion("", math.ceil(value * n), n).high
    name = "nearer to train than to held-out"
    return Score(name, value, low, high, "match", 0.0, 1.0, len(hits))


def independent(train: Nearest, heldout: Nearest) -> float:
    """Return how many rows that fall to either side by themselves are worth as much as the twin's.

    Without a leak every row of the two tables might as well stand in the other. Then the share of
    the twin's rows that are nearer to train varies as a sum of coins, one for each row that is the
    nearest to any, weighted by how many: by Σ w² / 4 where n coins of equal weight give 1 / 4n.
    """
    deciding = np.where(train.distance <= heldout.distance, train.row, -1 - heldout.row)
    weights = np.unique(deciding, return_counts=True)[1] / len(deciding)
    return float(1 / (weights**2).sum())


def ratio_percentile(one: Nearest, other: Nearest) -> Score:
    """Return the 5th percentile, over the twin's rows, of their distances' ratio.

    Low where a few rows are much nearer to the one table than the other lets expect. Without a leak
    it is the same with the tables changed round. The interval is that of order statistics, among as
    many rows as are `independent`.
    """
    from scipy.stats import binom

    ratios = np.sort(one.distance / other.distance)
    n, coins = len(ratios), math.floor(independent(one, other))
    ranks = binom.ppf((0.025, 0.975), coins, PERCENTILE) / coins * n
    low = float(ratios[math.ceil(ranks[0]) - 1]) if ranks[0] else 0.0  # too few rows to bound it
    high = float(ratios[math.floor(ranks[1])]) if ranks[1] < n else math.inf
    value = float(ratios[max(0, math.ceil(PERCENTILE * n) - 1)])
    return Score("distance ratio, 5th percentile", value, low, high, "match", 0.0, math.inf, n)
