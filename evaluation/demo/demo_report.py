"""What a demo shows at its end, for the terminal. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from evaluation.demo.demos import Demo
from evaluation.findings import Findings, Score
from evaluation.leakage.names import PLANTED
from evaluation.private_table import BASELINE, REAL, TWIN
from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.statement.wording import paragraphs

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.table import Table

_PARTS = {
    "share": "the twin, its card and its ledger: may be handed over",
    "model": "the model that wrote it: as safe as the twin",
    "internal": "figures computed on private rows: stay here",
}


@dataclass(frozen=True)
class DemoReport:
    """What the demo shows at its end; `rich` prints it.

    Args:
        demo: which one.
        findings: the figures.
        samples: a few rows of the twin.
        run: the run folder.
    """

    demo: Demo
    findings: Findings
    samples: pd.DataFrame
    run: Path

    def __rich_console__(self, console: object, options: ConsoleOptions) -> RenderResult:
        """Yield the tables, the rows and the paths."""
        from rich.text import Text

        yield self._accuracies()
        if self.demo.secrets:
            yield Text()
            yield self._secrets()
        yield Text("\nThree rows of the twin:")
        labels = self.samples[list(self.demo.attributes)].itertuples(index=False)
        for label, text in zip(labels, self.samples[self.demo.text], strict=True):
            yield Text(f"  {', '.join(label):7} {' '.join(text.split())}")
        yield Text("\n".join(("", *paragraphs(str(self.findings.about["guarantee"])), "")))
        for part, what in _PARTS.items():
            yield Text(f"  {self.run / part}  {what}")

    def _accuracies(self) -> Table:
        about = self.findings.about
        table = _table(
            f"Accuracy of classifiers on {self.demo.noun} they have not seen",
            f"twin: ε = {up_decimals(about['epsilon'])}, δ = {up_digits(about['delta'])}",
        )
        several = len(self.demo.attributes) > 1
        for name in ("label",) * several + ("trained on",):
            table.add_column(name)
        for name in ("rows", "fidelity", *self.demo.classifiers):
            table.add_column(name, justify="right", no_wrap=True)
        for label in self.demo.attributes:
            for source in (REAL, TWIN, BASELINE):
                table.add_row(*(label,) * several, source, *self._scores(source, label))
        return table

    def _scores(self, source: str, label: str) -> Iterator[str]:
        """Yield rows, how often the judge agrees with a row's label, and accuracies."""
        place = {"rows": source, "label": label}
        *_, judge = self.demo.classifiers
        yield str(self.findings.about["rows"][source])
        score = self.findings.find("label fidelity", **place, classifier=judge)
        yield f"{score.value:.2f}" if score else ""
        for name in self.demo.classifiers:
            yield str(self.findings.find("accuracy", **place, classifier=name))

    def _secrets(self) -> Table:
        table = _table(
            "Planted personal data that stand in the twin, word for word",
            "private, held-out: values of that table alone; held-out rows were never trained on",
        )
        table.add_column("kind")
        for name in ("private", "held-out: chance", "control: in the private rows"):
            table.add_column(name, justify="right", no_wrap=True)
        for kind in (m.place["kind"] for m in self.findings.measured if m.score.name == PLANTED):
            counted = (
                ("replayed", "train only"),
                ("replayed", "held-out only"),
                (PLANTED, "train"),
            )
            scores = (self.findings.find(name, rows=rows, kind=kind) for name, rows in counted)
            table.add_row(kind, *map(_hits, scores))
        return table


def _hits(score: Score | None) -> str:
    return f"{round(score.value * score.n):,} of {score.n:,}" if score else ""


def _table(title: str, caption: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True  # fits 80 columns
    return table
