"""Measures of two clouds of embeddings: MAUVE, precision and recall, and the Fréchet distance.

Knows nothing of where vectors come from. All of these numbers depend on the number of rows and on
the encoder: compare within one report only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from evaluation.fidelity.texts import jackknife, leave_out_blocks
from evaluation.findings import Score, proportion

SCALING = 5.0  # c of MAUVE, as its authors chose
MIXTURES = 25  # points of the divergence curve
EXPLAINED = 0.9  # of the variance, in the dimensions that are clustered
ROWS_A_CLUSTER = 10
CLUSTERINGS, CLUSTER_STEPS = 5, 500
NEIGHBOURS = 3  # of precision and recall, as their authors chose
BLOCK_ROWS = 512  # compared with all others at once


def mauve(ours: np.ndarray, real: np.ndarray, seed: int) -> Score:
    """Return MAUVE: how far two clouds can be told apart, by mass and by support.

    Source: Pillutla et al. 2021, "MAUVE: Measuring the Gap Between Neural Text and Human Text", §3
    and appendix. Both clouds are cut into the same k-means clusters. MAUVE is the area under the
    curve of exp(-c KL) of both histograms against their mixtures, c = 5. Range 0 to 1, and 1 means
    that both are alike.

    The authors take the best of five clusterings. The mean of their areas, taken here, varies half
    as much with the seed. They use embeddings of GPT-2, and others give other numbers. The interval
    is the jackknife's over rows of both tables, with the clusters fixed.

    Args:
        ours: (N, d) unit vectors, in random order.
        real: (N, d) likewise.
        seed: of the clusters.
    """
    rows = len(ours)
    seeds = range(seed, seed + CLUSTERINGS)
    labels = [np.split(found, [rows]) for found in cluster_vectors(ours, real, seeds)]
    areas = []
    blocks: list[slice | np.ndarray] = [slice(None), *leave_out_blocks(rows)]
    for kept in blocks:
        histograms = (
            [np.bincount(side[kept], minlength=2 * rows) for side in both] for both in labels
        )
        areas.append(statistics.fmean(divergence_curve_area(*pair) for pair in histograms))
    return jackknife("MAUVE", areas[0], areas[1:], "maximise", 0.0, 1.0, rows)


def cluster_vectors(ours: np.ndarray, real: np.ndarray, seeds: Sequence[int]) -> list[np.ndarray]:
    """Return, for each seed, the number of each vector's cluster (2 N,), ours first."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    vectors = np.concatenate([ours, real])
    differing = len(np.unique(vectors, axis=0))
    if differing == 1:  # without variance there is no principal component
        return [np.zeros(len(vectors), dtype=int)]
    reduced = PCA(EXPLAINED, svd_solver="full").fit_transform(vectors)
    wanted = min(max(2, round(len(ours) / ROWS_A_CLUSTER)), differing)
    means = KMeans(wanted, n_init=1, max_iter=CLUSTER_STEPS)
    return [means.set_params(random_state=seed).fit_predict(reduced) for seed in seeds]


def divergence_curve_area(ours: np.ndarray, real: np.ndarray) -> float:
    """Return the area under the divergence curve of two histograms (k,), in counts or shares.

    >>> round(divergence_curve_area(np.array([1, 1]), np.array([5, 5])), 3)
    1.0
    >>> round(divergence_curve_area(*np.eye(2)), 3)
    0.004
    """
    from scipy.special import rel_entr

    p, q = ours / ours.sum(), real / real.sum()
    weight = np.linspace(0, 1, MIXTURES)[:, None]
    mixture = weight * p + (1 - weight) * q  # (mixtures, clusters)
    x = np.exp(-SCALING * rel_entr(q, mixture).sum(axis=1))
    y = np.exp(-SCALING * rel_entr(p, mixture).sum(axis=1))
    return float(-np.trapezoid(np.concatenate([[0], y, [1]]), np.concatenate([[1], x, [0]])))


def precision_recall(ours: np.ndarray, real: np.ndarray) -> list[Score]:
    """Return the share of our rows in the real region, and of real rows in ours.

    Source: Kynkäänniemi et al. 2019, "Improved Precision and Recall Metric for Assessing Generative
    Models", eq. 2. A table's region is all that is as near to one of its rows as that row's third
    nearest neighbour in the table. Range 0 to 1, higher is better. Low precision means that the
    twin writes what no real row looks like, low recall that it leaves kinds of real rows out.

    There is none where a table has one row. The intervals are Wilson's: they speak of the rows that
    are looked for, with the region fixed.

    Args:
        ours: (N, d) embeddings.
        real: (M, d) likewise.
    """
    if min(len(ours), len(real)) < 2:
        return []
    return [
        proportion(f"{name} of embeddings", int(is_inside(*pair).sum()), len(pair[0]))
        for name, pair in (("precision", (ours, real)), ("recall", (real, ours)))
    ]


def is_inside(rows: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Say of each row (N, d) whether it lies in the region of another table (M, d): (N,) bool."""
    from scipy.spatial.distance import cdist

    # Row 0 in the order is the row itself, so the third neighbour is at place 3.
    nearest = min(NEIGHBOURS, len(region) - 1)
    radii = np.concatenate(
        [
            np.partition(cdist(region[start : start + BLOCK_ROWS], region), nearest)[:, nearest]
            for start in range(0, len(region), BLOCK_ROWS)  # (block, M) at a time
        ]
    )
    return np.concatenate(
        [
            (cdist(rows[start : start + BLOCK_ROWS], region) <= radii).any(axis=1)
            for start in range(0, len(rows), BLOCK_ROWS)
        ]
    )


def frechet_distance(ours: np.ndarray, real: np.ndarray) -> Score | None:
    """Return the Fréchet distance, each table taken for a Gaussian. None for a table of one row.

    Source: Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule", eq. 6:
    |m - m'|² + tr(C + C' - 2 (C C')^½). Range 0 to ∞, lower is better. It falls with the number of
    rows, also between samples of one distribution: compare distances of the same number only. The
    interval is the jackknife's, over rows of both tables.

    Args:
        ours: (N, d) embeddings, in random order.
        real: (N, d) likewise.
    """
    rows = len(ours)
    if rows < 2:
        return None
    blocks: list[slice | np.ndarray] = [slice(None)]
    if rows > 2:  # of one row there is no covariance
        blocks += leave_out_blocks(rows)
    value, *without = (gaussian_distance(ours[kept], real[kept]) for kept in blocks)
    name = "Fréchet distance of embeddings"
    return jackknife(name, value, without, "minimise", 0.0, math.inf, rows)


def gaussian_distance(ours: np.ndarray, real: np.ndarray) -> float:
    """Return the Fréchet distance of the Gaussians with the moments of two tables (N, d), N > 1."""
    (mean, covariance), (real_mean, real_covariance) = (
        (exact.mean(axis=0), np.atleast_2d(np.cov(exact, rowvar=False)))
        for exact in (ours.astype(np.float64), real.astype(np.float64))
    )
    values, axes = np.linalg.eigh(covariance)
    root = (axes * np.sqrt(np.clip(values, 0, None))) @ axes.T  # C^½
    # C C' has the eigenvalues of C^½ C' C^½, which is symmetric: no complex roots
    product = np.linalg.eigvalsh(root @ real_covariance @ root)
    shared = np.sqrt(np.clip(product, 0, None)).sum()
    apart = float(((mean - real_mean) ** 2).sum())
    spread = float(np.trace(covariance) + np.trace(real_covariance) - 2 * shared)
    return max(0.0, apart + spread)  # rounding may fall below 0
