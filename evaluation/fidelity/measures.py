"""Is the twin faithful? Every measure for the twin, and for a second real sample as the ceiling.

There are two kinds. Measures of one table (length, diversity, perplexity) are taken on the twin, on
train and on held-out rows. The twin's numbers come from the release alone, and the number of its
rows that are read does not depend on private rows either. Measures that compare a table with train
are taken on the twin and on held-out rows, with equally many rows of all three. A copy of train
would beat the ceiling, but that is a leak and not a merit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.table.columns import label_cells, text_cells
from twinset.table.schema import plain

from ..findings import Histogram, Measured, Score, proportion
from ..release import TWIN, Tables, normalised
from ..utility.classifiers import Encode, encode_tables
from . import texts as text_measures
from .columns import compare_columns, draw_columns
from .texts import PERPLEXITY_ROWS, jackknife, split_words

if TYPE_CHECKING:
    from twinset.progress import Progress

TRAIN, SECOND = "train", "real, a second sample"
LENGTH_BINS = 20
DIVERSITY_ROWS = 2_000  # for distinct-n and self-BLEU
VOCABULARY_ROWS = 10_000
EMBEDDED_ROWS = 1_000  # MiniLM reads some hundred a second on one core


def fidelity(
    tables: Tables,
    encode: Encode | None,
    *,
    seed: int,
    progress: Progress,
    public_model: tuple[Any, Any] | None = None,
) -> tuple[list[Measured], list[Histogram]]:
    """Measure a twin against train, and held-out rows as the best possible twin.

    Read each of the twin's scores next to the score of the held-out rows ("real, a second sample").
    If the intervals overlap, the twin is as faithful as real rows are. Without `encode`, measures
    by embeddings are left out. So is perplexity without a public causal LM and its tokenizer. The
    seed draws rows and clusters.
    """
    from matplotlib.ticker import MaxNLocator

    frames = {TWIN: tables.twin, TRAIN: tables.train, SECOND: tables.heldout}
    frames = {name: f.sample(frac=1, random_state=seed) for name, f in frames.items()}
    texts: dict[str, list[str]] = {}
    for name, frame in frames.items():
        cells = text_cells(frame[tables.text], f"column {tables.text!r}")
        texts[name] = [cell for cell in cells if cell is not None]
        if not texts[name]:
            raise InputError(
                f"the table of {name} has no text in {tables.text!r}. Give one with records."
            )
    found: list[tuple[str, Score | None]] = []

    # What each table says of itself. The twin's own size decides how much is looked at, in every
    # table: a private table's size would show in the twin's published numbers.
    lengths = {name: np.array([len(split_words(t)) for t in each]) for name, each in texts.items()}
    rows = {name: [split_words(t) for t in each[:DIVERSITY_ROWS]] for name, each in texts.items()}
    size, drawn = len(rows[TWIN]), text_measures.drawable_ngrams(rows[TWIN])
    for done, (name, each) in enumerate(texts.items(), start=1):
        found += [(name, score) for score in text_measures.length_scores(lengths[name])]
        found += [
            (name, score) for score in text_measures.diversity_scores(rows[name][:size], drawn)
        ]
        found.append((name, text_measures.self_bleu(rows[name], size)))
        # Rows that repeat an earlier one, in lower-cased letters and digits.
        some = each[: len(texts[TWIN])]
        repeated = len(some) - len({normalised(text) for text in some})
        found.append((name, proportion("duplicate rate", repeated, len(some), "match")))
        progress.count("tables searched for repetition", done, len(texts))
    if public_model is not None:
        model, tokenizer = public_model
        for name, each in texts.items():
            reading = partial(progress.count, f"texts read by a model: {name}")
            some = each[:PERPLEXITY_ROWS]
            found.append((name, text_measures.public_perplexity(some, model, tokenizer, reading)))
    # The twin's may be published: they are computed from the release alone.
    measured: list[Measured] = []
    for name, score in found:
        if score is not None:
            score = replace(score, where="release alone") if name == TWIN else score
            measured.append(Measured("fidelity", score, {"rows": name}))

    # Lengths in words, in bins of 1, 2, 5, 10, 20 and so on. The last one holds the longest 1 %.
    top = max(np.quantile(each, 0.99) for each in lengths.values())
    ticks = MaxNLocator(LENGTH_BINS, integer=True, steps=[1, 2, 5, 10]).tick_values(0, top)
    width = max(1, round(ticks[1] - ticks[0]))
    last = math.ceil((top + 1) / width)
    bins = [f"{i * width}–{(i + 1) * width - 1}" if width > 1 else f"{i}" for i in range(last)]
    bins.append(f"{last * width} or more")
    series: dict[str, list[float]] = {}
    for name, counted in lengths.items():
        counts = np.bincount(np.minimum(counted // width, last), minlength=last + 1)
        series[name] = (counts / len(counted)).tolist()
    histograms = [Histogram("fidelity", "length", "words", bins, series)]

    # Labels, words and embeddings, on equally many rows of all three.
    for attribute in tables.attributes:
        labels: dict[str, list[str]] = {}  # by table, those of the rows that have one
        for name, frame in frames.items():
            found_labels = label_cells(frame[attribute], f"column {attribute!r}")
            labels[name] = [plain(label) for label in found_labels if label is not None]
        equal = cut_to_equal(labels)
        for name in (TWIN, SECOND) if equal[TRAIN] else ():
            distance = label_distance(equal[name], equal[TRAIN])
            measured.append(Measured("fidelity", distance, {"rows": name, "label": attribute}))
        # Numbers come first and in their order.
        names = pd.Series(sorted(set().union(*labels.values())), dtype=object)
        numbers = pd.to_numeric(names, errors="coerce").fillna(np.inf)
        bins = names[np.argsort(numbers, kind="stable")].tolist()
        often = {name: Counter(each) for name, each in labels.items()}
        series = {n: [c[label] / max(1, c.total()) for label in bins] for n, c in often.items()}
        title = f"labels: {attribute}"
        histograms.append(Histogram("fidelity", title, attribute, bins, series))
    cut = cut_to_equal(texts, VOCABULARY_ROWS)
    words = {name: [split_words(text) for text in each] for name, each in cut.items()}
    vectors: dict[str, np.ndarray] = {}  # (N, d) each
    if encode is not None:
        vectors = encode_tables(encode, cut_to_equal(texts, EMBEDDED_ROWS), progress)
    for name in (TWIN, SECOND):
        scores: list[Score | None] = [*text_measures.vocabulary_scores(words[name], words[TRAIN])]
        if vectors:
            ours, real = vectors[name], vectors[TRAIN]
            scores += [
                text_measures.mauve(ours, real, seed),
                *text_measures.precision_recall(ours, real),
            ]
            scores.append(text_measures.frechet_distance(ours, real))
        measured += [Measured("fidelity", s, {"rows": name}) for s in scores if s is not None]
    measured += compare_columns(tables, seed, progress)
    histograms += draw_columns(tables, seed)
    return measured, histograms


def cut_to_equal(
    tables: Mapping[str, Sequence[str]], most: int | None = None
) -> dict[str, list[str]]:
    """Return the first rows of each table, equally many: the smallest table's number or `most`."""
    rows = min(map(len, tables.values()))
    rows = rows if most is None else min(rows, most)
    return {name: list(each[:rows]) for name, each in tables.items()}


def label_distance(labels: Sequence[str], train: Sequence[str]) -> Score:
    """Return the total variation distance of the label shares of equally many rows.

    Range 0 to 1: 0 if the shares agree, 1 if no label is shared. Lower is better. Rows are in
    random order.

    >>> label_distance(["a", "a", "a", "b"], ["a", "a", "b", "b"]).value
    0.25
    """
    numbers = np.unique([*labels, *train], return_inverse=True)[1]
    ours, real = np.split(numbers, [len(labels)])

    def distance(kept: np.ndarray) -> float:
        one, two = (np.bincount(ids[kept], minlength=numbers.max() + 1) for ids in (ours, real))
        return float(np.abs(one - two).sum() / 2 / len(kept))

    name = "total variation distance of labels"
    return jackknife(name, distance, len(ours), "minimise", 0.0, 1.0)
