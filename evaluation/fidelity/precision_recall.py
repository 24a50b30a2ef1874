"""Precision and recall of embeddings by nearest neighbours.

Source: Kynkäänniemi et al. 2019, "Improved Precision and Recall Metric for Assessing Generative
Models", eq. 2: a table's region is all that is as near to one of its rows as that row's third
nearest neighbour in the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evaluation.findings import Score, proportion

NEIGHBOURS = 3
_BLOCK = 512  # rows compared with all others at once


def precision_recall(ours: np.ndarray, real: np.ndarray) -> list[Score]:
    """Return the shares of our rows in the real region, and of real rows in ours.

    None of a table of one row. The intervals are Wilson's: they speak of the rows that are looked
    for, the region being what it is.

    Args:
        ours: (N, d) embeddings.
        real: (M, d) likewise.
    """
    if min(len(ours), len(real)) < 2:
        return []
    found, covered = (int(inside(*pair).sum()) for pair in ((ours, real), (real, ours)))
    return [
        proportion("precision of embeddings", found, len(ours)),
        proportion("recall of embeddings", covered, len(real)),
    ]


def inside(rows: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Say of each row whether it lies in the region of the other table (N,)."""
    radii = np.concatenate(
        [
            np.partition(near, nearest, axis=1)[:, nearest]
            for near in _distances(region, region)
            for nearest in [min(NEIGHBOURS, len(region) - 1)]  # the 0th is the row itself
        ]
    )
    return np.concatenate([(near <= radii).any(axis=1) for near in _distances(rows, region)])


def _distances(rows: np.ndarray, others: np.ndarray) -> Iterator[np.ndarray]:
    """Yield distances (block, M) a block of rows at a time."""
    from scipy.spatial.distance import cdist

    for start in range(0, len(rows), _BLOCK):
        yield cdist(rows[start : start + _BLOCK], others)
