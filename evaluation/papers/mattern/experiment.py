"""Paper 002's experiment in the common form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.embeddings import SentenceEncoder
from evaluation.papers.experiment import described
from evaluation.papers.mattern.cases import COMPARED, DATA, Case, cases
from evaluation.papers.mattern.claims import quoted, verdicts
from evaluation.papers.mattern.figure import draw
from evaluation.papers.mattern.found import Found, gap, wanted
from evaluation.papers.mattern.plan import plan
from evaluation.papers.mattern.published import EPSILONS, FEW, GAP, PAPER
from evaluation.papers.mattern.readings import readings
from evaluation.papers.mattern.reviews import Paths, Reviews, read_reviews, read_train
from evaluation.papers.mattern.scoring import Scorer
from evaluation.papers.mattern.sizes import DECODINGS, Size
from evaluation.papers.mattern.tables import sections
from evaluation.papers.report import Report
from evaluation.papers.rows import Rows
from evaluation.papers.verdict import together
from evaluation.papers.workshop import Workshop

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Mattern:
    """Twins of two tables, and what classifiers learn from them and from other rows.

    Args:
        size: its name.
        how: the size itself.
        paths: the files; None: a plan can be had, and no more.
    """

    size: str
    how: Size
    paths: Paths | None

    name = "mattern"
    paper = PAPER

    def plan(self) -> Iterator[str]:
        """See `Experiment`; without files, of as many records as the size takes at most."""
        if self.paths is None:
            yield "no files named: counted as if they had as many rows as the size takes"
            yield from plan(self.how, self.how.records)
            return
        yield from plan(self.how, {d: len(read_train(self.paths, self.how, d)) for d in DATA})

    def cases(self, seeds: int) -> Iterator[Case]:
        """See `Experiment`."""
        return cases(self.how, seeds)

    def sources(self) -> Mapping[str, str]:
        """See `Experiment`."""
        return {part: described(path) for part, path in asdict(self._files).items()}

    def settings(self) -> Mapping[str, Any]:
        """See `Experiment`; a folder counts by its weights."""
        folder = Path(self.how.base_model).expanduser()
        named = described(folder) if folder.is_dir() else self.how.base_model
        return {"sizes": asdict(self.how) | {"base_model": named}, "decodings": DECODINGS}

    def facts(self) -> Mapping[str, Any]:
        """See `Experiment`."""
        return {data: reviews.facts() for data, reviews in self._reviews.items()}

    def row(self, case: Case, workshop: Workshop) -> Mapping[str, Any]:
        """See `Experiment`."""
        return self._scorers[case.level.data].row(case, workshop)

    def report(self, rows: Rows) -> Report:
        """See `Experiment`."""
        found = Found(rows, self.how)
        few, (lowest, *_) = " or ".join(map(str, FEW)), EPSILONS
        what = (
            f"accuracy of all real rows less that of a twin's, {max(FEW)} records, ε = {COMPARED:g}"
        )
        return Report(
            verdicts=list(verdicts(found)),
            published=f"∼{GAP} from {few} records at ε = {lowest:g} or {COMPARED:g}",
            ours=f"{what}: {'; '.join(_gaps(found))}",
            sections=list(sections(found)),
            readings=list(readings(self.how)),
            word=together(verdict.word for verdict in quoted(found)),
        )

    def figure(self, rows: Rows) -> Figure:
        """See `Experiment`."""
        return draw(Found(rows, self.how))

    @property
    def _files(self) -> Paths:
        assert self.paths is not None, "without files there is only a plan"
        return self.paths

    @cached_property
    def _reviews(self) -> dict[str, Reviews]:
        return {data: read_reviews(self._files, self.how, data) for data in DATA}

    @cached_property
    def _scorers(self) -> dict[str, Scorer]:
        embeddings = SentenceEncoder()
        return {d: Scorer(reviews, self.how, embeddings) for d, reviews in self._reviews.items()}


def _gaps(found: Found) -> Iterator[str]:
    classifier = found.size.neural[0]
    for data in DATA:
        for target in wanted(data):
            ours = gap(found, data, target, classifier, max(FEW), COMPARED)
            yield f"{data} {target} {ours}"
