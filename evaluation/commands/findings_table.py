"""Findings for the terminal: a short table for each question, and notes above them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from evaluation.findings import Findings, Measured, Question
from evaluation.scores import Score

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

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
_LONG = ("method", "candidates")  # dimensions that the JSON and the report show
_DETAIL = "value"  # a dimension that is for the report alone: F1 of each label


class FindingsTable:
    """Prints findings with rich."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield notes and one table for each question that was asked."""
        from rich.text import Text

        for note in self._findings.notes:
            yield Text(f"note: {note}")
        for question in TITLES:
            if found := [m for m in self._findings.of(question) if _DETAIL not in m.place]:
                yield _table(question, found)


def _table(question: Question, found: list[Measured]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    across = _ACROSS[question]
    columns = list(dict.fromkeys(m.place.get(across, "") for m in found))
    cells: dict[tuple[str, ...], dict[str, Score]] = {}
    for m in found:
        rest = tuple(_named(k, v) for k, v in m.place.items() if k not in (across, *_LONG))
        cells.setdefault((m.score.name, *rest), {})[m.place.get(across, "")] = m.score
    table = Table(title=TITLES[question], box=box.SIMPLE_HEAD, title_justify="left")
    table.pad_edge = False
    for name in ("measure", "of"):
        table.add_column(name)
    for name in columns:
        table.add_column(Text(name or "value"), justify="right", no_wrap=not across)
    for key, row in cells.items():
        texts = (Text(part) for part in (key[0], ", ".join(key[1:]), *_digits(row, columns)))
        table.add_row(*texts)
    return table


def _named(dimension: str, value: str) -> str:
    """A number alone says nothing."""
    return f"{value} {dimension}" if value.isdecimal() else value


def _digits(row: dict[str, Score], columns: list[str]) -> Iterator[str]:
    for column in columns:
        yield _short(row[column]) if column in row else ""


def _short(score: Score) -> str:
    """Return "0.71 ±0.03", the longer half of the interval, or the value alone without one."""
    half = max(score.high - score.value, score.value - score.low)
    return f"{score.value:.2f} ±{half:.2f}" if math.isfinite(half) else f"{score.value:.2f} or more"
