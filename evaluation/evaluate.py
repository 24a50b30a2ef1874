"""Is a twin useful, and is it faithful? Tables in, findings out.

`evaluate` is `twinset evaluate`. `judge_finished_run` is a run's own verdict on its twin, in five
lines. `evaluate_frames` and `audit_frames` are called by `Twinset.evaluate` and `audit`. All
findings are computed on private rows, except those marked "release alone". They stay with their
owner: they go to the run's `internal/`, never to `share/`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from twinset.bounds import check_options, setting
from twinset.errors import InputError
from twinset.files.turns import in_turn
from twinset.models.base_model import load_base
from twinset.models.device import AUTO
from twinset.privacy.statement.theorems import UNIT
from twinset.progress import Progress
from twinset.run.request import Source
from twinset.run.run_folder import HELD_OUT as HELD_OUT_FILE
from twinset.run.run_folder import SETTINGS
from twinset.sampling.allocation import proportional
from twinset.sampling.twin_model import TwinModel
from twinset.table.choose import choose_columns
from twinset.table.columns import facts_of
from twinset.table.labels import LabelRules
from twinset.table.read import STDIN, UNNAMED, read_frame, write_frame
from twinset.table.records import with_joined_text

from .fidelity.measures import fidelity
from .findings import FIRST, RUNS, Findings
from .leakage.audits import AuditRequest, audit_release
from .leakage.copies import overlap
from .leakage.membership import column_attacks, model_attacks, text_attacks
from .leakage.roc import draw_sides, separation
from .policy_runs import BASELINE_FILE, write_untrained_twin
from .release import (
    AS_THEY_ARE,
    HELD_OUT,
    REAL,
    FinishedRun,
    Forms,
    Release,
    Tables,
    Twin,
    check_tables,
    forms_of,
    normalised,
    public_records,
    read_labels,
    records_to_frame,
    rows_per_label,
    split_held_out,
    take_records,
)
from .report.verdicts import judge, judge_hand_over
from .utility.classifiers import CLASSIFIERS, Budget, SentenceEncoder, make_classifiers
from .utility.usefulness import Usefulness, targets

FILE = "evaluation.json"
BASELINE_ROWS = 1_000  # writing 4,778 rows, the number of a twin, took 38 of 45 minutes
MOST, ATTACKED = 5_000, 200  # rows of each table, and members, in a first verdict
QUICK = "quick measures at the run’s end: `twinset evaluate` and `twinset audit` take all of them"
Origin: TypeAlias = Source | Path | None  # the fitted table, or the model's folder


@dataclass(frozen=True)
class EvaluationRequest:
    """What is evaluated, and with which rows."""

    train: Path  # the private table it was made from
    test: Path  # real rows held out
    # Text column, or the template by which it was joined. None: the run's, or a guess.
    text: str | None = None
    forms: Forms = AS_THEY_ARE  # how the files of real rows are read
    attributes: tuple[str, ...] = ()  # label columns. Empty: the run's, or a guess.
    classifiers: tuple[str, ...] = CLASSIFIERS  # names in `classifiers`
    encoder: str | None = None  # the model that the classifier `encoder` fine-tunes. None: MiniLM
    seeds: int = setting(1, bounds=RUNS)  # how many times each classifier is trained
    # Rows made without private data. None: made here once, if there is a run. Their number is the
    # twin's, but at most `BASELINE_ROWS`
    baseline: Path | None = None
    non_private: Path | None = None  # rows of a model trained without noise
    sweep: tuple[float, ...] = ()  # further ε, a twin of each is trained and scored
    exclude_overlap: bool = False  # leave out held-out rows that are training rows too
    # Whether texts are compared by embeddings too, which takes the asset `minilm`
    embedded: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_options(self)


def evaluate(
    release: Release,
    request: EvaluationRequest,
    command: str,
    progress: Progress,
    keep: Callable[[Findings], object] = lambda findings: None,
) -> Findings:
    """Measure use and fidelity: scores, curves and histograms, and notes that a reader must see.

    `keep` gets the findings after each part, so that nothing is lost if the next one fails.
    """
    embeddings = SentenceEncoder(progress.say, release.device)
    makers = make_classifiers(request.classifiers, progress.say, request.encoder, embeddings)
    run, twin = release.run, release.twin
    if request.sweep and run is None:
        raise InputError("`sweep_epsilon` trains like a run. Name the run with `run`.")
    if "encoder" in makers:
        makers["encoder"](0).load()  # a wrong name is found now and not after an hour
    tables, notes = _read_tables(release, request)
    public_model = None  # judges how plain texts are
    if run is None:
        notes.append("no rows of the base model and no perplexity without a run folder (`run`)")
    else:
        training, device = run.config.training, run.config.speed.device
        try:
            base = load_base(training.base_model, device=device, say=progress.say)
            public_model = base.model, base.tokenizer
        except InputError as error:
            notes.append(f"no perplexity: {error}")
    # Classifiers that learn from real rows with the twin's own budget. An ε of flagged spans alone
    # can't be compared with it.
    dp_classifiers = {}
    has_budget = twin.epsilon is not None and twin.delta is not None and twin.unit == UNIT
    if has_budget:
        budget = Budget(float(twin.epsilon or 0), float(twin.delta or 0))
        given = request.classifiers, progress.say, request.encoder, embeddings
        dp_classifiers = make_classifiers(*given, budget, partial(progress.count, "private steps"))
    notes += check_tables(tables)
    if not has_budget:
        notes.append(
            "no DP classifier on the real rows, because the twin has no ε for whole records"
        )
    elif dp_classifiers and len(tables.attributes) > 1:
        notes.append(
            "each DP classifier on the real rows spends the twin's whole ε on one target. All "
            f"{len(targets(tables.attributes))} together spend that many times more."
        )
    if not request.embedded:
        notes.append("texts were not compared by embeddings")
    if run is not None and tables.baseline is None:
        # Rows in the twin's proportions of labels, made without private data. They are made once.
        path, of_twin = run.internal / BASELINE_FILE, rows_per_label(twin.frame, run.schema)
        counts = proportional(of_twin, min(len(twin.frame), BASELINE_ROWS))
        baseline = read_frame(path) if path.is_file() else None
        if baseline is None or rows_per_label(baseline, run.schema) not in (counts, of_twin):
            many = sum(counts.values())
            progress.say(f"writing {many} rows with the base model, without private data")
            baseline = write_untrained_twin(run.config, run.schema, run.template, counts, progress)
            write_frame(baseline, path)
        tables = replace(tables, baseline=baseline)
    named = {REAL: tables.train, HELD_OUT: tables.heldout, **tables.written}
    rows = {name: len(frame) for name, frame in named.items()}
    about = release.about(command, request.train) | {"rows": rows, "seeds": request.seeds}
    usefulness = Usefulness(tables, makers, range(request.seeds), progress, dp_classifiers)
    found = Findings("evaluation", about, tuple(usefulness.measured()), notes=tuple(notes))
    keep(found)  # classifiers may take an hour, so the results so far are saved
    found = replace(found, curves=tuple(usefulness.curves()))
    keep(found)
    if run is not None and request.sweep:
        by_epsilon = usefulness.curves_by_epsilon(request.sweep, run, twin)
        found = replace(found, curves=(*found.curves, *by_epsilon))
        keep(found)
    progress.say("comparing the twin's texts with real ones")
    encode = embeddings.encode if request.embedded else None
    faithful, histograms = fidelity(
        tables, encode, seed=0, progress=progress, public_model=public_model
    )
    if not twin.is_of_whole_records:
        # Then measures of the twin alone are as private as its table.
        faithful = [replace(m, score=replace(m.score, where="private rows")) for m in faithful]
    found = replace(found, measured=(*found.measured, *faithful), histograms=tuple(histograms))
    keep(found)
    return found


def _read_tables(release: Release, request: EvaluationRequest) -> tuple[Tables, list[str]]:
    """Return the tables and notes on them. A table that cannot be used is refused."""
    notes: list[str] = []
    paths = request.train, request.test
    (train, heldout), text, attributes = release.real_tables(paths, request, notes)
    if heldout[text].tolist() == train[text].tolist():
        raise InputError("`test` is the training table. Name other rows.")
    # A held-out row that was trained on flatters whatever learned it by heart.
    is_known = heldout[text].map(normalised).isin(set(map(normalised, train[text])))
    overlapping = int(is_known.sum())
    if overlapping and request.exclude_overlap:
        notes.append(
            f"{overlapping} held-out rows were left out, because their texts are training texts"
        )
        heldout = heldout[~is_known].reset_index(drop=True)
    elif overlapping:
        notes.append(
            f"{overlapping} held-out rows are training rows too, so the scores are too good. "
            "`exclude_overlap=True` leaves them out."
        )
    others = request.baseline, request.non_private
    baseline, non_private = [None if path is None else read_frame(path) for path in others]
    frames = train, heldout, release.twin.frame
    # Declared labels may have no real row. Without the schema they would look like mistakes.
    known = None if release.run is None else release.run.schema
    return Tables(*frames, text, tuple(attributes), baseline, non_private, known), notes


def judge_finished_run(
    run: Path, source: Source, progress: Progress, device: str = AUTO
) -> list[str]:
    """Judge a twin by quick measures on the held-out rows, in five lines.

    The rules are those of the report, and the scores are kept for it. The lines are for the owner
    alone. Without held-out rows, they say how to get a verdict. A private table that cannot be read
    again is refused.
    """
    is_read_once = str(source.data) == STDIN
    table, folder = UNNAMED if is_read_once else shlex.quote(source.name), shlex.quote(str(run))
    # Commands are pasted, so each has a line of its own, which is not broken.
    evaluate_it = f"  twinset evaluate {folder} --train {table}"
    if not (run / "internal" / HELD_OUT_FILE).is_file():
        return [
            "No rows were held out to judge the twin. Next time, `hold_out=0.2` keeps some back. "
            "With other real rows, this measures it now:",
            f"{evaluate_it} --test OTHERS",
        ]
    next_up = f"{'What next?':<22}All measures, all attacks, and one page with both:"
    audit_it, report_it = (
        f"  twinset audit {folder} --members {table}",
        f"  twinset report {folder}",
    )
    following = [next_up, evaluate_it, audit_it, report_it]
    if is_read_once:
        once = "No verdict: standard input can be read only once. To get one, save the table as"
        return [f"{once} {table}.", *following]
    rng = np.random.default_rng(0)
    source = replace(source, labels=FinishedRun.read(run).labels)  # those that became public
    trained, held = (
        take_records(records, np.sort(rng.permutation(len(records))[:MOST]))
        for records in split_held_out(run, source)
    )
    release = Release.read(run, device=device)
    schema, twin = trained.schema, release.twin.frame
    twin = twin.sample(min(MOST, len(twin)), random_state=0)
    names = tuple(attribute.name for attribute in schema.attributes)
    tables = Tables(records_to_frame(trained), records_to_frame(held), twin, schema.text, names)
    progress.say("judging the twin with the rows held out: quick measures")
    # No text of the base model here: writing it takes longer than all the rest.
    found = [*Usefulness(tables, make_classifiers(["tfidf"]), [0], progress).measured()]
    use = judge("utility", found)
    compared, drawn = fidelity(tables, None, seed=0, progress=progress)
    faithful = judge("fidelity", compared)
    model = TwinModel.load(run, device)
    texts = twin[schema.text].astype(str).tolist()
    tried = draw_sides(trained, held, ATTACKED, 0)
    attacks, _ = model_attacks(model, None, tried.members, tried.non_members, progress)
    attacks += text_attacks(texts, tried.members.texts, tried.non_members.texts, None, progress)
    shared = overlap(texts, trained.texts, held.texts, None, seed=0, progress=progress)
    of_columns, guessed = column_attacks(twin, tried.members, tried.non_members)
    judged = separation([*attacks, *of_columns], 0)[0]
    attacked = [*judged, *tried.measured, *shared, *guessed]
    leaks = judge("leakage", attacked)
    # The report judges by these until more is measured, so that it says the same.
    about = release.about("twinset generate", Path(source.name))
    for kind, scores, pictures in (
        ("evaluation", [*found, *compared], tuple(drawn)),
        ("audit", attacked, ()),
    ):
        quick = Findings(kind, about, tuple(scores), histograms=pictures, notes=(QUICK,))
        quick.save(run / "internal" / FIRST.format(kind))
    verdicts = use, faithful, leaks, judge_hand_over(model.guarantee, use, leaks)
    lines = [f"{v.question:<22}{v.answer}: {v.line}" for v in verdicts]
    return [*lines, *following, "Computed on private rows. Keep the first four lines to yourself."]


@in_turn
def evaluate_frames(
    model: TwinModel,
    made_from: Origin,
    twin: Any,
    train: Any,
    test: Any,
    progress: Progress,
    *,
    classifiers: Sequence[str] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Return the scores of a model's twin, one per row. See `twinset.Twinset.evaluate`."""
    with TemporaryDirectory() as folder:  # the commands' own code reads files
        tables = {"twin": twin, "train": train, "test": test}
        release, real = _write_files(Path(folder), model, made_from, tables, progress)
        request = EvaluationRequest(*real, tuple(classifiers or CLASSIFIERS), **options)
        return _list_scores(evaluate(release, request, "Twinset.evaluate", progress))


@in_turn
def audit_frames(
    model: TwinModel,
    made_from: Origin,
    twin: Any,
    members: Any,
    non_members: Any,
    progress: Progress,
    *,
    rows: int,
) -> pd.DataFrame:
    """Return the scores of attacks on a model and its twin. See `twinset.Twinset.audit`."""
    with TemporaryDirectory() as folder:
        tables = {"twin": twin, "members": members, "non_members": non_members}
        release, real = _write_files(Path(folder), model, made_from, tables, progress)
        request = AuditRequest(*real, rows)
        return _list_scores(audit_release(release, request, "Twinset.audit", progress, model))


def _write_files(
    folder: Path, model: TwinModel, made_from: Origin, tables: Mapping[str, Any], progress: Progress
) -> tuple[Release, tuple[Path, Path, str, Forms, tuple[str, ...]]]:
    """Return the release of a twin, and files of real rows with the model's text and labels.

    The tables are in any form that `fit` takes, the twin first. Only the owner can read the folder.
    """
    schema, claim = model.schema, model.guarantee
    names = tuple(attribute.name for attribute in schema.attributes)
    # By which rules rows got their labels, and how the table was read.
    rules, reading = LabelRules().settled(schema, {}), dict[str, str | None]()
    if isinstance(made_from, Source):
        rules, reading = made_from.labels.settled(schema, {}), dict(made_from.reading)
    elif made_from is not None and (made_from / "internal" / SETTINGS).is_file():
        run = FinishedRun.read(made_from)
        rules, reading = run.labels, dict(run.reading)
    frames: list[pd.DataFrame] = []
    data = [Source.of(each, None, (), None, None, 0.0, {}).data for each in tables.values()]
    files = [None if isinstance(each, pd.DataFrame) else each for each in data]
    forms: Sequence[Mapping[str, Any]] = {}, *forms_of(reading, *files[1:])
    for name, each, form in zip(tables, data, forms, strict=True):
        source = f"`{name}`"
        frame = each if isinstance(each, pd.DataFrame) else read_frame(each, **form)
        for note in facts_of(frame).notes:
            progress.say(f"{source}: {note}")
        if frames:
            frame, _, _ = with_joined_text(frame, reading.get("text"), list(names), source)
            records = public_records(frame, schema, rules, source, progress.say)
            frame = records_to_frame(records)
        else:
            choose_columns(frame, schema.text, list(names), source, [])
            frame = read_labels(frame, schema, source)
        frames.append(frame)
        write_frame(frame, folder / f"{name}.parquet")
    path, known, others = (folder / f"{name}.parquet" for name in tables)
    made = Twin(frames[0], claim.epsilon, claim.delta, claim.sentence, unit=claim.unit)
    release = Release(path, path, made, None, str(model.model.device))
    return release, (known, others, schema.text, AS_THEY_ARE, names)


def _list_scores(findings: Findings) -> pd.DataFrame:
    """Return a row for each score: its measure, the rows it is for, its value and interval."""
    rows = [{"question": m.question, **asdict(m.score), **m.place} for m in findings.measured]
    return pd.DataFrame(rows)
