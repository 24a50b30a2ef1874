"""Is a twin useful, is it faithful? `twinset evaluate`: tables in, findings out.

Everything found is computed on private rows, but for what is marked "release alone", and stays
with their owner: it goes to the run's `internal/`, never to `share/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.baseline import untrained_twin
from evaluation.classifiers import CLASSIFIERS, Classifier, make_classifiers, make_rivals
from evaluation.embeddings import SentenceEncoder
from evaluation.epsiloncurve import epsilon_curves
from evaluation.fidelity import fidelity
from evaluation.findings import Findings, Histogram, Measured
from evaluation.fitting import Budget
from evaluation.release import FinishedRun, Release
from evaluation.tables import Tables, check_tables, without_overlap
from evaluation.twins import Twin, rows_per_label
from evaluation.usefulness import Usefulness
from evaluation.utility import targets
from twinset.basemodel import load_base
from twinset.columns import check_table, choose_columns
from twinset.errors import InputError
from twinset.formats import read_frame, write_frame
from twinset.precision import frozen_dtype
from twinset.privacy.ledger import UNIT
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
        embedded: whether texts are compared by embeddings too, which takes the asset `minilm`.
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
    embedded: bool = True


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


def evaluate(
    release: Release,
    wanted: Wanted,
    command: str,
    progress: Progress,
    keep: Callable[[Findings], object] = lambda findings: None,
) -> Findings:
    """Measure use and fidelity.

    Args:
        release: a twin, with its run folder where there is one.
        wanted: what it is measured against.
        command: that leads here.
        progress: is told what happens.
        keep: is given what is found, after each part: nothing is lost where the next one fails.

    Raises:
        InputError: a table cannot be used.
    """
    embeddings = SentenceEncoder(progress.say)
    makers = make_classifiers(wanted.classifiers, progress.say, wanted.encoder, embeddings)
    run, twin = release.run, release.twin
    if wanted.sweep and run is None:
        raise InputError("--sweep-epsilon trains as a run did; name the run with --run")
    if "encoder" in makers:
        makers["encoder"](0).check()
    tables, notes = _tables(release, wanted)
    public = _public_model(run, notes, progress)
    rivals = _rivals(twin, wanted, embeddings, progress)
    notes += [*check_tables(tables), *_about_rivals(twin, rivals, tables)]
    notes += [] if wanted.embedded else ["texts were not compared by embeddings"]
    for note in notes:
        progress.warn(note)
    if run is not None and tables.baseline is None:
        tables = replace(tables, baseline=_baseline(run, twin.frame, progress))
    about = release.about(command, wanted.train) | {"rows": tables.rows, "seeds": wanted.seeds}
    usefulness = Usefulness(tables, makers, range(wanted.seeds), progress, rivals)
    found = Findings("evaluation", about, tuple(usefulness.measured()), notes=tuple(notes))
    keep(found)
    found = replace(found, curves=tuple(usefulness.curves()))
    keep(found)
    if run is not None and wanted.sweep:
        swept = epsilon_curves(wanted.sweep, run, tables, makers, twin, progress)
        found = replace(found, curves=(*found.curves, *swept))
        keep(found)
    encoder = embeddings if wanted.embedded else None
    faithful, histograms = _fidelity(tables, public, encoder, progress)
    found = replace(found, measured=(*found.measured, *faithful), histograms=tuple(histograms))
    keep(found)
    return found


def _budget(twin: Twin) -> Budget | None:
    if twin.epsilon is None or twin.delta is None or twin.unit != UNIT:
        return None
    return Budget(twin.epsilon, twin.delta)


def _rivals(
    twin: Twin, wanted: Wanted, embeddings: SentenceEncoder, progress: Progress
) -> dict[str, Classifier]:
    """Return classifiers at the twin's budget; none where its ε is not that of whole records."""
    budget = _budget(twin)
    if budget is None:
        return {}

    def count(done: int, total: int) -> None:
        progress.count("private steps", done, total)

    names, encoder = wanted.classifiers, wanted.encoder
    return make_rivals(names, budget, progress.say, encoder, embeddings, count)


def _about_rivals(twin: Twin, rivals: Mapping[str, Classifier], tables: Tables) -> Iterator[str]:
    """Tell what is not seen in the figures of a DP classifier."""
    if _budget(twin) is None:
        yield "no DP classifier on the real rows: the twin has no ε for whole records to share"
    elif rivals and len(tables.attributes) > 1:
        yield (
            f"each DP classifier on the real rows spends the twin's whole ε on one target: all "
            f"{len(targets(tables.attributes))} together spend that many times as much"
        )


def _public_model(
    run: FinishedRun | None, notes: list[str], progress: Progress
) -> tuple[Any, Any] | None:
    """Return the run's base model, which judges how plain texts are."""
    if run is None:
        notes.append("no run folder (--run): no rows of the base model, and no perplexity")
        return None
    try:
        base = load_base(run.config.training.base_model, say=progress.say)
    except InputError as error:
        notes.append(f"no perplexity: {error}")
        return None
    return base.model, base.tokenizer


def _tables(release: Release, wanted: Wanted) -> tuple[Tables, list[str]]:
    train, heldout = read_frame(wanted.train), read_frame(wanted.test)
    notes: list[str] = []
    text, attributes = release.columns(wanted.text, wanted.attributes, notes)
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


def _fidelity(
    tables: Tables,
    public: tuple[Any, Any] | None,
    embeddings: SentenceEncoder | None,
    progress: Progress,
) -> tuple[list[Measured], list[Histogram]]:
    progress.say("comparing the twin's texts with real ones")
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
