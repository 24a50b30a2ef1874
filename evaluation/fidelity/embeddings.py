"""Measures of two clouds of embeddings: MAUVE, precision and recall, and the Fréchet distance.

Knows nothing of where vectors come from. All of these numbers depend on the number of rows and on
the encoder: compare within one report only.
"""

from __future__ import annotations

import math
import statistics

import numpy as np

from ..findings import Score, proportion
from .texts import jackknife

SCALING = 5.0  # c of MAUVE, as its authors chose
MIXTURES = 25  # points of the divergence curve
EXPLAINED = 0.9  # of the variance, in the dimensions that are clustered
ROWS_A_CLUSTER = 10
CLUSTERINGS, CLUSTER_STEPS = 5, 500
NEIGHBOURS = 3  # of precision and recall, as their authors chose


def mauve(ours: np.ndarray, real: np.ndarray, seed: int) -> Score:
    """Return MAUVE: how far two clouds can be told apart, by mass and by support.

    Source: Pillutla et al. 2021, "MAUVE: Measuring the Gap Between Neural Text and Human Text", §3
    and appendix. Both clouds are cut into the same k-means clusters. MAUVE is the area under the
    curve of exp(-c KL) of both histograms against their mixtures, c = 5. Range 0 to 1, and 1 means
    that both are alike.

    The authors take the best of five clusterings. The mean of their areas, taken here, varies half
    as much with the seed. They use embeddings of GPT-2, and others give other numbers. The interval
    is the jackknife's over rows of both tables, with the clusters fixed. Both are (N, d) unit
    vectors in random order.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    rows, vectors = len(ours), np.concatenate([ours, real])  # (2 N, d)
    differing = len(np.unique(vectors, axis=0))
    labels = [np.zeros(2 * rows, dtype=int)]  # of one point repeated there is no component
    if differing > 1:
        reduced = PCA(EXPLAINED, svd_solver="full").fit_transform(vectors)
        wanted = min(max(2, round(rows / ROWS_A_CLUSTER)), differing)
        labels = [
            KMeans(wanted, n_init=1, max_iter=CLUSTER_STEPS, random_state=each).fit_predict(reduced)
            for each in range(seed, seed + CLUSTERINGS)
        ]

    def area(kept: np.ndarray) -> float:
        sides = [(each[:rows][kept], each[rows:][kept]) for each in labels]
        histograms = [[np.bincount(side, minlength=2 * rows) for side in both] for both in sides]
        return statistics.fmean(divergence_curve_area(*both) for both in histograms)

    return jackknife("MAUVE", area, rows, "maximise", 0.0, 1.0)


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
    """
    from scipy.spatial.distance import cdist

    if min(len(ours), len(real)) < 2:
        return []
    found = []
    for name, rows, region in (("precision", ours, real), ("recall", real, ours)):
        nearest = min(NEIGHBOURS, len(region) - 1)  # place 0 in the order is the row itself
        radii = np.partition(cdist(region, region), nearest)[:, nearest]  # (M,)
        inside = (cdist(rows, region) <= radii).any(axis=1)  # (N,)
        found.append(proportion(f"{name} of embeddings", int(inside.sum()), len(rows)))
    return found


def frechet_distance(ours: np.ndarray, real: np.ndarray) -> Score | None:
    """Return the Fréchet distance, each table taken for a Gaussian. None for a table of one row.

    Source: Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule", eq. 6:
    |m - m'|² + tr(C + C' - 2 (C C')^½). Range 0 to ∞, lower is better. It falls with the number of
    rows, also between samples of one distribution: compare distances of the same number only. The
    interval is the jackknife's, over rows of both tables, (N, d) each and in random order.
    """
    ours, real = ours.astype(np.float64), real.astype(np.float64)

    def distance(kept: np.ndarray) -> float:
        if len(kept) < 2:  # of one row there is no covariance
            return math.nan
        one, other = ours[kept], real[kept]
        covariances = [np.atleast_2d(np.cov(each, rowvar=False)) for each in (one, other)]
        values, axes = np.linalg.eigh(covariances[0])
        root = (axes * np.sqrt(np.clip(values, 0, None))) @ axes.T  # C^½
        # C C' has the eigenvalues of C^½ C' C^½, which is symmetric: no complex roots
        product = np.linalg.eigvalsh(root @ covariances[1] @ root)
        shared = np.sqrt(np.clip(product, 0, None)).sum()
        apart = ((one.mean(axis=0) - other.mean(axis=0)) ** 2).sum()
        return float(apart + sum(map(np.trace, covariances)) - 2 * shared)

    if len(ours) < 2:
        return None
    name = "Fréchet distance of embeddings"
    return jackknife(name, distance, len(ours), "minimise", 0.0, math.inf)
