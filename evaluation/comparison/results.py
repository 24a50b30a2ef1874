"""What a comparison of noise policies found so far: its columns, its runs, their means.

Knows what was measured; computes no measure itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evaluation.findings import Goal, Score, mean
from evaluation.leakage.canaries import COPIES
from evaluation.results import ResultsStore


@dataclass(frozen=True)
class Measure:
    """One column of the table: its name, the way it should go, its range, digits to show."""

    name: str
    goal: Goal
    minimum: float
    maximum: float
    digits: int


def fidelity(classifier: str) -> str:
    """Return the name of a classifier's label fidelity."""
    return f"label fidelity, {classifier}"


def accuracy(classifier: str) -> str:
    """Return the name of a classifier's accuracy."""
    return f"accuracy, {classifier}"


def exposed(copies: int) -> str:
    """Return the name of the mean exposure of canaries with so many copies.

    >>> exposed(10)
    'exposure, planted 10×'
    """
    return f"exposure, planted {copies}×"


PERPLEXITY = "held-out perplexity"
REAL_ROWS = "real data"  # as many rows as the twins have


def measures(classifiers: Sequence[str], space: int) -> list[Measure]:
    """Return the columns, in order; `space` is the canaries' |R|."""
    return [
        *(Measure(fidelity(c), "maximise", 0.0, 1.0, 3) for c in classifiers),
        *(Measure(accuracy(c), "maximise", 0.0, 1.0, 3) for c in classifiers),
        *(Measure(exposed(k), "minimise", 0.0, math.log2(space), 2) for k in COPIES),
        Measure(PERPLEXITY, "minimise", 1.0, math.inf, 1),
    ]


@dataclass(frozen=True)
class PolicyRun:
    """One run with one seed.

    Args:
        values: by measure; those that were taken.
        seconds: by phase.
        epsilon: ε of the run's guarantee; None without one.
        delta: its δ.
        guarantee: in words; empty where nothing was trained.
        exposures: each canary's copies, format, |R|, rank, exposure and how the rank was found.
    """

    values: Mapping[str, float]
    seconds: Mapping[str, float]
    epsilon: float | None = None
    delta: float | None = None
    guarantee: str = ""
    exposures: list[dict[str, Any]] = field(default_factory=list)


class PolicyResults(ResultsStore):
    """All runs made under the same settings: rows by policy or what it is set beside, and seed.

    What policies are set beside is `REAL_ROWS` and `evaluation.private_table.BASELINE`.
    """

    @property
    def measures(self) -> list[Measure]:
        """The columns."""
        return measures(self.settings["classifiers"], self.facts["space"])

    @property
    def names(self) -> list[str]:
        """Policies and what they are set beside, in the order of their first runs."""
        return list(dict.fromkeys(str(name) for name, _ in self.rows))

    def runs(self, name: str) -> list[PolicyRun]:
        """Return the runs of one name."""
        return [PolicyRun(**row) for key, row in self.rows.items() if key[0] == name]

    def values(self, name: str, measure: Measure) -> list[float]:
        """Return one measure of one name, a value for each seed; none where it was not taken."""
        return [r.values[measure.name] for r in self.runs(name) if measure.name in r.values]

    def score(self, name: str, measure: Measure) -> Score | None:
        """Return the mean over the seeds; None where the measure was not taken."""
        if not (values := self.values(name, measure)):
            return None
        return mean(measure.name, values, measure.goal, measure.minimum, measure.maximum)

    @property
    def scores(self) -> list[dict[str, Any]]:
        """The means as plain values, with null for what JSON has no number for."""
        found = [(name, self.score(name, m)) for name in self.names for m in self.measures]
        return [
            {"policy": name}
            | {k: None if v in (-math.inf, math.inf) else v for k, v in asdict(score).items()}
            for name, score in found
            if score
        ]
