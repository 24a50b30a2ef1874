"""Fréchet distance of embeddings, each table taken for a Gaussian.

Source: Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule", eq. 6:
|m - m'|² + tr(C + C' - 2 (C C')^½). It falls with the number of rows, also between samples of one
distribution: compare distances of the same number only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evaluation.fidelity.jackknife import jackknife, leaving_out
from evaluation.findings import Score


@dataclass(frozen=True)
class Moments:
    """Mean (d,) and covariance (d, d) of embeddings."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray) -> Moments:
        """Measure vectors (N, d), N > 1."""
        exact = vectors.astype(np.float64)
        return cls(exact.mean(axis=0), np.atleast_2d(np.cov(exact, rowvar=False)))


def frechet_distance(ours: np.ndarray, real: np.ndarray) -> Score | None:
    """Return the distance; None of a table of one row.

    The interval is the jackknife's, over rows of both tables.

    Args:
        ours: (N, d) embeddings, in random order.
        real: (N, d) likewise.
    """
    rows = len(ours)
    if rows < 2:
        return None
    kept = leaving_out(rows) if rows > 2 else iter(())
    without = [distance(Moments.of(ours[k]), Moments.of(real[k])) for k in kept]
    value = distance(Moments.of(ours), Moments.of(real))
    name = "Fréchet distance of embeddings"
    return jackknife(name, value, without, "minimise", 0.0, math.inf, rows)


def distance(ours: Moments, real: Moments) -> float:
    """Return the Fréchet distance of two Gaussians."""
    values, axes = np.linalg.eigh(ours.covariance)
    root = (axes * np.sqrt(np.clip(values, 0, None))) @ axes.T
    # C C' has the eigenvalues of C^½ C' C^½, which is symmetric: no complex roots
    product = np.linalg.eigvalsh(root @ real.covariance @ root)
    shared = np.sqrt(np.clip(product, 0, None)).sum()
    apart = float(((ours.mean - real.mean) ** 2).sum())
    spread = float(np.trace(ours.covariance) + np.trace(real.covariance) - 2 * shared)
    return max(0.0, apart + spread)
