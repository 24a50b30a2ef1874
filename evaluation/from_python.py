"""What `Twinset.evaluate` and `audit` call: a twin in memory, and the scores as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from evaluation.evaluate import EvaluationRequest
from evaluation.evaluate import evaluate as measure
from evaluation.findings import Findings
from evaluation.leakage.release_audit import AuditRequest, audit_release
from evaluation.release import FinishedRun, Release, Twin, public_rows
from evaluation.utility.classifiers import CLASSIFIERS
from twinset.progress import Progress
from twinset.run.request import Source
from twinset.run.run_folder import SETTINGS
from twinset.sampling.twin_model import TwinModel
from twinset.table.columns import with_joined_text
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame, write_frame
from twinset.table.schema import Schema


def evaluate(
    model: TwinModel,
    made_from: Source | Path | None,
    twin: pd.DataFrame,
    train: pd.DataFrame | str | Path,
    test: pd.DataFrame | str | Path,
    progress: Progress,
    *,
    classifiers: Sequence[str] | None = None,
    seeds: int = 1,
    exclude_overlap: bool = False,
    embedded: bool = True,
) -> pd.DataFrame:
    """Return the scores of a twin that a model wrote; see `twinset.Twinset.evaluate`.

    Args:
        model: that wrote it.
        made_from: what the model was fitted to, or a folder that may be its run's.
        twin: see `twinset.Twinset.evaluate`, as for all that follows.
        train: the private table.
        test: other real rows.
        progress: is notified of what happens.
        classifiers: their names.
        seeds: times each is trained.
        exclude_overlap: whether rows of both tables are left out.
        embedded: whether texts are compared by embeddings.
    """
    schema = model.schema
    # The commands' own code reads files. The folder can be read by its owner alone.
    with TemporaryDirectory() as folder:
        request = EvaluationRequest(
            _write_real(train, Path(folder, "train.parquet"), schema, made_from),
            _write_real(test, Path(folder, "test.parquet"), schema, made_from),
            schema.text,
            tuple(attribute.name for attribute in schema.attributes),
            tuple(classifiers or CLASSIFIERS),
            seeds=seeds,
            exclude_overlap=exclude_overlap,
            embedded=embedded,
        )
        release = _release(model, twin, Path(folder))
        return scores_of(measure(release, request, "Twinset.evaluate", progress))


def audit(
    model: TwinModel,
    made_from: Source | Path | None,
    twin: pd.DataFrame,
    members: pd.DataFrame | str | Path,
    non_members: pd.DataFrame | str | Path,
    progress: Progress,
    *,
    rows: int,
) -> pd.DataFrame:
    """Return what attacks on a model and a twin of its find; see `twinset.Twinset.audit`."""
    schema = model.schema
    with TemporaryDirectory() as folder:  # its owner's alone
        request = AuditRequest(
            _write_real(members, Path(folder, "members.parquet"), schema, made_from),
            _write_real(non_members, Path(folder, "non-members.parquet"), schema, made_from),
            schema.text,
            tuple(attribute.name for attribute in schema.attributes),
            rows,
        )
        release = _release(model, twin, Path(folder))
        return scores_of(audit_release(release, request, "Twinset.audit", progress, model))


def _release(model: TwinModel, twin: pd.DataFrame, folder: Path) -> Release:
    claim, path = model.guarantee, folder / "twin.parquet"
    write_frame(twin, path)
    made = Twin(twin, claim.epsilon, claim.delta, claim.sentence, unit=claim.unit)
    return Release(path, path, made, None, str(model.model.device))


def scores_of(findings: Findings) -> pd.DataFrame:
    """Return a row for each score: what it measures, of which rows, its value and interval."""
    rows = [{"question": m.question, **asdict(m.score), **m.place} for m in findings.measured]
    return pd.DataFrame(rows)


def _write_real(
    table: pd.DataFrame | str | Path, path: Path, schema: Schema, made_from: Source | Path | None
) -> Path:
    """Return a file of real rows with text and labels as the fitted table's rows got them."""
    # By which rules rows got their labels, and how the table was read.
    rules, reading = LabelRules(), dict[str, str | None]()
    if isinstance(made_from, Source):
        rules, reading = made_from.labels.settled(schema, {}), dict(made_from.reading)
    elif made_from is not None and (made_from / "internal" / SETTINGS).is_file():
        run = FinishedRun.read(made_from)
        rules, reading = run.labels, dict(run.reading)
    if not isinstance(table, pd.DataFrame):
        if not rules.changes_rows and reading.get("text") in (None, schema.text):
            return Path(table)
        table = read_frame(table)
    names = [attribute.name for attribute in schema.attributes]
    table, _, _ = with_joined_text(table, reading.get("text"), names)
    write_frame(public_rows(table, schema, rules), path)
    return path
