"""What a comparison found, with all that is needed to find it again. Computes no score itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evaluation.scores import Score
from evaluation.surroundings import machine, versions
from twinset.config import RunConfig
from twinset.privacy.rounding import up_decimals

if TYPE_CHECKING:
    from rich.table import Table

REAL, REAL_SMALL = "real", "real, no more rows than the twin"
TWIN, BASELINE, HELD_OUT = "twin", "no private data", "held out"
SOURCES = (REAL, REAL_SMALL, TWIN, BASELINE)
LIBRARIES = (
    "twinset numpy opacus pandas peft scikit-learn torch transformers".split()  # alphabetical
)


@dataclass(frozen=True)
class Result:
    """One score of one classifier.

    Args:
        source: which rows it was trained on (accuracy) or was shown (label fidelity): in `SOURCES`.
        target: what it predicts: an attribute's name, or several joined by " × ".
        classifier: its name.
        score: accuracy on real held-out rows, or label fidelity.
    """

    source: str
    target: str
    classifier: str
    score: Score


@dataclass(frozen=True)
class Comparison:
    """Classifiers trained on real rows, on the twin and on text made without private data.

    Args:
        data: name of the private table.
        epsilon: ε of the twin; None without a guarantee.
        delta: its δ.
        guarantee: the guarantee in words.
        prompt: the template's pattern.
        config: the run's options; its training seed also draws the subset of real rows.
        rows: number of rows of each source, and of the held-out table.
        coinciding: held-out rows whose text, in lower-cased letters and digits, is a training row.
        commonest: by target, accuracy of always answering the commonest label.
        results: all scores.
        seconds: wall time of each phase that was run.
        command: how to do it again.
    """

    data: str
    epsilon: float | None
    delta: float | None
    guarantee: str
    prompt: str
    config: RunConfig
    rows: Mapping[str, int]
    coinciding: int
    commonest: Mapping[str, Score]
    results: tuple[Result, ...]
    seconds: Mapping[str, float]
    command: str = ""

    def score(self, name: str, source: str, target: str, classifier: str) -> Score | None:
        """Return one score, or None where it was not taken."""
        wanted = (name, source, target, classifier)
        found = (r.score for r in self.results if wanted == (r.score.name, *_place(r)))
        return next(found, None)

    @property
    def targets(self) -> list[str]:
        """What was predicted."""
        return list(self.commonest)

    @property
    def classifiers(self) -> list[str]:
        """The classifiers' names."""
        return list(dict.fromkeys(r.classifier for r in self.results))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: with versions and machine."""
        return asdict(self) | {
            "seed": self.config.training.seed,
            "versions": versions(LIBRARIES),
            "machine": machine(),
        }

    def as_table(self) -> Table:
        """Return a table for the terminal."""
        from rich.table import Table

        table = Table(title=self._title(), caption=self._notes(), caption_justify="left")
        for position, name in enumerate(self._header()):
            table.add_column(name, justify="left" if position < 2 else "right")
        for cells in self._body():
            table.add_row(*cells, end_section=cells[1] == SOURCES[-1])
        return table

    def as_markdown(self) -> str:
        """Return the same table in Markdown, with the command that made it."""
        header = self._header()
        rule = ["---", "---", *(["---:"] * (len(header) - 2))]
        lines = [f"| {' | '.join(cells)} |" for cells in (header, rule, *self._body())]
        command = f"\n\n    {self.command}" if self.command else ""
        return "\n".join([f"**{self._title()}**", "", *lines, "", self._notes()]) + f"{command}\n"

    def _title(self) -> str:
        spent = ", ".join(f"{name} = {digits}" for name, digits in self.spent().items())
        return f"{self.data}: accuracy on {self.rows[HELD_OUT]} real held-out rows; twin: {spent}"

    def spent(self) -> dict[str, str]:
        """Return ε, rounded up, and δ in digits; "none" without a guarantee."""
        if self.epsilon is None or self.delta is None:
            return {"ε": "none", "δ": "none"}
        return {"ε": up_decimals(self.epsilon), "δ": f"{self.delta:.3g}"}

    def _header(self) -> list[str]:
        measures = [f"{c}: {m}" for c in self.classifiers for m in ("accuracy", "label fidelity")]
        return ["label", "trained on", "rows", *measures]

    def _body(self) -> Iterator[list[str]]:
        for target in self.targets:
            for source in SOURCES:
                scores = (
                    self.score(name, source, target, classifier)
                    for classifier in self.classifiers
                    for name in ("accuracy", "label fidelity")
                )
                cells = [str(score) if score else "" for score in scores]
                yield [target, source, str(self.rows[source]), *cells]

    def _notes(self) -> str:
        commonest = "; ".join(f"{target} {score}" for target, score in self.commonest.items())
        seconds = ", ".join(f"{phase} {s:.0f} s" for phase, s in self.seconds.items())
        return (
            f"95 % intervals over the rows tested. Always answering the commonest label: "
            f"{commonest}. Held-out texts that are training texts too: {self.coinciding}. "
            f"Seed {self.config.training.seed}. {seconds}."
        )


def _place(result: Result) -> tuple[str, str, str]:
    return result.source, result.target, result.classifier
