"""Is a twin useful, is it faithful? `twinset evaluate`: tables in, findings out.

Everything found is computed on private rows, but for what is marked "release alone", and stays
with their owner: it goes to the run's `internal/`, never to `share/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.baseline import untrained_twin
from evaluation.classification import Predictions, classification_scores
from evaluation.classifiers import CLASSIFIERS, Classifier, make_classifiers
from evaluation.embeddings import SentenceEncoder
from evaluation.encoderclassifier import Budget
from evaluation.fidelity import fidelity
from evaluation.findings import Curve, Findings, Measured
from evaluation.release import FinishedRun, Release
from evaluation.tables import Tables, check_tables, names_of, without_overlap
from evaluation.twins import Twin, rows_per_label, train_twin
from evaluation.usefulness import Usefulness
from evaluation.utility import labelled, targets, train_on
from twinset.basemodel import load_base
from twinset.columns import check_table, choose_columns
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.formats import read_frame, write_frame
from twinset.precision import frozen_dtype
from twinset.progress import Progress

FILE = "evaluation.json"
BASELINE_FILE = "no-private-data.parquet"


@dataclass(frozen=True)
class Wanted:
    """What is evaluated, against what.

    Args:
        train: the private table it was made from.
        test: real rows held out.
        text: text column; None: the run's, or a guess.
        attributes: label columns; empty: the run's, or a guess.
        classifiers: names in `classifiers`.
        encoder: what the classifier `encoder` fine-tunes; None is MiniLM.
        seeds: how many times each classifier is trained.
        baseline: rows made without private data; None: made here, once, where there is a run.
        non_private: rows of a model trained without noise.
        sweep: further ε, a twin of each is trained and scored.
        exclude_overlap: leave out held-out rows that are training rows too.
    """

    train: Path
    test: Path
    text: str | None = None
    attributes: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = CLASSIFIERS
    encoder: str | None = None
    seeds: int = 1
    baseline: Path | None = None
    non_private: Path | None = None
    sweep: tuple[float, ...] = ()
    exclude_overlap: bool = False


def budgets(text: str | None) -> tuple[float, ...]:
    """Return the ε of "1,2,4".

    Raises:
        InputError: something is no positive number.
    """
    try:
        found = tuple(float(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        found = (0.0,)
    if not all(0 < epsilon < math.inf for epsilon in found):
        raise InputError("--sweep-epsilon takes numbers above 0 with commas between: 1,2,4")
    return found


def evaluate(release: Release, wanted: Wanted, command: str, progress: Progress) -> Findings:
    """Measure use and fidelity.

    Args:
        release: a twin, with its run folder where there is one.
        wanted: what it is measured against.
        command: that leads here.
        progress: is told what happens.

    Raises:
        InputError: a table cannot be used.
    """
    embeddings = SentenceEncoder(progress.say)
    makers = make_classifiers(wanted.classifiers, progress.say, wanted.encoder, embeddings)
    run, twin = release.run, release.twin
    if wanted.sweep and run is None:
        raise InputError("--sweep-epsilon trains as a run did; name the run with --run")
    tables, notes = _tables(release, wanted)
    notes += check_tables(tables)
    for note in notes:
        progress.warn(note)
    if run is not None and tables.baseline is None:
        tables = replace(tables, baseline=_baseline(run, twin.frame, progress))
    budget = None if twin.epsilon is None else Budget(twin.epsilon, twin.delta or 0.0)
    seeds = range(wanted.seeds)
    usefulness = Usefulness(tables, makers, seeds, progress, budget, wanted.encoder)
    measured = list(usefulness.measured())
    curves = list(usefulness.curves())
    if run is not None and wanted.sweep:
        curves += _sweep(wanted.sweep, run, tables, makers, twin, progress)
    faithful, histograms = _fidelity(tables, run, embeddings, progress)
    return Findings(
        "evaluation",
        release.about(command, wanted.train) | {"rows": tables.rows, "seeds": wanted.seeds},
        (*measured, *faithful),
        tuple(curves),
        tuple(histograms),
        tuple(notes),
    )


def _tables(release: Release, wanted: Wanted) -> tuple[Tables, list[str]]:
    train, heldout = read_frame(wanted.train), read_frame(wanted.test)
    notes: list[str] = []
    text, attributes = release.columns(wanted.text, wanted.attributes)
    for name, frame in (("--train", train), ("--test", heldout)):
        check_table(frame, name)
        choose_columns(frame, text, attributes, name, notes)
    rest, overlap = without_overlap(heldout, train, text)
    if overlap and wanted.exclude_overlap:
        notes.append(f"{overlap} held-out rows were left out, for their texts are training texts")
        heldout = rest
    elif overlap:
        notes.append(
            f"{overlap} held-out rows are training rows too, and flatter whatever learnt from "
            "these; --exclude-overlap leaves them out"
        )
    other = [None if p is None else read_frame(p) for p in (wanted.baseline, wanted.non_private)]
    return Tables(train, heldout, release.twin.frame, text, tuple(attributes), *other), notes


def _baseline(run: FinishedRun, twin: pd.DataFrame, progress: Progress) -> pd.DataFrame:
    """Return as many rows of each label as the twin has, made without private data; made once."""
    path, counts = run.internal / BASELINE_FILE, rows_per_label(twin, run.schema)
    if path.is_file():
        known = read_frame(path)
        if rows_per_label(known, run.schema) == counts:
            return known
    progress.say(f"writing {len(twin)} rows with the base model, without private data")
    config = run.config
    frame = untrained_twin(
        config.training.base_model,
        run.schema,
        run.template,
        counts,
        config.sampling,
        config.training.max_tokens,
        dtype=frozen_dtype(config),  # as the twin's model
        progress=progress,
    )
    write_frame(frame, path)
    return frame


def _sweep(
    budgets: Sequence[float],
    run: FinishedRun,
    tables: Tables,
    makers: dict[str, Classifier],
    twin: Twin,
    progress: Progress,
) -> Iterable[Curve]:
    """Train and score a twin for each ε, with the run's other options."""
    frames: dict[float, pd.DataFrame] = {} if twin.epsilon is None else {twin.epsilon: twin.frame}
    for epsilon in budgets:
        progress.say(f"a twin at ε = {epsilon:g}")
        _, made = train_twin(
            tables.train,
            tables.text,
            tables.attributes,
            _with_epsilon(run.config, epsilon),
            run.template,
            len(twin.frame),
            progress,
        )
        frames[made.epsilon or epsilon] = made.frame
    for target in targets(tables.attributes):
        series: dict[str, list[tuple[float, ...]]] = {}
        for name, maker in makers.items():
            series[name] = [
                (epsilon, *_accuracy(frame, tables, target, maker))
                for epsilon, frame in sorted(frames.items())
            ]
        title = f"accuracy by epsilon: {names_of(target)}"
        yield Curve("utility", title, "epsilon", "accuracy", series, log="x")


def _accuracy(
    frame: pd.DataFrame, tables: Tables, target: tuple[str, ...], maker: Classifier
) -> tuple[float, float, float]:
    texts, labels = labelled(tables.heldout, tables.text, target)
    model = train_on(frame, tables.text, target, maker)
    score = classification_scores(Predictions(labels, [list(map(str, model.predict(texts)))]))[0]
    return score.value, score.low, score.high


def _with_epsilon(config: RunConfig, epsilon: float) -> RunConfig:
    return replace(config, privacy=replace(config.privacy, target_epsilon=epsilon))


def _fidelity(
    tables: Tables, run: FinishedRun | None, embeddings: SentenceEncoder, progress: Progress
) -> tuple[list[Measured], list[Any]]:
    progress.say("comparing the twin's texts with real ones")
    public = None
    if run is not None:
        base = load_base(run.config.training.base_model, say=progress.say)
        public = base.model, base.tokenizer
    return fidelity(
        tables.twin,
        tables.train,
        tables.heldout,
        tables.text,
        tables.attributes,
        embeddings,
        seed=0,
        progress=progress,
        public_model=public,
    )
