"""Where findings are kept, and how they are shown. Never under `share/`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evaluation.commands.findings_table import FindingsTable
from evaluation.findings import Findings
from evaluation.release import FinishedRun, Release
from twinset.commandline.common import show
from twinset.errors import InputError
from twinset.release.share import PRIVACY

SHARE = "share"
WHY = (
    "Computed from the twin and its model alone, these numbers are post-processing of what is "
    "differentially private, and cost no further privacy. All others were computed on private rows."
)
NOT_PRIVATE = "this twin has no guarantee, so nothing measured of it may be published"


def place_of(run: FinishedRun | None, output: Path | None, name: str) -> Path | None:
    """Return the file that findings go to: `output`, the run's own, or none.

    Raises:
        InputError: that of `check_output`.
    """
    if output is None:
        return None if run is None else run.internal / name
    check_output(output)
    return output


def check_output(output: Path) -> None:
    """Refuse a file that findings must not go to.

    Raises:
        InputError: the place is meant for others, there is no such folder, or something else lies
            there.
    """
    if (output.resolve().parent / PRIVACY).exists() or output.resolve().parent.name == SHARE:
        raise InputError(f"--output {output}: share/ is for others, and these figures are not")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: its folder does not exist; create it")
    if output.exists():
        _check_replaceable(output)


def _check_replaceable(output: Path) -> None:
    try:
        Findings.load(output)
    except InputError:
        raise InputError(
            f"--output {output}: exists and holds no findings; name another file"
        ) from None


def check_publishable(release: Release) -> None:
    """Refuse to name numbers for others where the twin itself is not for others.

    Raises:
        InputError: there is no guarantee.
    """
    if release.twin.epsilon is None:
        raise InputError(NOT_PRIVATE)


def show_findings(findings: Findings, as_json: bool) -> None:
    """Print findings."""
    from rich.console import Console

    if as_json:
        show(findings.to_dict(), (), as_json)
    else:
        Console(highlight=False).print(FindingsTable(findings))


def show_place(place: Path | None) -> None:
    """Say where findings are kept, if they are."""
    from rich.console import Console

    if place is not None:
        said = Console(stderr=True, highlight=False, markup=False)
        said.print(f"kept in {place}", soft_wrap=True)


def show_publishable(findings: Findings, as_json: bool) -> None:
    """Print the numbers that may be published, and why these."""
    found = replace(findings, measured=tuple(findings.publishable()))
    lines = (f"{m.score.name}, {', '.join(m.place.values())}: {m.score}" for m in found.measured)
    plain = {"measured": found.to_dict()["measured"], "why": WHY}
    sentence = str(findings.about["guarantee"])
    show(plain | {"guarantee": sentence}, (*lines, WHY, sentence), as_json)
