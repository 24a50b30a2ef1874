"""Where findings are kept, and how they are shown. Never under `share/`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from evaluation.findings import Findings
from evaluation.findingstable import FindingsTable
from evaluation.release import FinishedRun
from twinset.commandline import show
from twinset.errors import InputError

WHY = (
    "Computed from the twin and its model alone, these numbers are post-processing of what is "
    "differentially private, and cost no further privacy. All others were computed on private rows."
)
NOT_PRIVATE = "this twin has no guarantee, so nothing measured of it may be published"


def place_of(run: FinishedRun | None, output: Path | None, name: str) -> Path | None:
    """Return the file that findings go to: `output`, the run's own, or none.

    Raises:
        InputError: the place is meant for others, or there is no such folder.
    """
    if output is None:
        return None if run is None else run.internal / name
    if "share" in output.resolve().parts[:-1]:
        raise InputError(f"--output {output}: share/ is for others, and these figures are not")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist; create it")
    return output


def show_findings(findings: Findings, place: Path | None, publishable: bool, as_json: bool) -> None:
    """Print findings, and where they are kept."""
    from rich.console import Console

    if publishable:
        _show_publishable(findings, as_json)
    elif as_json:
        show(findings.to_dict(), (), as_json)
    else:
        Console(highlight=False).print(FindingsTable(findings))
    if place is not None:
        Console(stderr=True, highlight=False).print(f"kept in {place}", soft_wrap=True)


def _show_publishable(findings: Findings, as_json: bool) -> None:
    if findings.about.get("epsilon") is None:
        raise InputError(NOT_PRIVATE)
    found = findings.publishable()
    lines = (f"{m.score.name}, {', '.join(m.place.values())}: {m.score}" for m in found)
    show({"measured": [asdict(m) for m in found], "why": WHY}, (*lines, WHY), as_json)
