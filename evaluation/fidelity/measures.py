"""Is the twin faithful: every measure of it, and the same of a second real sample, the ceiling.

Two kinds. What a table says of itself (length, diversity, perplexity) is measured on the twin, on
train and on held-out rows; the twin's numbers are computed from the release alone, and how much of
it is looked at does not depend on private rows either. What compares a table with train is measured
on the twin and on held-out rows, on equally many rows of all three. A copy of train would beat the
ceiling: that is a leak, and no merit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation.fidelity.diversity import Diversity, duplicate_rate
from evaluation.fidelity.frechet import frechet_distance
from evaluation.fidelity.labels import label_distance, label_histogram, label_values
from evaluation.fidelity.lengths import length_histogram, length_scores, lengths
from evaluation.fidelity.mauve import mauve
from evaluation.fidelity.precision_recall import precision_recall
from evaluation.fidelity.self_bleu import part_rows, self_bleu
from evaluation.fidelity.surprise import PERPLEXITY_ROWS, perplexity
from evaluation.fidelity.vocabulary import vocabulary_scores
from evaluation.fidelity.words import words
from evaluation.findings import Histogram, Measured, Score
from evaluation.private_table import TWIN, Tables
from evaluation.utility.embeddings import Encoder, encode_tables
from twinset.errors import InputError
from twinset.table.columns import text_cells

if TYPE_CHECKING:
    from pandas import DataFrame

    from twinset.progress import Progress

TRAIN, SECOND = "train", "real, a second sample"
DIVERSITY_ROWS = 2_000  # for distinct-n and self-BLEU
VOCABULARY_ROWS = 10_000
EMBEDDED_ROWS = 1_000

Texts = Mapping[str, Sequence[str]]  # by table: twin, train, second sample; in random order


def fidelity(
    tables: Tables,
    encoder: Encoder | None,
    *,
    seed: int,
    progress: Progress,
    public_model: tuple[Any, Any] | None = None,
) -> tuple[list[Measured], list[Histogram]]:
    """Measure a twin against train, and held-out rows as a twin that cannot be bettered.

    Args:
        tables: the twin, the rows it was made from, and other rows from the same source.
        encoder: makes the embeddings; None leaves out what is measured by them.
        seed: draws rows and clusters.
        progress: is notified of the slow parts.
        public_model: causal LM and its tokenizer, for perplexity; not measured without.

    Raises:
        InputError: a table has no text.
    """
    frames = {TWIN: tables.twin, TRAIN: tables.train, SECOND: tables.heldout}
    frames = {name: f.sample(frac=1, random_state=seed) for name, f in frames.items()}
    texts = {name: _texts(frame, tables.text, name) for name, frame in frames.items()}
    counted = {name: lengths(rows) for name, rows in texts.items()}
    measured = [
        *(_alone(s, name) for name, each in counted.items() for s in length_scores(each)),
        *_repetition(texts, progress),
        *_labels(frames, tables.attributes),
        *_vocabulary(texts),
    ]
    if encoder is not None:
        measured += _embedded(texts, encoder, seed, progress)
    if public_model is not None:
        measured += _perplexities(texts, *public_model, progress)
    histograms = [label_histogram(frames, attribute) for attribute in tables.attributes]
    return measured, [length_histogram(counted), *histograms]


def _texts(frame: DataFrame, text: str, name: str) -> list[str]:
    found = [cell for cell in text_cells(frame[text], f"column {text!r}") if cell is not None]
    if not found:
        raise InputError(f"the table of {name} has no text in {text!r}; give one with records")
    return found


def _place(score: Score, name: str, **more: str) -> Measured:
    return Measured("fidelity", score, {"rows": name, **more})


def _alone(score: Score, name: str) -> Measured:
    """Place what a table says of itself: the twin's may be published."""
    return _place(replace(score, where="release alone") if name == TWIN else score, name)


def _repetition(texts: Texts, progress: Progress) -> Iterator[Measured]:
    """Measure on each table what the twin's own size allows."""
    rows = {name: [words(t) for t in each[:DIVERSITY_ROWS]] for name, each in texts.items()}
    drawn = Diversity(rows[TWIN]).drawn()
    part = part_rows(len(rows[TWIN]))
    for done, name in enumerate(texts, start=1):
        scores: list[Score | None] = [
            *Diversity(rows[name][: len(rows[TWIN])]).scores(drawn),
            self_bleu(rows[name], part),
            duplicate_rate(texts[name][: len(texts[TWIN])]),
        ]
        yield from (_alone(score, name) for score in scores if score)
        progress.count("tables searched for repetition", done, len(texts))


def _labels(frames: Mapping[str, DataFrame], attributes: Sequence[str]) -> Iterator[Measured]:
    for attribute in attributes:
        labels = {name: label_values(frame[attribute]) for name, frame in frames.items()}
        labels = _equally_many(labels)
        for name in (TWIN, SECOND) if labels[TRAIN] else ():
            yield _place(label_distance(labels[name], labels[TRAIN]), name, label=attribute)


def _vocabulary(texts: Texts) -> Iterator[Measured]:
    some = _equally_many(texts, VOCABULARY_ROWS)
    rows = {name: [words(text) for text in each] for name, each in some.items()}
    for name in (TWIN, SECOND):
        yield from (_place(score, name) for score in vocabulary_scores(rows[name], rows[TRAIN]))


def _embedded(texts: Texts, encoder: Encoder, seed: int, progress: Progress) -> Iterator[Measured]:
    some = _equally_many(texts, EMBEDDED_ROWS)
    vectors = encode_tables(encoder, some, progress)
    real = vectors[TRAIN]
    for name in (TWIN, SECOND):
        ours = vectors[name]
        scores = [mauve(ours, real, seed), *precision_recall(ours, real)]
        yield from (_place(s, name) for s in [*scores, frechet_distance(ours, real)] if s)


def _perplexities(
    texts: Texts, model: Any, tokenizer: Any, progress: Progress
) -> Iterator[Measured]:
    for name, rows in texts.items():
        on_progress = partial(progress.count, f"texts read by a model: {name}")
        score = perplexity(rows[:PERPLEXITY_ROWS], model, tokenizer, on_progress)
        yield from [_alone(score, name)] if score else []


def _equally_many(
    tables: Mapping[str, Sequence[str]], most: int | None = None
) -> dict[str, list[str]]:
    """Return the first rows of each table, as many as the smallest has."""
    rows = min(map(len, tables.values()))
    rows = rows if most is None else min(rows, most)
    return {name: list(each[:rows]) for name, each in tables.items()}
