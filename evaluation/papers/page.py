"""The page of a study in Markdown: prose written by hand around tables made from the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation import markdown
from evaluation.papers.results_store import Results
from twinset.release.markdown import bullets, code, plain

VERDICT, RESULTS = "## Verdict\n", "<!-- results -->\n"
_MEASURED = re.compile(r"-?\d[\d,]*\.\d+(?:e-?\d+)?(?: \[[^\]]*\])?")


@dataclass(frozen=True)
class Section:
    """A heading with notes and a table; all text is plain, not Markdown.

    Args:
        title: of the section.
        rows: of the table, each from column name to cell, all with the same names.
        notes: above the table; several make a list.
        left: columns of words, written to the left; those of numbers go to the right.
        depth: of the heading: 3 for a part of the section before.
    """

    title: str
    rows: Sequence[Mapping[str, str]] = ()
    notes: Sequence[str] = ()
    left: int = 1
    depth: int = 2

    def markdown(self) -> Iterator[str]:
        """Yield its lines, each block followed by an empty one."""
        yield from (f"{'#' * self.depth} {plain(self.title)}", "")
        if self.notes:
            notes = list(map(plain, self.notes))
            yield from (*(bullets(notes) if len(notes) > 1 else notes), "")
        if self.rows:
            body = (list(row.values()) for row in self.rows)
            yield from (*table(list(self.rows[0]), body, self.left), "")


@dataclass(frozen=True)
class Prose:
    """What was written by hand about a paper: its `NAME.md`.

    Args:
        claim: title and quoted claim.
        verdict: what the published rows say of the claim.
        notes: how the paper was read.
    """

    claim: str
    verdict: str
    notes: str

    @classmethod
    def read(cls, path: Path) -> Prose:
        """Return the parts of a file.

        Raises:
            ValueError: it has not one heading of a verdict, and one mark behind it where the
                results belong.
        """
        claim, rest = path.read_text("utf-8").split(VERDICT)
        verdict, notes = rest.split(RESULTS)
        return cls(claim, VERDICT + verdict.rstrip() + "\n", notes.strip() + "\n")

    @property
    def title(self) -> str:
        """The first heading, up to the authors."""
        return self.claim.removeprefix("# ").partition(":")[0]

    def measured(self) -> list[str]:
        """Return every decimal number of the verdict, with its interval where it has one."""
        return _MEASURED.findall(" ".join(self.verdict.split()))


def write_page(
    prose: Prose, sections: Iterable[Section], results: Results, figure: str, published: bool
) -> str:
    """Return the page.

    Args:
        prose: written by hand.
        sections: tables made from the rows.
        results: the rows.
        figure: file name of the figure beside the page.
        published: whether these are the rows that the verdict speaks of; others get none.
    """
    unjudged = "The verdict in the source tree is about the published rows, not about these.\n"
    lines = [
        prose.claim + (prose.verdict if published else unjudged),
        f"![{plain(prose.title)}]({figure})",
        "",
        *(line for section in sections for line in section.markdown()),
        prose.notes,
        "## How this was measured",
        "",
        *bullets(_measured(results)),
    ]
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
    return markdown.table(list(map(_cell, header)), (list(map(_cell, row)) for row in body), left)


def _cell(text: str) -> str:
    """Return plain text as Markdown; within a line, no number or sign begins a list."""
    return plain(f"x{text}")[1:]


def _measured(rows: Results) -> Iterator[str]:
    yield f"size: {plain(rows.settings['size'])}"
    for name in ("about", "sources"):
        yield from (f"{plain(k)}: {plain(v)}" for k, v in rows.settings[name].items())
    yield from (f"command: {code(command)}" for command in rows.commands)
