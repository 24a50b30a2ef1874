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
from evaluation.release import Release
from evaluation.twins import Twin
from evaluation.utility.classifiers import CLASSIFIERS
from twinset.data.formats import write_frame
from twinset.progress import Progress
from twinset.sampling.twin_model import TwinModel


def evaluate(
    model: TwinModel,
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
    """Return the scores of a twin that a model wrote; see `twinset.Twinset.evaluate`."""
    schema = model.schema
    with TemporaryDirectory() as folder:  # its owner's alone
        request = EvaluationRequest(
            _file(train, Path(folder, "train.parquet")),
            _file(test, Path(folder, "test.parquet")),
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
            _file(members, Path(folder, "members.parquet")),
            _file(non_members, Path(folder, "non-members.parquet")),
            schema.text,
            tuple(attribute.name for attribute in schema.attributes),
            rows,
        )
        release = _release(model, twin, Path(folder))
        return scores_of(audit_release(release, request, "Twinset.audit", progress, model))


def _release(model: TwinModel, twin: pd.DataFrame, folder: Path) -> Release:
    claim, path = model.guarantee, _file(twin, folder / "twin.parquet")
    made = Twin(twin, claim.epsilon, claim.delta, claim.sentence, unit=claim.unit)
    return Release(path, path, made, None, str(model.model.device))


def scores_of(findings: Findings) -> pd.DataFrame:
    """Return a row for each score: what it measures, of which rows, its value and interval."""
    rows = [{"question": m.question, **asdict(m.score), **m.place} for m in findings.measured]
    return pd.DataFrame(rows)


def _file(table: pd.DataFrame | str | Path, path: Path) -> Path:
    """Return a table's file; one in memory is written to `path`."""
    if not isinstance(table, pd.DataFrame):
        return Path(table)
    write_frame(table, path)
    return path
