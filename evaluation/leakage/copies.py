"""What a twin's rows share with the rows it was made from, compared with chance.

Chance is what they share with held-out rows that the twin never saw, equally many as of train. If
train has more rows, all of it is searched too. Then no copy is missed, but such a number cannot be
compared with the reference. Three measures: verbatim runs of words, near-duplicates, and distances
of embeddings. Shares of a table's rows compare at any size. Memory is linear in the tables.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.sparse import csr_array

from twinset.errors import InputError
from twinset.progress import Progress
from twinset.table.ngrams import Words, mixed, number_words, rows_sharing_a_run

from ..findings import Measured, Score, proportion
from ..utility.classifiers import Encode, encode_tables

RUN = 8  # words of a run that is hardly shared by chance
TRAIN, HELDOUT = "train", "held-out"
NEAR, RUNS = "near-duplicates", f"rows with a run of {RUN} words"
# Of a table's rows instead of the twin's: one row may be repeated by many of the twin
REPEATED, RUN_REPEATED = "rows nearly repeated", f"rows repeated by a run of {RUN} words"
SAMPLE = "train, as many rows as held-out"
SHINGLE_WORDS = 3  # a shorter row is its own shingle
SIMILARITY = 0.8  # of near-duplicates
PAIRS_AT_ONCE = 1 << 21  # compared together: about 100 MB
SMALLEST = 1e-3  # distances below, or that differ by less, are rounding: 4e-4 in float32
PERCENTILE = 0.05


def overlap(
    twin_texts: Sequence[str],
    train_texts: Sequence[str],
    heldout_texts: Sequence[str],
    encode: Encode | None,
    *,
    seed: int,
    progress: Progress,
) -> list[Measured]:
    """Measure what a twin shares with train and, as reference, with held-out.

    `seed` draws the samples that make tables equal. Without `encode` distances are left out. Scores
    have the place "against", which is train, held-out, or train cut to the number of held-out rows.
    The last is used only if train is larger. Distances are against equal tables only.
    """
    for name, texts in (("twin", twin_texts), (TRAIN, train_texts), (HELDOUT, heldout_texts)):
        if not len(texts):
            raise InputError(f"overlap cannot be measured: {name} has no row with a text")
    size, rng = min(len(train_texts), len(heldout_texts)), np.random.default_rng(seed)
    tables = {TRAIN: train_texts, HELDOUT: heldout_texts}
    for name, texts in ((HELDOUT, heldout_texts), (SAMPLE, train_texts)):
        if len(texts) > size:
            drawn = np.sort(rng.choice(len(texts), size, replace=False))
            tables[name] = [texts[i] for i in drawn]

    measured: list[Measured] = []
    vocabulary: dict[str, int] = {}
    twin = number_words(twin_texts, vocabulary)
    for done, (name, texts) in enumerate(tables.items(), start=1):
        words = number_words(texts, vocabulary)
        ours, theirs = near_duplicates(twin, words)
        counted = [(NEAR, ours)]
        if name != SAMPLE:
            by_run = rows_sharing_a_run(words, twin, RUN)
            counted += [(REPEATED, theirs), (RUN_REPEATED, by_run)]
        shares = (proportion(of, int(rows.sum()), len(rows), "minimise") for of, rows in counted)
        scores = *verbatim_scores(twin, words), *shares
        measured += [Measured("leakage", score, {"against": name}) for score in scores]
        progress.count("tables compared", done, len(tables))
    if encode is None:
        return measured

    # A distance alone means nothing: a good twin is near all rows of its kind. So train is only
    # shown next to held-out rows of equal number.
    equal = SAMPLE if SAMPLE in tables else TRAIN
    wanted = {"twin": twin_texts, equal: tables[equal], HELDOUT: tables[HELDOUT]}
    vectors = encode_tables(encode, wanted, progress)  # (N, d) each
    train, heldout = (Nearest.find(vectors["twin"], vectors[name]) for name in (equal, HELDOUT))
    # The share of rows nearer to train than to held-out. One as near to both is half. Without a
    # leak it is 0.5, and copies raise it. A row of either table may be the nearest to many twin
    # rows, and all of these fall to one side together. Wilson's interval counts them as
    # `count_independent` says.
    difference = train.distance - heldout.distance
    hits = np.where(np.abs(difference) <= SMALLEST, 0.5, difference < 0)
    value, n = float(hits.mean()), int(count_independent(train, heldout))
    low = proportion("", math.floor(value * n), n).low
    high = proportion("", math.ceil(value * n), n).high
    name = "nearer to train than to held-out"
    nearer = Score(name, value, low, high, "match", 0.0, 1.0, len(hits))
    for score, against in (
        (nearer, equal),
        (ratio_percentile(train, heldout), equal),
        (ratio_percentile(heldout, train), HELDOUT),
    ):
        measured.append(Measured("leakage", score, {"against": against}))
    return measured


def verbatim_scores(twin: Words, other: Words) -> tuple[Score, Score]:
    """Return the longest shared run of words, and the share of rows with a run of eight.

    Both should equal their values against held-out rows. The longest run in `n` other rows has no
    upper bound that follows from these rows. The lower one is the bootstrap's, in closed form: the
    longest of n rows drawn from n misses the j longest with probability (1 - j/n)ⁿ.
    """

    @cache
    def count_sharing(length: int) -> int:
        return int(rows_sharing_a_run(twin, other, length).sum())

    longest = min(int(words.left.max(initial=0)) for words in (twin, other))
    n, lengths = twin.rows, range(1, longest + 1)
    missed = math.floor(n * (1 - 0.025 ** (1 / n)))
    # The longest run that at least `least` rows share. Fewer rows share a longer one: bisect.
    value, low = (
        bisect_left(lengths, -least + 1, key=lambda length: -count_sharing(length))
        for least in (1, min(n, missed + 1))
    )
    name = "longest verbatim run"
    run = Score(name, value, float(low), math.inf, "minimise", 0.0, math.inf, n)
    return run, proportion(RUNS, count_sharing(RUN), n, "minimise")


def near_duplicates(twin: Words, other: Words) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows of a twin, and which of the other table, nearly repeat one: (rows,) bool.

    Near is a Jaccard similarity of at least 0.8 between the sets of runs of three words. All pairs
    that share a run are compared, so all near-duplicates are found, and no others. Rows without
    words are near to no row.
    """
    shingles = []  # codes and rows: all runs of three words, and each shorter row as a whole
    for words in (twin, other):
        found = [words.runs(SHINGLE_WORDS)]
        first = np.diff(words.row, prepend=-1) > 0  # each row's first word
        for length in range(1, SHINGLE_WORDS):
            codes, holders = words.runs(length)
            alone = np.isin(holders, words.row[first & (words.left == length)])
            found.append((mixed(codes[alone] ^ np.uint64(length)), holders[alone]))
        shingles.append([np.concatenate(parts) for parts in zip(*found, strict=True)])
    kinds, numbers = np.unique(np.concatenate([c for c, _ in shingles]), return_inverse=True)
    tables: list[csr_array] = []  # (rows, shingles), 1 where a row has a shingle
    for words, (codes, holders) in zip((twin, other), shingles, strict=True):
        column, numbers = numbers[: len(codes)], numbers[len(codes) :]
        ones = np.ones(len(codes), dtype=np.int64)
        tables.append(csr_array((ones, (holders, column)), shape=(words.rows, len(kinds))))
        tables[-1].data[:] = 1  # a shingle that a row has twice counts once
    ours, theirs = tables
    our_sizes, their_sizes = np.diff(ours.indptr), np.diff(theirs.indptr)
    near, repeated = np.zeros(twin.rows, dtype=bool), np.zeros(other.rows, dtype=bool)
    # Rows are compared in blocks with a limited number of pairs that share a shingle.
    work = ours @ np.bincount(theirs.indices, minlength=len(kinds))
    cuts = np.flatnonzero(np.diff(work.cumsum() // PAIRS_AT_ONCE)) + 1
    for rows in np.split(np.arange(twin.rows), cuts):
        shared = (ours[rows] @ theirs.T).tocoo()  # how many shingles each pair has in common
        union = our_sizes[rows[shared.row]] + their_sizes[shared.col] - shared.data
        alike = shared.data / union >= SIMILARITY
        near[rows[shared.row[alike]]] = repeated[shared.col[alike]] = True
    return near, repeated


@dataclass(frozen=True)
class Nearest:
    """Each twin row's nearest row of a table: (N,) each."""

    distance: np.ndarray  # Euclidean, never below `SMALLEST`
    row: np.ndarray  # which row of the table it is

    @classmethod
    def find(cls, vectors: np.ndarray, others: np.ndarray) -> Nearest:
        """Find the nearest of unit vectors (M, d) to each of other unit vectors (N, d)."""
        from sklearn.metrics import pairwise_distances_argmin_min

        row, distance = pairwise_distances_argmin_min(vectors, others)
        return cls(np.maximum(distance.astype(np.float64), SMALLEST), row)


def count_independent(train: Nearest, heldout: Nearest) -> float:
    """Return the effective number of independent rows of the twin.

    Without a leak the rows of the two tables are exchangeable. Each row that is nearest to w twin
    rows acts as a coin with weight w for the share of twin rows nearer to train. So the variance of
    this share is Σ w² / 4, where n coins of equal weight give 1 / 4n.
    """
    deciding = np.where(train.distance <= heldout.distance, train.row, -1 - heldout.row)
    weights = np.unique(deciding, return_counts=True)[1] / len(deciding)
    return float(1 / (weights**2).sum())


def ratio_percentile(one: Nearest, other: Nearest) -> Score:
    """Return the 5th percentile, over the twin's rows, of their distances' ratio.

    Range 0 to ∞. It is low if a few rows are much nearer to one table than the other table lets
    expect. Without a leak, exchanging the tables does not change it. The interval is that of order
    statistics, for the effective number of independent rows.
    """
    from scipy.stats import binom

    ratios = np.sort(one.distance / other.distance)
    n, coins = len(ratios), math.floor(count_independent(one, other))
    ranks = binom.ppf((0.025, 0.975), coins, PERCENTILE) / coins * n
    low = float(ratios[math.ceil(ranks[0]) - 1]) if ranks[0] else 0.0  # too few rows to bound it
    high = float(ratios[math.floor(ranks[1])]) if ranks[1] < n else math.inf
    value = float(ratios[max(0, math.ceil(PERCENTILE * n) - 1)])
    return Score("distance ratio, 5th percentile", value, low, high, "match", 0.0, math.inf, n)
