"""Is a twin useful, is it faithful? `twinset evaluate`: tables in, findings out.

Everything found is computed on private rows, except what is marked "release alone". It stays with
their owner: it goes to the run's `internal/`, never to `share/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.fidelity import fidelity
from evaluation.findings import RUNS, Findings
from evaluation.policy_runs import BASELINE_FILE, write_untrained_twin
from evaluation.release import (
    FinishedRun,
    Release,
    Tables,
    check_tables,
    rows_per_label,
    without_overlap,
)
from evaluation.utility.classification import targets
from evaluation.utility.classifiers import (
    CLASSIFIERS,
    SentenceEncoder,
    make_classifiers,
    make_dp_classifiers,
)
from evaluation.utility.dp_classifiers import Budget
from evaluation.utility.usefulness import Usefulness, train_twins_by_epsilon
from twinset.bounds import bounds_in, check_options, within
from twinset.config import PrivacyConfig
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.privacy.statement.theorems import UNIT
from twinset.progress import Progress
from twinset.sampling.allocation import proportional
from twinset.table.columns import check_table, choose_columns, with_joined_text
from twinset.table.read import read_frame, reading_notes, write_frame
from twinset.table.text_files import Layout

FILE = "evaluation.json"
BASELINE_ROWS = 1_000  # as many as a twin of 4,778 has took 38 of 45 minutes


@dataclass(frozen=True)
class EvaluationRequest:
    """What is evaluated, against what.

    Args:
        train: the private table it was made from.
        test: real rows held out.
        text: text column, or the template by which it was joined; None: the run's, or a guess.
        attributes: label columns; empty: the run's, or a guess.
        classifiers: names in `classifiers`.
        encoder: what the classifier `encoder` fine-tunes; None is MiniLM.
        seeds: how many times each classifier is trained.
        baseline: rows made without private data; None: made here, once, where there is a run: as
            many as the twin has, but no more than `BASELINE_ROWS`.
        non_private: rows of a model trained without noise.
        sweep: further ε, a twin of each is trained and scored.
        exclude_overlap: leave out held-out rows that are training rows too.
        embedded: whether texts are compared by embeddings too, which takes the asset `minilm`.
        layout: of the files of real rows, where it is not to be detected.
    """

    train: Path
    test: Path
    text: str | None = None
    attributes: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = CLASSIFIERS
    encoder: str | None = None
    seeds: int = within(1, RUNS)
    baseline: Path | None = None
    non_private: Path | None = None
    sweep: tuple[float, ...] = ()
    exclude_overlap: bool = False
    embedded: bool = True
    layout: Layout = Layout()

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_options(self)


def budgets(text: str | None) -> tuple[float, ...]:
    """Return the ε of "1,2,4".

    Raises:
        InputError: something is no positive number.
    """
    try:
        found = tuple(float(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        found = (0.0,)
    bounds = bounds_in(PrivacyConfig)["epsilon"]
    if not all(epsilon in bounds for epsilon in found):
        raise InputError(f"`sweep_epsilon` takes numbers {bounds} with commas between: 1,2,4")
    return found


def evaluate(
    release: Release,
    request: EvaluationRequest,
    command: str,
    progress: Progress,
    keep: Callable[[Findings], object] = lambda findings: None,
) -> Findings:
    """Measure use and fidelity.

    Args:
        release: a twin, with its run folder where there is one.
        request: what it is measured against.
        command: that leads here.
        progress: is notified of what happens.
        keep: is given what is found after each part, so that nothing is lost if the next one fails.

    Returns:
        Scores, curves and histograms, and notes that a reader must see.

    Raises:
        InputError: a table cannot be used.
    """
    embeddings = SentenceEncoder(progress.say, release.device)
    makers = make_classifiers(request.classifiers, progress.say, request.encoder, embeddings)
    run, twin = release.run, release.twin
    if request.sweep and run is None:
        raise InputError("`sweep_epsilon` trains as a run did; name the run with `run`")
    if "encoder" in makers:
        makers["encoder"](0).load()  # a wrong name is found now and not after an hour
    tables, notes = _read_tables(release, request)
    public_model = _load_public_model(run, notes, progress)
    # Classifiers that learn from real rows with the twin's own budget. An ε of flagged spans alone
    # can't be compared with it.
    dp_classifiers = {}
    has_budget = twin.epsilon is not None and twin.delta is not None and twin.unit == UNIT
    if has_budget:
        budget = Budget(float(twin.epsilon or 0), float(twin.delta or 0))
        count = partial(progress.count, "private steps")
        names, encoder = request.classifiers, request.encoder
        dp_classifiers = make_dp_classifiers(
            names, budget, progress.say, encoder, embeddings, count
        )
    notes += check_tables(tables)
    if not has_budget:
        notes.append(
            "no DP classifier on the real rows: the twin has no ε for whole records to share"
        )
    elif dp_classifiers and len(tables.attributes) > 1:
        notes.append(
            f"each DP classifier on the real rows spends the twin's whole ε on one target: all "
            f"{len(targets(tables.attributes))} together spend that many times as much"
        )
    notes += [] if request.embedded else ["texts were not compared by embeddings"]
    if run is not None and tables.baseline is None:
        tables = replace(tables, baseline=_read_baseline(run, twin.frame, progress))
    about = release.about(command, request.train) | {"rows": tables.rows, "seeds": request.seeds}
    usefulness = Usefulness(tables, makers, range(request.seeds), progress, dp_classifiers)
    found = Findings("evaluation", about, tuple(usefulness.measured()), notes=tuple(notes))
    keep(found)  # classifiers may take an hour: what is measured so far is on the disk
    found = replace(found, curves=tuple(usefulness.curves()))
    keep(found)
    if run is not None and request.sweep:
        twins = train_twins_by_epsilon(request.sweep, run, tables, twin, progress)
        found = replace(found, curves=(*found.curves, *usefulness.by_epsilon(twins)))
        keep(found)
    progress.say("comparing the twin's texts with real ones")
    faithful, histograms = fidelity(
        tables,
        embeddings if request.embedded else None,
        seed=0,
        progress=progress,
        public_model=public_model,
    )
    if not twin.is_of_whole_records:  # then what a twin says of itself is as private as its table
        faithful = [replace(m, score=replace(m.score, where="private rows")) for m in faithful]
    found = replace(found, measured=(*found.measured, *faithful), histograms=tuple(histograms))
    keep(found)
    return found


def _load_public_model(
    run: FinishedRun | None, notes: list[str], progress: Progress
) -> tuple[Any, Any] | None:
    """Return the run's base model and tokenizer, which judge how plain texts are, or add a note."""
    if run is None:
        notes.append("no run folder (`run`): no rows of the base model, and no perplexity")
        return None
    try:
        device = run.config.speed.device
        base = load_base(run.config.training.base_model, device=device, say=progress.say)
    except InputError as error:
        notes.append(f"no perplexity: {error}")
        return None
    return base.model, base.tokenizer


def _read_tables(release: Release, request: EvaluationRequest) -> tuple[Tables, list[str]]:
    notes: list[str] = []
    real = [read_frame(path, layout=request.layout) for path in (request.train, request.test)]
    for path, frame in zip((request.train, request.test), real, strict=True):
        notes += [f"{path}: {note}" for note in reading_notes(frame)]
    (train, text, _), (heldout, _, _) = (
        with_joined_text(frame, request.text, list(frame)) for frame in real
    )
    text, attributes = release.columns(text, request.attributes, notes)
    for name, frame in (("`train`", train), ("`test`", heldout)):
        check_table(frame, name)
        choose_columns(frame, text, attributes, name, notes)
    if release.run is not None:
        train, heldout = release.run.public_rows(train), release.run.public_rows(heldout)
    # A held-out row that was trained on flatters whatever learned it by heart.
    rest, overlap = without_overlap(heldout, train, text)
    if heldout[text].tolist() == train[text].tolist():
        raise InputError("`test` is the training table itself; name other rows")
    if overlap and request.exclude_overlap:
        notes.append(f"{overlap} held-out rows were left out, for their texts are training texts")
        heldout = rest
    elif overlap:
        notes.append(
            f"{overlap} held-out rows are training rows too, and flatter whatever was trained "
            "on these; `exclude_overlap=True` leaves them out"
        )
    other = [None if p is None else read_frame(p) for p in (request.baseline, request.non_private)]
    # Declared labels may have no real row. Without the schema they would look like mistakes.
    known = release.run.schema if release.run is not None else None
    tables = Tables(train, heldout, release.twin.frame, text, tuple(attributes), *other)
    return replace(tables, schema=known), notes


def _read_baseline(run: FinishedRun, twin: pd.DataFrame, progress: Progress) -> pd.DataFrame:
    """Return rows in the twin's proportions of labels, made without private data. Made once."""
    path, of_twin = run.internal / BASELINE_FILE, rows_per_label(twin, run.schema)
    counts = proportional(of_twin, min(len(twin), BASELINE_ROWS))
    if path.is_file():
        known = read_frame(path)
        if rows_per_label(known, run.schema) in (counts, of_twin):
            return known
    rows = sum(counts.values())
    progress.say(f"writing {rows} rows with the base model, without private data")
    frame = write_untrained_twin(run.config, run.schema, run.template, counts, progress)
    write_frame(frame, path)
    return frame
