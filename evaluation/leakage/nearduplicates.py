"""Rows that are nearly rows of another table: MinHash and locality-sensitive hashing.

Near is a Jaccard similarity of at least 0.8 between the sets of runs of three words. Candidates
come from MinHash signatures in bands (Broder 1997; Leskovec et al., "Mining of Massive Datasets",
chapter 3), and the similarity of each is then computed from the sets themselves: none is found in
vain. One of similarity 0.8 is missed with probability (1 - 0.8⁵)²⁵ = 5·10⁻⁵.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from twinset.shingles import Words, mixed

LENGTH = 3  # words of a shingle; a shorter row is its own shingle
SIMILARITY = 0.8
_BANDS, _DEPTH = 25, 5
# Pairs whose signatures agree less are not looked at: five standard errors below SIMILARITY.
_ESTIMATE = 0.62
_PAIRS = 1 << 18  # candidates looked at together
_SHINGLES = 1 << 22  # of the pairs compared together


class Shingled:
    """Every row's set of shingles, and its signature.

    Args:
        words: of the table; rows without words have neither.
        seed: of the signatures. Tables to be compared must share it.
    """

    def __init__(self, words: Words, seed: int) -> None:
        codes, rows = _shingles(words)
        order = np.lexsort((codes, rows))
        codes, rows = codes[order], rows[order]
        new = np.ones(len(codes), dtype=bool)
        new[1:] = (codes[1:] != codes[:-1]) | (rows[1:] != rows[:-1])
        self.codes = codes[new]  # sorted within each row
        self.rows, self.starts, self.sizes = np.unique(
            rows[new], return_index=True, return_counts=True
        )
        self.signatures = self._signatures(seed)  # (rows with words, bands · depth)

    def _signatures(self, seed: int) -> np.ndarray:
        salts = np.random.default_rng(seed).integers(2**64, size=_BANDS * _DEPTH, dtype=np.uint64)
        signatures = np.zeros((len(self.rows), len(salts)), dtype=np.uint32)
        for place, salt in enumerate(salts if len(self.rows) else ()):
            hashes = (mixed(self.codes ^ salt) >> np.uint64(32)).astype(np.uint32)
            signatures[:, place] = np.minimum.reduceat(hashes, self.starts)
        return signatures

    def band(self, place: int) -> np.ndarray:
        """Return one code for each row's part of the signature: (rows with words,)."""
        codes = np.zeros(len(self.rows), dtype=np.uint64)
        for column in self.signatures[:, place * _DEPTH : (place + 1) * _DEPTH].T:
            codes = mixed(codes ^ column)
        return codes


def _shingles(words: Words) -> tuple[np.ndarray, np.ndarray]:
    codes, rows = words.runs(LENGTH)
    all_codes, all_rows = [codes], [rows]
    first = np.diff(words.row, prepend=-1) > 0  # each row's first word
    for length in range(1, LENGTH):
        short = set(words.row[first & (words.left == length)].tolist())
        codes, rows = words.runs(length)
        alone = np.isin(rows, list(short))
        all_codes.append(mixed(codes[alone] ^ np.uint64(length)))
        all_rows.append(rows[alone])
    return np.concatenate(all_codes), np.concatenate(all_rows)


def near_duplicates(twin: Shingled, other: Shingled, rows: int) -> np.ndarray:
    """Return which of a twin's rows are near-duplicates of a row of the other table: (rows,) bool.

    Args:
        twin: whose rows are asked about.
        other: the other table.
        rows: how many the twin has, those without words too.
    """
    near = np.zeros(len(twin.rows), dtype=bool)
    for place in range(_BANDS):
        for ours, theirs in _candidates(twin.band(place), other.band(place), ~near):
            pending = ~near[ours]  # found in an earlier block
            ours, theirs = ours[pending], theirs[pending]
            agreeing = (twin.signatures[ours] == other.signatures[theirs]).mean(1) >= _ESTIMATE
            ours, theirs = ours[agreeing], theirs[agreeing]
            near[ours[_jaccard(twin, ours, other, theirs) >= SIMILARITY]] = True
    every = np.zeros(rows, dtype=bool)
    every[twin.rows[near]] = True
    return every


def _candidates(
    ours: np.ndarray, theirs: np.ndarray, wanted: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs of places with equal codes, so many at a time that memory stays bounded."""
    order = np.argsort(theirs, kind="stable")
    theirs = theirs[order]
    asked = np.flatnonzero(wanted)
    low = np.searchsorted(theirs, ours[asked])
    many = np.searchsorted(theirs, ours[asked], side="right") - low
    asked, low, many = asked[many > 0], low[many > 0], many[many > 0]
    last = many.cumsum()
    for start in range(0, int(many.sum()), _PAIRS):
        pair = np.arange(start, min(start + _PAIRS, int(last[-1])))
        owner = np.searchsorted(last, pair, side="right")
        yield asked[owner], order[low[owner] + pair - (last[owner] - many[owner])]


def _jaccard(one: Shingled, ones: np.ndarray, other: Shingled, others: np.ndarray) -> np.ndarray:
    """Return the similarity of each pair of rows, from their sets: (pairs,)."""
    similarity = np.zeros(len(ones))
    both = one.sizes[ones] + other.sizes[others]
    for pairs in np.split(
        np.arange(len(ones)), np.flatnonzero(np.diff(both.cumsum() // _SHINGLES)) + 1
    ):
        left, left_pair = _sets(one, ones[pairs])
        right, right_pair = _sets(other, others[pairs])
        codes = np.concatenate([left, right])
        pair = np.concatenate([left_pair, right_pair])
        order = np.lexsort((codes, pair))
        codes, pair = codes[order], pair[order]
        twice = (codes[1:] == codes[:-1]) & (pair[1:] == pair[:-1])
        shared = np.bincount(pair[1:][twice], minlength=len(pairs))
        similarity[pairs] = shared / (both[pairs] - shared)
    return similarity


def _sets(table: Shingled, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shingles of rows, and for each the place of its row."""
    sizes = table.sizes[rows]
    owner = np.repeat(np.arange(len(rows)), sizes)
    within = np.arange(len(owner)) - np.repeat(sizes.cumsum() - sizes, sizes)
    return table.codes[table.starts[rows][owner] + within], owner
