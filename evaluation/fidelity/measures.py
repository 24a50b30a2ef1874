"""Is the twin faithful? Every measure of it, and the same of a second real sample as the ceiling.

There are two kinds. What a table says of itself (length, diversity, perplexity) is measured on the
twin, on train and on held-out rows. The twin's numbers come from the release alone, and how much of
it is looked at does not depend on private rows either. What compares a table with train is measured
on the twin and on held-out rows, on equally many rows of all three. A copy of train would beat the
ceiling: that is a leak, not a merit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from evaluation.fidelity.embeddings import frechet_distance, mauve, precision_recall
from evaluation.fidelity.texts import (
    PERPLEXITY_ROWS,
    diversity_scores,
    drawable_ngrams,
    duplicate_rate,
    jackknife,
    leave_out_blocks,
    length_histogram,
    length_scores,
    public_perplexity,
    rows_per_part,
    self_bleu,
    split_words,
    vocabulary_scores,
)
from evaluation.findings import Histogram, Measured, Score
from evaluation.release import TWIN, Tables
from evaluation.utility.classifiers import encode_tables
from evaluation.utility.dp_classifiers import Encoder
from twinset.errors import InputError
from twinset.table.columns import text_cells
from twinset.table.labels import label_cells

if TYPE_CHECKING:
    from twinset.progress import Progress

TRAIN, SECOND = "train", "real, a second sample"
DIVERSITY_ROWS = 2_000  # for distinct-n and self-BLEU
VOCABULARY_ROWS = 10_000
EMBEDDED_ROWS = 1_000  # MiniLM reads some hundred a second on one core


def fidelity(
    tables: Tables,
    encoder: Encoder | None,
    *,
    seed: int,
    progress: Progress,
    public_model: tuple[Any, Any] | None = None,
) -> tuple[list[Measured], list[Histogram]]:
    """Measure a twin against train, and held-out rows as a twin that cannot be bettered.

    Read each of the twin's scores beside the one of the held-out rows ("real, a second sample"): a
    twin whose interval meets that one's is as faithful as real rows are.

    Args:
        tables: the twin, the rows it was made from, and other rows from the same source.
        encoder: makes the embeddings. None leaves out what is measured by them.
        seed: draws rows and clusters.
        progress: is notified of the slow parts.
        public_model: causal LM and its tokenizer, for perplexity. Not measured without.

    Raises:
        InputError: a table has no text.
    """
    frames = {TWIN: tables.twin, TRAIN: tables.train, SECOND: tables.heldout}
    frames = {name: f.sample(frac=1, random_state=seed) for name, f in frames.items()}
    texts: dict[str, list[str]] = {}
    for name, frame in frames.items():
        cells = text_cells(frame[tables.text], f"column {tables.text!r}")
        texts[name] = [cell for cell in cells if cell is not None]
        if not texts[name]:
            raise InputError(
                f"the table of {name} has no text in {tables.text!r}; give one with records"
            )
    lengths = {name: np.array([len(split_words(t)) for t in each]) for name, each in texts.items()}

    # What each table says of itself.
    alone: list[tuple[str, Score | None]] = [
        (name, score) for name, each in lengths.items() for score in length_scores(each)
    ]
    rows = {name: [split_words(t) for t in each[:DIVERSITY_ROWS]] for name, each in texts.items()}
    # The twin's own size decides how much is looked at, in every table: a private table's size
    # would show in the twin's published numbers.
    size, drawn, part = (
        len(texts[TWIN]),
        drawable_ngrams(rows[TWIN]),
        rows_per_part(len(rows[TWIN])),
    )
    for done, name in enumerate(texts, start=1):
        alone += [(name, s) for s in diversity_scores(rows[name][: len(rows[TWIN])], drawn)]
        alone += [(name, self_bleu(rows[name], part)), (name, duplicate_rate(texts[name][:size]))]
        progress.count("tables searched for repetition", done, len(texts))
    if public_model is not None:
        model, tokenizer = public_model
        for name, each in texts.items():
            on_progress = partial(progress.count, f"texts read by a model: {name}")
            some = each[:PERPLEXITY_ROWS]
            alone.append((name, public_perplexity(some, model, tokenizer, on_progress)))
    measured = [
        # The twin's may be published: they are computed from the release alone.
        _place(replace(s, where="release alone") if name == TWIN else s, name)
        for name, s in alone
        if s is not None
    ]

    measured += _compare_with_train(frames, texts, tables.attributes, encoder, seed, progress)
    histograms = [label_histogram(frames, attribute) for attribute in tables.attributes]
    return measured, [length_histogram(lengths), *histograms]


def _compare_with_train(
    frames: Mapping[str, pd.DataFrame],
    texts: Mapping[str, Sequence[str]],
    attributes: Sequence[str],
    encoder: Encoder | None,
    seed: int,
    progress: Progress,
) -> list[Measured]:
    """Measure labels, words and embeddings against train, on equally many rows of all three."""
    measured: list[Measured] = []
    for attribute in attributes:
        labels = cut_to_equal({n: label_values(f[attribute]) for n, f in frames.items()})
        for name in (TWIN, SECOND) if labels[TRAIN] else ():
            score = label_distance(labels[name], labels[TRAIN])
            measured.append(_place(score, name, label=attribute))
    cut = cut_to_equal(texts, VOCABULARY_ROWS)
    compared = {name: [split_words(text) for text in each] for name, each in cut.items()}
    for name in (TWIN, SECOND):
        measured += [_place(s, name) for s in vocabulary_scores(compared[name], compared[TRAIN])]
    if encoder is not None:
        vectors = encode_tables(encoder, cut_to_equal(texts, EMBEDDED_ROWS), progress)  # (N, d)
        real = vectors[TRAIN]
        for name in (TWIN, SECOND):
            ours = vectors[name]
            scores = [mauve(ours, real, seed), *precision_recall(ours, real)]
            scores += [s for s in [frechet_distance(ours, real)] if s is not None]
            measured += [_place(s, name) for s in scores]
    return measured


def _place(score: Score, name: str, **more: str) -> Measured:
    return Measured("fidelity", score, {"rows": name, **more})


def cut_to_equal(
    tables: Mapping[str, Sequence[str]], most: int | None = None
) -> dict[str, list[str]]:
    """Return the first rows of each table, as many as the smallest has, and at most `most`."""
    rows = min(map(len, tables.values()))
    rows = rows if most is None else min(rows, most)
    return {name: list(each[:rows]) for name, each in tables.items()}


def label_values(column: pd.Series) -> list[str]:
    """Return the labels of the rows that have one, written as strings."""
    cells = label_cells(column, f"column {str(column.name)!r}")
    return [str(cell) for cell in cells if cell is not None]


def label_histogram(tables: Mapping[str, pd.DataFrame], attribute: str) -> Histogram:
    """Return the share of each label in each table. Numbers come first and in their order."""
    found = {name: Counter(label_values(frame[attribute])) for name, frame in tables.items()}
    names = pd.Series(sorted(set().union(*found.values())), dtype=object)
    numbers = pd.to_numeric(names, errors="coerce").fillna(np.inf)
    bins = names[np.argsort(numbers, kind="stable")].tolist()
    series = {
        name: [often[label] / max(1, often.total()) for label in bins]
        for name, often in found.items()
    }
    return Histogram("fidelity", f"labels: {attribute}", attribute, bins, series)


def label_distance(labels: list[str], train: list[str]) -> Score:
    """Return the total variation distance of label shares.

    Range 0 to 1: 0 where the shares agree, 1 where no label is shared. Lower is better. Rows are in
    random order. The interval is the jackknife's, over rows of both tables.

    >>> label_distance(["a", "a", "a", "b"], ["a", "a", "b", "b"]).value
    0.25
    """
    places = {label: place for place, label in enumerate(sorted({*labels, *train}))}
    ours, real = (np.array([places[label] for label in table]) for table in (labels, train))
    kept = zip(leave_out_blocks(len(ours)), leave_out_blocks(len(real)), strict=False)
    blocks: list[tuple[slice | np.ndarray, slice | np.ndarray]] = [
        (slice(None), slice(None)),
        *kept,
    ]
    values = []
    for a, b in blocks:
        one, two = (
            np.bincount(ids, minlength=len(places)) / len(ids) for ids in (ours[a], real[b])
        )
        values.append(float(np.abs(one - two).sum() / 2))
    name, n = "total variation distance of labels", min(len(ours), len(real))
    return jackknife(name, values[0], values[1:], "minimise", 0.0, 1.0, n)
