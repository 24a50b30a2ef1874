"""What a run folder holds that the page tells of. Reads files and judges nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from evaluation.findings import Findings, Measured, Question
from evaluation.policy_runs import BASELINE_FILE
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import sha256_file
from twinset.files.limits import read_text
from twinset.privacy.statement.ledger import Ledger
from twinset.release.run_format import LEDGER, check_file_format
from twinset.release.share import PRIVACY
from twinset.run.run_folder import SETTINGS
from twinset.table.read import format_of, read_frame

if TYPE_CHECKING:
    from pandas import DataFrame

Read = TypeVar("Read")
KINDS = ("evaluation", "audit", "canaries")


@dataclass(frozen=True)
class Run:
    """What is known of a run. Whatever is not there is None or empty.

    Args:
        name: of the folder.
        ledger: what was spent.
        steps: figures of each training step.
        noise: by parameter, the mean factor of what `uniform` draws.
        twin: its rows.
        base: what the base model wrote without private data, for the same labels.
        base_model: what the user called it.
        written: the day on which the twin was.
        findings: by kind, what was measured.
        stale: kinds that were measured on other rows than those that are there now.
    """

    name: str
    ledger: Ledger | None = None
    steps: tuple[dict[str, Any], ...] = ()
    noise: dict[str, float] = field(default_factory=dict)
    twin: DataFrame | None = None
    base: DataFrame | None = None
    base_model: str | None = None
    written: date | None = None
    findings: dict[str, Findings] = field(default_factory=dict)
    stale: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the findings."""
        return [note for findings in self.findings.values() for note in findings.notes]

    def measured(self, question: Question) -> list[Measured]:
        """Return the scores that help to answer a question."""
        return [m for findings in self.findings.values() for m in findings.of(question)]


def read_run(path: Path) -> Run:
    """Read a run folder.

    Raises:
        InputError: there is no such folder, or a file in it is not what it should be.
    """
    if not path.is_dir():
        raise InputError(f"{path}: no such run folder; give one that `twinset generate` made")
    for file in (path / "model" / LEDGER, path / "share" / PRIVACY):
        check_file_format(file)
    internal = path / "internal"
    files = {kind: internal / f"{kind}.json" for kind in KINDS}
    findings = {kind: Findings.load(file) for kind, file in files.items() if file.is_file()}
    twin = next((file for file in sorted(path.glob("share/twin.*")) if format_of(file)), None)
    base = internal / BASELINE_FILE
    digest = None if twin is None else sha256_file(twin)
    return Run(
        name=path.resolve().name,
        ledger=_read(path / "share" / PRIVACY, lambda t: Ledger.from_dict(json.loads(t)["ledger"])),
        steps=_read(internal / "metrics.jsonl", _steps) or (),
        noise=_read(internal / "noise.json", _noise) or {},
        twin=None if twin is None else read_frame(twin),
        base=read_frame(base) if base.is_file() else None,
        base_model=_read(internal / SETTINGS, _base_model),
        written=None if twin is None else date.fromtimestamp(twin.stat().st_mtime),
        findings=findings,
        stale=tuple(
            kind
            for kind, found in findings.items()
            if digest and found.about.get("twin_sha256", digest) != digest
        ),
    )


def _read(path: Path, parse: Callable[[str], Read]) -> Read | None:
    if not path.is_file():
        return None
    try:
        return parse(read_text(path))
    except DAMAGED as error:
        raise InputError(
            f"{path}: is damaged ({type(error).__name__}); restore it, or take it away"
        ) from error


def _base_model(text: str) -> str:
    return str(json.loads(text)["training"]["base_model"])


def _steps(text: str) -> tuple[dict[str, Any], ...]:
    return tuple(dict(json.loads(line)) for line in text.splitlines() if line.strip())


def _noise(text: str) -> dict[str, float]:
    return {name: float(factor) for name, factor in json.loads(text).items()}
