"""Where findings are kept, and how the terminal shows them. Never under `share/`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.findings import (
    OWNER_ONLY,
    Findings,
    Measured,
    Question,
    Score,
    check_private_place,
)
from evaluation.release import FinishedRun, Release
from twinset.commandline.common import show
from twinset.commandline.entry_point import with_flags
from twinset.errors import InputError
from twinset.files.atomic import write_text
from twinset.files.limits import read_text
from twinset.privacy.statement.wording import paragraphs

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

WHY = (
    "Computed from the twin and its model alone, these numbers are post-processing of what is "
    "differentially private, and cost no further privacy. All others were computed on private rows."
)
NOT_PRIVATE = (
    "this twin has no guarantee of whole records, so nothing measured of it may be published"
)
TITLES: dict[Question, str] = {
    "utility": "Is it useful? Classifiers tested on real held-out rows",
    "fidelity": "Is it faithful? The twin's texts beside a second real sample's",
    "leakage": "Does it leak?",
}
_ACROSS: dict[Question, str] = {  # the dimension of places that becomes columns
    "utility": "classifier",
    "fidelity": "rows",
    "leakage": "",
}
_LONG = ("method", "candidates")  # dimensions that only the JSON and the report show
_DETAIL = "value"  # a dimension for the report alone: F1 of each label
TOO_FEW = "too few rows"  # to say anything


def place_of(run: FinishedRun | None, output: Path | None, name: str) -> Path | None:
    """Return the file that findings go to: `output`, the run's own, or None.

    Raises:
        InputError: see `check_output`.
    """
    if output is None:
        return None if run is None else run.internal / name
    check_output(output)
    return output


def check_output(output: Path) -> None:
    """Refuse a file that findings must not go to.

    Raises:
        InputError: the place is meant for others, there is no such folder, or the file holds
            something else.
    """
    check_private_place(output)
    if not output.exists():
        return
    try:
        Findings.load(output)
    except InputError:
        raise InputError(
            f"`output={output}`: exists and holds no findings; name another file"
        ) from None


def check_publishable(release: Release) -> None:
    """Refuse to name numbers for others where the twin itself is not for others.

    Raises:
        InputError: there is no guarantee, or one of flagged spans alone.
    """
    if not release.twin.is_of_whole_records:
        raise InputError(NOT_PRIVATE)


def show_findings(findings: Findings, as_json: bool) -> None:
    """Print findings: notes, a short table for each question, and the verdict."""
    from rich.console import Console

    if as_json:
        show(findings.to_dict(), (), as_json)
    else:
        console = Console(highlight=False)
        for part in render_findings(findings):
            console.print(part)


def show_publishable(findings: Findings, as_json: bool) -> None:
    """Print the numbers that may be published, and why these."""
    found = replace(findings, measured=tuple(findings.publishable()))
    lines = (f"{m.score.name}, {', '.join(m.place.values())}: {m.score}" for m in found.measured)
    plain = {"measured": found.to_dict()["measured"], "why": WHY}
    sentence = str(findings.about["guarantee"])
    show(plain | {"guarantee": sentence}, (*lines, WHY, *paragraphs(sentence)), as_json)


def render_findings(findings: Findings) -> Iterator[Text | Table]:
    """Yield notes for the terminal, and for each question asked a short table and a conclusion."""
    from rich.text import Text

    from evaluation.report.verdicts import judge_fidelity, judge_leakage, judge_use

    judges = {"utility": judge_use, "fidelity": judge_fidelity, "leakage": judge_leakage}
    for note in findings.notes:
        yield Text(f"note: {with_flags(note)}")
    for question in TITLES:
        if found := [m for m in findings.of(question) if _DETAIL not in m.place]:
            yield _make_table(question, found)
            verdict = judges[question](findings.of(question))
            yield Text(f"{verdict.question} {verdict.answer}: {verdict.line}.\n", "bold")


def _make_table(question: Question, found: list[Measured]) -> Table:
    """Return a table of scores: a row for each measure and place, a column for what differs."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    across = _ACROSS[question]
    columns = list(dict.fromkeys(m.place.get(across, "") for m in found))
    cells: dict[tuple[str, ...], dict[str, Score]] = {}
    for m in found:
        place = (
            f"{value} {dimension}" if value.isdecimal() else value  # a number alone says nothing
            for dimension, value in m.place.items()
            if dimension not in (across, *_LONG)
        )
        cells.setdefault((m.score.name, *place), {})[m.place.get(across, "")] = m.score
    table = Table(title=TITLES[question], box=box.SIMPLE_HEAD, title_justify="left")
    table.pad_edge = False
    for name in ("measure", "of"):
        table.add_column(name)
    for name in columns:
        table.add_column(Text(name or "value"), justify="right", no_wrap=not across)
    for (name, *rest), row in cells.items():
        digits = (_format_short(row[column]) if column in row else "" for column in columns)
        table.add_row(*map(Text, (name, ", ".join(rest), *digits)))
    return table


def _format_short(score: Score) -> str:
    """Return "0.71 ±0.03", the longer half of the interval, or what is known without one."""
    half = max(score.high - score.value, score.value - score.low)
    if not math.isfinite(half):
        return f"{score.value:.2f} or more"
    # An interval as wide as a fifth of what is possible, to either side, says nothing.
    possible = score.maximum - score.minimum
    says_nothing = half >= possible / 5 if math.isfinite(possible) else half >= abs(score.value) > 0
    return TOO_FEW if says_nothing else f"{score.value:.2f} ±{half:.2f}"


class KeptFindings:
    """Findings in a file, written each time they grow. Earlier ones are kept under another name.

    Args:
        place: the file. None: findings are not kept.
    """

    def __init__(self, place: Path | None) -> None:
        self._place, self._has_begun = place, False
        self._earlier = find_free_name(place) if place is not None and place.exists() else None

    def save(self, findings: Findings) -> None:
        """Write what was found so far."""
        if self._place is None:
            return
        # Only the first writing meets earlier findings. Later ones replace our own.
        if not self._has_begun and self._earlier is not None:
            try:
                write_text(self._earlier, read_text(self._place), OWNER_ONLY)
            except FileNotFoundError:  # somebody has removed it meanwhile
                self._earlier = None
        self._has_begun = True
        findings.save(self._place)

    def show_place(self) -> None:
        """Say where they are, and where the earlier ones are."""
        show_place(self._place, self._earlier)


def show_place(place: Path | None, before: Path | None = None) -> None:
    """Say where findings are kept, if they are, and what was measured before."""
    from rich.console import Console

    said = Console(stderr=True, highlight=False, markup=False)
    if place is not None:
        said.print(f"kept in {place}", soft_wrap=True)
    if before is not None:
        said.print(f"what was measured before is in {before}", soft_wrap=True)


def find_free_name(place: Path) -> Path:
    """Return a free name for findings that newer ones replace.

    >>> print(find_free_name(Path("runs/r/internal/evaluation.json")))
    runs/r/internal/evaluation.earlier-1.json
    """
    names = (place.with_suffix(f".earlier-{n}{place.suffix}") for n in count(1))
    return next(name for name in names if not name.exists())
