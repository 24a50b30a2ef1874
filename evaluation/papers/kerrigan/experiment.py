"""Paper 003's experiment in the common form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evaluation.papers.experiment import described
from evaluation.papers.kerrigan.cases import Case, cases
from evaluation.papers.kerrigan.corpora import Corpora, Lines, Paths, by_model, read_texts
from evaluation.papers.kerrigan.figure import draw
from evaluation.papers.kerrigan.found import LARGEST, Found, models
from evaluation.papers.kerrigan.people import people
from evaluation.papers.kerrigan.plan import assumed, counted, plan
from evaluation.papers.kerrigan.published import BOTH, PAPER, relative
from evaluation.papers.kerrigan.readings import readings
from evaluation.papers.kerrigan.sizes import CONTEXT, Size
from evaluation.papers.kerrigan.tables import perplexities
from evaluation.papers.kerrigan.training import Training
from evaluation.papers.models import FolderShape
from evaluation.papers.report import Report
from evaluation.papers.rows import Rows
from evaluation.papers.workshop import Workshop

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Kerrigan:
    """Language models of public text, of private text, and of one after the other.

    Args:
        size: its name.
        how: the size itself.
        paths: the files; None: a plan can be had, and no more.
    """

    size: str
    how: Size
    paths: Paths | None

    name = "kerrigan"
    paper = PAPER

    def plan(self) -> Iterator[str]:
        """See `Experiment`; without files, of the paper's own numbers of lines and words."""
        if self.paths is None:
            yield "no files named: counted as if they were the paper's"
            counts = assumed(self.how)
        else:
            lines = read_texts(self.paths, self.how, scored=False)
            counts = counted(by_model(self.how, lines))
        yield from plan(self.how, counts)

    def cases(self, seeds: int) -> Iterator[Case]:
        """See `Experiment`."""
        return cases(self.how.contestants, seeds)

    def sources(self) -> Mapping[str, str]:
        """See `Experiment`."""
        return {part: described(path) for part, path in asdict(self._files).items()}

    def settings(self) -> Mapping[str, Any]:
        """See `Experiment`; a folder counts by its weights."""
        sizes = asdict(self.how)
        for plain, contestant in zip(sizes["contestants"], self.how.contestants, strict=True):
            if isinstance(contestant.shape, FolderShape):
                plain["shape"] = described(contestant.shape.folder)
        return {"sizes": sizes, "context": CONTEXT}

    def facts(self) -> Mapping[str, Any]:
        """See `Experiment`: of each kind of tokens, with the models that share it."""
        found: dict[str, dict[str, Any]] = {}
        for contestant in self.how.contestants:
            one = self._corpora[contestant.name]
            kind = one.tokens.description
            if kind not in found:
                found[kind] = one.facts(self._lines) | {"contestants": {}}
            found[kind]["contestants"][contestant.name] = contestant.paper
        return {"blocks": list(found.values())}

    def row(self, case: Case, workshop: Workshop) -> Mapping[str, Any]:
        """See `Experiment`."""
        return Training(case, self._corpora[case.contestant.name], workshop).row()

    def report(self, rows: Rows) -> Report:
        """See `Experiment`."""
        found = models(rows)
        ratio = relative(("small", BOTH, LARGEST))
        return Report(
            verdicts=[one.evidence().verdict(one.name) for one in found],
            published=f"{ratio:.3f} (test perplexity at σ = {LARGEST:g} ÷ public only)",
            ours="; ".join(map(_relative, found)),
            sections=[*perplexities(rows), people(rows)],
            readings=list(readings()),
        )

    def figure(self, rows: Rows) -> Figure:
        """See `Experiment`."""
        return draw(rows)

    @property
    def _files(self) -> Paths:
        assert self.paths is not None, "without files there is only a plan"
        return self.paths

    @cached_property
    def _lines(self) -> Lines:
        return read_texts(self._files, self.how)

    @cached_property
    def _corpora(self) -> dict[str, Corpora]:
        return by_model(self.how, self._lines)


def _relative(found: Found) -> str:
    return f"{found.name} {found.relative(BOTH, LARGEST)}"
