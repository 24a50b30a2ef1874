"""What an experiment has to say, as values: verdicts, tables, readings of the paper, a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from evaluation.papers.verdict import Verdict, Word, together


@dataclass(frozen=True)
class Paper:
    """A paper that is put to the test.

    Args:
        citation: authors and year.
        title: what it is about, in a few words.
        claim: its main claim, word for word.
    """

    citation: str
    title: str
    claim: str


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        title: as plain text.
        lines: Markdown; `page.table` makes tables.
    """

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Report:
    """All that was found.

    Args:
        verdicts: on the claim, a part or a model each.
        published: the paper's number for the claim, with what it is of, for a table of all papers.
        ours: the same of ours, with intervals.
        sections: tables.
        readings: how ambiguous points of the paper were read, a point each.
        word: on the claim, where the verdicts are on more than it; None: that of all together.
    """

    verdicts: Sequence[Verdict]
    published: str
    ours: str
    sections: Sequence[Section]
    readings: Sequence[str]
    word: Word | None = None

    def summary(self, paper: Paper) -> Summary:
        """Return its line in a table of all papers."""
        word = self.word or together(verdict.word for verdict in self.verdicts)
        return Summary(paper.citation, paper.claim, self.published, self.ours, word)


@dataclass(frozen=True)
class Summary:
    """A line in a table of all papers; its names are those of the JSON."""

    paper: str
    claim: str
    published: str
    ours: str
    word: Word

    def to_dict(self) -> dict[str, str]:
        """Return plain values, ready for JSON."""
        return asdict(self) | {"word": str(self.word)}
