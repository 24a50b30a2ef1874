"""What a twin's rows share with the rows it was made from, beside what they share by chance.

Chance is what they share with held-out rows that the twin never saw, as many as of train. Where
train has more rows, all of it is searched too: no copy is missed, but such a number is no equal of
the reference. Linear memory in the tables, whatever their sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from evaluation.findings import Measured, Score, proportion
from evaluation.leakage.distances import nearest, ratio_percentile, share_nearer
from evaluation.leakage.near_duplicates import near_duplicates
from evaluation.utility.embeddings import Encoder, encode_tables
from twinset.errors import InputError
from twinset.progress import Progress
from twinset.table.ngrams import Vocabulary, Words, rows_sharing_a_run

RUN = 8  # words of a run that is hardly shared by chance
TRAIN, HELDOUT = "train", "held-out"
SAMPLE = "train, as many rows as held-out"


def overlap(
    twin_texts: Sequence[str],
    train_texts: Sequence[str],
    heldout_texts: Sequence[str],
    encoder: Encoder | None,
    *,
    seed: int,
    progress: Progress,
) -> list[Measured]:
    """Measure what a twin shares with train and, as reference, with held-out.

    Args:
        twin_texts: of the twin.
        train_texts: of the rows it was made from.
        heldout_texts: of rows like those of train that it was not made from.
        encoder: of sentences; None leaves distances out.
        seed: of the samples that make tables equal.
        progress: notified of how far it is.

    Returns:
        Scores with the place {"against": "train", "held-out" or "train, as many rows as held-out"};
        the last only where train is larger. Distances against equal tables only.

    Raises:
        InputError: a table has no row.
    """
    for name, texts in (("twin", twin_texts), (TRAIN, train_texts), (HELDOUT, heldout_texts)):
        if not len(texts):
            raise InputError(f"overlap cannot be measured: {name} has no row with a text")
    tables = _tables(train_texts, heldout_texts, seed)
    measured = list(_shared(twin_texts, tables, progress))
    if encoder is None:
        return measured
    equal = SAMPLE if SAMPLE in tables else TRAIN
    wanted = {"twin": twin_texts, equal: tables[equal], HELDOUT: tables[HELDOUT]}
    measured += _distances(encode_tables(encoder, wanted, progress), equal)
    return measured


def _tables(train: Sequence[str], heldout: Sequence[str], seed: int) -> dict[str, Sequence[str]]:
    size, rng = min(len(train), len(heldout)), np.random.default_rng(seed)
    tables = {TRAIN: train, HELDOUT: _sample(heldout, size, rng)}
    if len(train) > size:
        tables[SAMPLE] = _sample(train, size, rng)
    return tables


def _sample(texts: Sequence[str], size: int, rng: np.random.Generator) -> Sequence[str]:
    if len(texts) == size:
        return texts
    return [texts[i] for i in np.sort(rng.choice(len(texts), size, replace=False))]


def _shared(
    twin_texts: Sequence[str], tables: dict[str, Sequence[str]], progress: Progress
) -> Iterator[Measured]:
    vocabulary = Vocabulary()
    twin = vocabulary.words(twin_texts)
    for done, (name, texts) in enumerate(tables.items(), start=1):
        words, place = vocabulary.words(texts), {"against": name}
        for score in verbatim(twin, words):
            yield Measured("leakage", score, place)
        near = near_duplicates(twin, words)
        score = proportion("near-duplicates", int(near.sum()), twin.rows, "minimise")
        yield Measured("leakage", score, place)
        progress.count("tables compared", done, len(tables))


def verbatim(twin: Words, other: Words) -> tuple[Score, Score]:
    """Return the longest run of words shared, and the share of rows with one of eight words.

    The longest of as many other rows has no upper bound that these rows could tell. The lower one
    is the bootstrap's, in closed form: the longest of n rows drawn from n misses the j longest with
    probability (1 - j/n)ⁿ.
    """

    @cache
    def sharing(length: int) -> int:
        return int(rows_sharing_a_run(twin, other, length).sum())

    def longest(least: int) -> int:  # of the runs that so many rows have
        lengths = range(1, min(twin.longest, other.longest) + 1)
        return bisect_left(lengths, True, key=lambda length: sharing(length) < least)

    n = twin.rows
    missed = math.floor(n * (1 - 0.025 ** (1 / n)))
    low = float(longest(min(n, missed + 1)))
    run = Score("longest verbatim run", longest(1), low, math.inf, "minimise", 0.0, math.inf, n)
    return run, proportion(f"rows with a run of {RUN} words", sharing(RUN), n, "minimise")


def _distances(vectors: dict[str, np.ndarray], equal: str) -> Iterator[Measured]:
    to_train = nearest(vectors["twin"], vectors[equal])
    to_heldout = nearest(vectors["twin"], vectors[HELDOUT])
    yield Measured("leakage", share_nearer(to_train, to_heldout), {"against": equal})
    yield Measured("leakage", ratio_percentile(to_train, to_heldout), {"against": equal})
    yield Measured("leakage", ratio_percentile(to_heldout, to_train), {"against": HELDOUT})
