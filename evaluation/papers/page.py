"""An experiment's page in Markdown, the same for every paper. Knows only what there is to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from evaluation.papers.report import Paper, Report
from evaluation.papers.rows import Rows
from evaluation.papers.verdict import Verdict
from twinset.markdown import bullets, code, plain


def as_markdown(paper: Paper, report: Report, rows: Rows, figure: str) -> str:
    """Return the page.

    Args:
        paper: that was put to the test.
        report: what was found.
        rows: that it was found from.
        figure: file name of the figure beside the page.
    """
    lines = [
        f"# {plain(paper.title)}: {plain(paper.citation)}",
        "",
        f"The claim: “{plain(paper.claim)}”.",
        "",
        *(line for verdict in report.verdicts for line in _verdict(verdict)),
        "",
        f"![{plain(paper.title)}]({figure})",
        "",
    ]
    for section in report.sections:
        lines += [f"## {plain(section.title)}", "", *section.lines, ""]
    lines += ["## How the paper was read", "", *bullets(map(plain, report.readings)), ""]
    lines += ["## How this was measured", "", *bullets(_measured(rows))]
    return "\n".join(lines) + "\n"


def table(header: Sequence[str], body: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table: the first columns to the left, the others to the right.

    Args:
        header: plain text.
        body: plain text, a sequence of cells a row.
        left: columns to the left: of words, not of numbers.

    >>> table(["σ", "ε"], [["1", "9.75"]])
    ['| σ | ε |', '| --- | ---: |', '| 1 | 9.75 |']
    """
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return [_line(map(_cell, header)), _line(rule), *(_line(map(_cell, row)) for row in body)]


def _cell(text: str) -> str:
    """Return plain text as Markdown; within a line, no number or sign begins a list."""
    return plain(f"x{text}")[1:]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield f"- {plain(verdict.subject)}: {plain(verdict.because)}: **{verdict.word}**"
    yield from (f"  - {plain(sentence)}" for sentence in verdict.details)


def _measured(rows: Rows) -> Iterator[str]:
    yield f"size: {plain(rows.settings['size'])}"
    for name in ("about", "sources"):
        yield from (f"{plain(k)}: {plain(v)}" for k, v in rows.settings[name].items())
    yield from (f"command: {code(command)}" for command in rows.commands)
