"""MAUVE: how far two clouds of embeddings can be told apart, by mass and by support.

Source: Pillutla et al. 2021, "MAUVE: Measuring the Gap Between Neural Text and Human Text", §3 and
appendix: both clouds are cut into the same k-means clusters, and the area under the curve of
exp(-c KL) of both histograms against their mixtures is taken, c = 5. The authors take the best of
five clusterings; the mean of their areas, taken here, varies half as much with the seed. They use
embeddings of GPT-2; others give other numbers, so compare within a report only.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from evaluation.fidelity.jackknife import jackknife, leaving_out
from evaluation.findings import Score

SCALING = 5.0
_MIXTURES = 25
_EXPLAINED = 0.9  # of the variance, in the dimensions that are clustered
_ROWS_A_CLUSTER = 10
_CLUSTERINGS, _STEPS = 5, 500


def mauve(ours: np.ndarray, real: np.ndarray, seed: int) -> Score:
    """Return MAUVE of as many rows as real ones, in random order: 1 where they are alike.

    The interval is the jackknife's over rows of both tables, the clusters being what they are.

    Args:
        ours: (N, d) unit vectors.
        real: (N, d) likewise.
        seed: of the clusters.
    """
    rows = len(ours)
    seeds = range(seed, seed + _CLUSTERINGS)
    labels = [np.split(found, [rows]) for found in clusterings(ours, real, seeds)]

    def area(kept: slice | np.ndarray) -> float:
        histograms = (
            [np.bincount(side[kept], minlength=2 * rows) for side in both] for both in labels
        )
        return statistics.fmean(curve_area(*pair) for pair in histograms)

    without = [area(kept) for kept in leaving_out(rows)]
    return jackknife("MAUVE", area(slice(None)), without, "maximise", 0.0, 1.0, rows)


def clusterings(ours: np.ndarray, real: np.ndarray, seeds: Sequence[int]) -> list[np.ndarray]:
    """Return, for each seed, the number of each vector's cluster (2 N,), ours first."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    vectors = np.concatenate([ours, real])
    differing = len(np.unique(vectors, axis=0))
    if differing == 1:
        return [np.zeros(len(vectors), dtype=int)]
    reduced = PCA(_EXPLAINED, svd_solver="full").fit_transform(vectors)
    wanted = min(max(2, round(len(ours) / _ROWS_A_CLUSTER)), differing)
    means = KMeans(wanted, n_init=1, max_iter=_STEPS)
    return [means.set_params(random_state=seed).fit_predict(reduced) for seed in seeds]


def curve_area(ours: np.ndarray, real: np.ndarray) -> float:
    """Return the area under the divergence curve of two histograms, in counts or shares.

    >>> round(curve_area(np.array([1, 1]), np.array([5, 5])), 3), round(curve_area(*np.eye(2)), 3)
    (1.0, 0.004)
    """
    from scipy.special import rel_entr

    p, q = ours / ours.sum(), real / real.sum()
    weight = np.linspace(0, 1, _MIXTURES)[:, None]
    mixture = weight * p + (1 - weight) * q  # (mixtures, clusters)
    x = np.exp(-SCALING * rel_entr(q, mixture).sum(axis=1))
    y = np.exp(-SCALING * rel_entr(p, mixture).sum(axis=1))
    return float(-np.trapezoid(np.concatenate([[0], y, [1]]), np.concatenate([[1], x, [0]])))
