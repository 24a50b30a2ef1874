"""Findings for the terminal: a short table for each question, and notes above them."""

from __future__ import annotations

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
    "leakage": "rows",
}
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

    across = _ACROSS[question]
    columns = list(dict.fromkeys(m.place.get(across, "") for m in found))
    cells: dict[tuple[str, ...], dict[str, Score]] = {}
    for m in found:
        rest = tuple(v for k, v in m.place.items() if k != across)
        cells.setdefault((m.score.name, *rest), {})[m.place.get(across, "")] = m.score
    table = Table(title=TITLES[question], box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("measure", "of", *columns):
        table.add_column(name, justify="left" if name in ("measure", "of") else "right")
    for key, row in cells.items():
        table.add_row(key[0], ", ".join(key[1:]), *_digits(row, columns))
    return table


def _digits(row: dict[str, Score], columns: list[str]) -> Iterator[str]:
    for column in columns:
        yield str(row[column]) if column in row else ""


def as_markdown(findings: Findings, question: Question) -> str:
    """Return one question's table in Markdown.

    >>> from evaluation.scores import proportion
    >>> place = {"rows": "twin", "label": "sentiment", "classifier": "tfidf"}
    >>> found = Measured("utility", proportion("accuracy", 90, 100), place)
    >>> print(as_markdown(Findings("evaluation", {}, (found,)), "utility"))
    | measure | of | tfidf |
    | --- | --- | ---: |
    | accuracy | twin, sentiment | 0.900 [0.826, 0.945] |
    """
    found = [m for m in findings.of(question) if _DETAIL not in m.place]
    table = _table(question, found)
    header = [str(column.header) for column in table.columns]
    rule = ["---", "---", *(["---:"] * (len(header) - 2))]
    body = zip(*(list(map(str, column.cells)) for column in table.columns), strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *map(list, body)))
