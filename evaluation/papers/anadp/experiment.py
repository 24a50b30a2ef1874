"""Paper 001's experiment in the common form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.papers.anadp.cases import Attack, Case, Classifier, cases
from evaluation.papers.anadp.claim import quoted, verdicts
from evaluation.papers.anadp.corpora import SETS, Corpus, Paths, read_rows
from evaluation.papers.anadp.figure import draw
from evaluation.papers.anadp.found import Found
from evaluation.papers.anadp.noise import IMPORTANCE
from evaluation.papers.anadp.passages import Passages
from evaluation.papers.anadp.plan import EMAILS, assumed, plan
from evaluation.papers.anadp.published import DELTA, EPSILON, OUTCOME, PAPER, RANK
from evaluation.papers.anadp.readings import readings
from evaluation.papers.anadp.sizes import Size
from evaluation.papers.anadp.tables import sections
from evaluation.papers.anadp.training import ATTACKED_SIGMA, attack, classify, leak
from evaluation.papers.anadp.tuning import METHODS
from evaluation.papers.experiment import described
from evaluation.papers.report import Report
from evaluation.papers.rows import Rows
from evaluation.papers.workshop import Workshop

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Anadp:
    """Encoders under uniform noise and noise by importance, and what e-mails leak under it.

    Args:
        size: its name.
        how: the size itself.
        paths: the files; None: a plan can be had, and no more.
    """

    size: str
    how: Size
    paths: Paths | None
    _read: dict[str, Corpus] = field(default_factory=dict)

    name = "anadp"
    paper = PAPER

    def plan(self) -> Iterator[str]:
        """See `Experiment`; without files, of as many rows as the published sets have."""
        if self.paths is None:
            yield "no files named: counted as if they were the published sets"
            passages = min(self.how.passages or EMAILS, EMAILS)
            yield from plan(self.how, assumed(self.how), passages)
            return
        many = {
            name: len(read_rows(self._files.of(name)[0], labels, self.how.rows).texts)
            for name, labels in SETS.items()
        }
        yield from plan(self.how, many, len(self._passages.train))

    def cases(self, seeds: int) -> Iterator[Case]:
        """See `Experiment`."""
        return cases(seeds)

    def sources(self) -> Mapping[str, str]:
        """See `Experiment`."""
        return {part: described(path) for part, path in asdict(self._files).items()}

    def settings(self) -> Mapping[str, Any]:
        """See `Experiment`; a folder counts by its weights."""
        sizes = asdict(self.how)
        if (
            self.how.encoder is not None
            and (folder := Path(self.how.encoder).expanduser()).is_dir()
        ):
            sizes["encoder"] = described(folder)
        constants = {"epsilon": EPSILON, "delta": DELTA, "rank": RANK, "attacked": ATTACKED_SIGMA}
        return {"sizes": sizes, **constants}

    def facts(self) -> Mapping[str, Any]:
        """See `Experiment`: counts alone."""
        sets = {name: self._corpus(name).facts() for name in SETS}
        return {"sets": sets, "e-mails": self._passages.facts()}

    def row(self, case: Case, workshop: Workshop) -> Mapping[str, Any]:
        """See `Experiment`."""
        if isinstance(case, Attack):
            return attack(case, self.how.trials)
        if isinstance(case, Classifier):
            return classify(case, self._corpus(case.dataset), self.how, workshop)
        return leak(case, self._passages, self.how, workshop)

    def report(self, rows: Rows) -> Report:
        """See `Experiment`."""
        found = Found(rows)
        ours = (
            f"{form}, {method}: {found.mean_gain(method, form)}"
            for form in IMPORTANCE
            for method in METHODS
        )
        return Report(
            verdicts=list(verdicts(found)),
            published=OUTCOME,
            ours=f"accuracy less uniform, mean of three sets: {'; '.join(ours)}",
            sections=list(sections(found)),
            readings=list(readings(self.how)),
            word=quoted(found),
        )

    def figure(self, rows: Rows) -> Figure:
        """See `Experiment`."""
        return draw(Found(rows))

    @property
    def _files(self) -> Paths:
        assert self.paths is not None, "without files there is only a plan"
        return self.paths

    @cached_property
    def _passages(self) -> Passages:
        return Passages.read(self._files.emails, self._files.public, self.how)

    def _corpus(self, dataset: str) -> Corpus:
        if dataset not in self._read:
            self._read[dataset] = Corpus.read(self._files, dataset, self.how)
        return self._read[dataset]
