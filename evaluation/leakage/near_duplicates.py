"""Rows that are nearly rows of another table: all of them, and no others.

Near is a Jaccard similarity of at least 0.8 between the sets of runs of three words. Two such sets
share at least four fifths of either, and so one of the rarest shingles of both: only pairs that do
are compared (prefix filter; Bayardo et al. 2007, "Scaling Up All Pairs Similarity Search").
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from twinset.table.ngrams import Words, mixed

LENGTH = 3  # words of a shingle; a shorter row is its own shingle
SIMILARITY = 0.8
_PAIRS = 1 << 16  # candidates compared together: about 100 MB with rows of 60 words


def near_duplicates(twin: Words, other: Words) -> np.ndarray:
    """Return which rows of a twin are near-duplicates of a row of the other table: (rows,) bool.

    Rows without words are near to none. Rows of equal sets are compared once.
    """
    (ours, back), (theirs, _) = map(_distinct, _matrices(twin, other))
    heads, index = _rarest(ours), _rarest(theirs)
    near = np.zeros(ours.shape[0], dtype=bool)
    work = heads @ np.bincount(index.indices, minlength=index.shape[1])  # candidates of each row
    cuts = np.flatnonzero(np.diff(work.cumsum() // _PAIRS)) + 1
    for rows in np.split(np.arange(len(near)), cuts):
        pairs = (heads[rows] @ index.T).tocoo()
        one, two = rows[pairs.row], pairs.col
        shared = ours[one].multiply(theirs[two]).sum(1)
        union = _sizes(ours)[one] + _sizes(theirs)[two] - shared
        near[one[shared / union >= SIMILARITY]] = True
    found: np.ndarray = near[back]
    return found


def _matrices(*tables: Words) -> list[csr_array]:
    """Return each table's rows as sets: (rows, shingles) of ones, the rarest shingle first."""
    shingles = [_shingles(words) for words in tables]
    _, numbers, often = np.unique(
        np.concatenate([codes for codes, _ in shingles]), return_inverse=True, return_counts=True
    )
    places = np.empty(len(often), dtype=np.int64)
    places[np.argsort(often, kind="stable")] = np.arange(len(often))
    columns = np.split(places[numbers], [len(shingles[0][0])])
    found = []
    for words, (_, rows), column in zip(tables, shingles, columns, strict=True):
        ones = np.ones(len(rows), dtype=np.int64)
        matrix = csr_array((ones, (rows, column)), shape=(words.rows, len(often)))
        matrix.data[:] = 1  # a shingle that a row has twice counts once
        found.append(matrix)
    return found


def _shingles(words: Words) -> tuple[np.ndarray, np.ndarray]:
    """Return codes and rows of all shingles."""
    found = [words.runs(LENGTH)]
    first = np.diff(words.row, prepend=-1) > 0  # each row's first word
    for length in range(1, LENGTH):
        codes, rows = words.runs(length)
        alone = np.isin(rows, words.row[first & (words.left == length)])
        found.append((mixed(codes[alone] ^ np.uint64(length)), rows[alone]))
    codes, rows = zip(*found, strict=True)
    return np.concatenate(codes), np.concatenate(rows)


def _distinct(matrix: csr_array) -> tuple[csr_array, np.ndarray]:
    """Return the sets that differ, and for each row which of them it is."""
    signs = matrix.astype(np.uint64) @ mixed(np.arange(matrix.shape[1], dtype=np.uint64))
    _, first, back = np.unique(signs, return_index=True, return_inverse=True)
    return matrix[first], back


def _rarest(matrix: csr_array) -> csr_array:
    """Return of each set so many of its rarest shingles that a near one must have one of them."""
    sizes = _sizes(matrix)
    kept = np.where(sizes > 0, sizes - np.ceil(SIMILARITY * sizes - 1e-9).astype(np.int64) + 1, 0)
    within = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], sizes)
    chosen = within < np.repeat(kept, sizes)
    ends = np.concatenate([[0], kept.cumsum()])
    return csr_array((matrix.data[chosen], matrix.indices[chosen], ends), shape=matrix.shape)


def _sizes(matrix: csr_array) -> np.ndarray:
    """(rows,) shingles of each row."""
    return np.diff(matrix.indptr)
