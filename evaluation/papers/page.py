"""The page of a study: `NAME.md`, a template written by hand, with tables made from the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evaluation import markdown
from evaluation.papers.study_rows import Results
from twinset.release.markdown import bullets, code, plain

VERDICT, RESULTS = "## Verdict\n", "<!-- results -->\n"
UNJUDGED = "The verdict in the source tree is about the published rows, not about these.\n"
_MEASURED = re.compile(r"-?\d[\d,]*\.\d+(?:e-?\d+)?(?: \[[^\]]*\])?")
_NUMBER = re.compile(r"-?\d|∞|$")  # or an empty cell

Table = Sequence[Mapping[str, object]]  # each row from column name to cell


@dataclass(frozen=True)
class Prose:
    """What was written by hand about a paper: its `NAME.md`.

    Args:
        claim: title and quoted claim.
        verdict: what the published rows say of the claim.
        template: headings, notes and places of tables, in the language of Jinja; `facts` are those
            of the results, `size` the numbers of the size, `tables` what `Study.tables` returns.
    """

    claim: str
    verdict: str
    template: str

    @classmethod
    def read(cls, path: Path) -> Prose:
        """Return the parts of a file.

        Raises:
            ValueError: it has not one heading of a verdict, and one mark behind it where the
                results belong.
        """
        claim, rest = path.read_text("utf-8").split(VERDICT)
        verdict, template = rest.split(RESULTS)
        return cls(claim, VERDICT + verdict.rstrip() + "\n", template.strip() + "\n")

    @property
    def title(self) -> str:
        """The first heading, up to the authors."""
        return self.claim.removeprefix("# ").partition(":")[0]

    def measured(self) -> list[str]:
        """Return every decimal number of the verdict, with its interval where it has one."""
        return _MEASURED.findall(" ".join(self.verdict.split()))

    def page(
        self, tables: Mapping[str, Any], results: Results, figure: str, published: bool
    ) -> str:
        """Return the page.

        Args:
            tables: a table each, or several by name, or another value; made from the rows.
            results: the rows.
            figure: file name of the figure beside the page.
            published: whether these are the rows that the verdict speaks of; others get none.
        """
        shown = {name: _shown(value) for name, value in tables.items()}
        size, template = results.settings["sizes"], _JINJA.from_string(self.template)
        lines = [
            self.claim + (self.verdict if published else UNJUDGED),
            f"![{plain(self.title)}]({figure})",
            "",
            template.render(facts=results.facts, size=size, tables=shown),
            "## How this was measured",
            "",
            *bullets(_measured(results)),
        ]
        return "\n".join(lines) + "\n"


def table(rows: Table) -> str:
    """Return a table in Markdown: from the first column of numbers on, cells go to the right.

    >>> print(table([{"form": "sound", "σ": 1.0}, {"form": "none", "paper: σ": 2.0}]))
    | form | σ | paper: σ |
    | --- | ---: | ---: |
    | sound | 1.0 |  |
    | none |  | 2.0 |
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    body = [[_cell(row.get(name)) for name in columns] for row in rows]
    numeric = [all(map(_NUMBER.match, column)) for column in zip(*body, strict=True)]
    left = numeric.index(True) if True in numeric else len(numeric)
    return "\n".join(markdown.table(list(map(_cell, columns)), body, left)) if rows else ""


def _cell(value: object) -> str:
    """Return a value as Markdown; within a line, no number or sign begins a list."""
    return "" if value is None else plain(f"x{value}")[1:]


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _shown(one) for name, one in value.items()}
    return Markup(table(value)) if isinstance(value, list) else value


def _measured(results: Results) -> Iterator[str]:
    yield f"size: {plain(results.settings['size'])}"
    known = [*results.made(), *results.settings["sources"].items()]
    yield from (f"{plain(name)}: {plain(value)}" for name, value in known)
    yield from (f"command: {code(command)}" for command in results.commands)


_JINJA = Environment(
    undefined=StrictUndefined,
    finalize=lambda value: value if isinstance(value, Markup) else plain(value),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_JINJA.filters["commas"] = "{:,}".format
_JINJA.filters["percent"] = "{:.1%}".format
