"""Noisy counts → shares, none below 0: post-processing of what was released."""

from __future__ import annotations

import numpy as np


def on_simplex(counts: np.ndarray) -> np.ndarray:
    """Return the shares (B,), 0 or more and together 1, nearest to those of noisy counts (B,).

    Of counts of 0 and less in all, equal shares (Duchi et al. 2008).

    >>> on_simplex(np.array([60.0, 50.0, -10.0])).round(2)
    array([0.55, 0.45, 0.  ])
    """
    total = float(counts.sum())
    if total <= 0:
        return np.full(len(counts), 1 / len(counts))
    shares = counts / total
    falling = np.sort(shares)[::-1]
    surplus = (falling.cumsum() - 1) / np.arange(1, len(counts) + 1)
    level = surplus[np.flatnonzero(falling > surplus)[-1]]
    found: np.ndarray = np.maximum(shares - level, 0.0)
    return found
