"""Paper 000's experiment in the common form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.audit.mechanism import LEAST_SHARE
from evaluation.papers.adp.cases import Attack, Case, cases
from evaluation.papers.adp.claim import verdicts
from evaluation.papers.adp.corpora import Corpora, Paths
from evaluation.papers.adp.figure import draw
from evaluation.papers.adp.found import Found
from evaluation.papers.adp.noise import PUBLISHED, SOUND
from evaluation.papers.adp.plan import plan
from evaluation.papers.adp.published import LINES, PAPER, SIGMAS, relative
from evaluation.papers.adp.readings import readings
from evaluation.papers.adp.sizes import DELTA, Size
from evaluation.papers.adp.tables import sections
from evaluation.papers.adp.training import attack, train
from evaluation.papers.adp.weighing import weigh
from evaluation.papers.experiment import described
from evaluation.papers.report import Report
from evaluation.papers.rows import Rows
from evaluation.papers.workshop import Workshop

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Adp:
    """Language models without noise, with DP-SGD and with adaptive noise, and a canary's exposure.

    Args:
        size: its name.
        how: the size itself.
        paths: the files; None: a plan can be had, and no more.
    """

    size: str
    how: Size
    paths: Paths | None

    name = "adp"
    paper = PAPER

    def plan(self) -> Iterator[str]:
        """See `Experiment`; without files, of as many lines as WikiText-103 has."""
        if self.paths is None:
            yield "no files named: counted as if they were WikiText-103"
            lines = min(LINES, self.how.private_lines or LINES)
            yield from plan(self.how, self.how.vocabulary, lines)
            return
        corpora = Corpora.read(self._files, self.how, scored=False)
        yield from plan(self.how, corpora.tokens.size, len(corpora.train))

    def cases(self, seeds: int) -> Iterator[Case | Attack]:
        """See `Experiment`."""
        return cases(seeds)

    def sources(self) -> Mapping[str, str]:
        """See `Experiment`."""
        return {part: described(path) for part, path in asdict(self._files).items()}

    def settings(self) -> Mapping[str, Any]:
        """See `Experiment`; a folder counts by its weights."""
        folder = Path(self.how.public_model).expanduser()
        named = described(folder) if folder.is_dir() else self.how.public_model
        sizes = asdict(self.how) | {"public_model": named}
        return {"sizes": sizes, "delta": DELTA, "least_share": LEAST_SHARE}

    def facts(self) -> Mapping[str, Any]:
        """See `Experiment`."""
        return self._corpora.facts()

    def row(self, case: Case | Attack, workshop: Workshop) -> Mapping[str, Any]:
        """See `Experiment`."""
        if isinstance(case, Attack):
            return attack(case, self.how.trials)
        return train(case, self._corpora, weigh(self._corpora, workshop), workshop)

    def report(self, rows: Rows) -> Report:
        """See `Experiment`."""
        found = Found(rows)
        ours = (
            f"{form}: {found.relative(form, sigma)} at σ = {sigma:g}"
            for form in (PUBLISHED, SOUND)
            for sigma in SIGMAS
        )
        shares = " and ".join(f"{relative(sigma):.3f} at σ = {sigma:g}" for sigma in SIGMAS)
        return Report(
            verdicts=list(verdicts(found)),
            published=f"{shares} (test perplexity ÷ DP-SGD)",
            ours="; ".join(ours),
            sections=list(sections(found)),
            readings=list(readings(self.how)),
        )

    def figure(self, rows: Rows) -> Figure:
        """See `Experiment`."""
        return draw(Found(rows))

    @property
    def _files(self) -> Paths:
        assert self.paths is not None, "without files there is only a plan"
        return self.paths

    @cached_property
    def _corpora(self) -> Corpora:
        return Corpora.read(self._files, self.how)
