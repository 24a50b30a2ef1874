"""What a comparison of noise policies found so far: a JSON file that grows run by run.

Knows what was measured under which settings; computes no measure itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluation.canaries import COPIES
from evaluation.scores import Goal, Score, mean
from twinset.artefact import write_json
from twinset.errors import InputError


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
class Row:
    """One run: a policy, or what it is set beside, with one seed.

    Args:
        name: the policy, or `REAL_ROWS`, or `evaluation.tables.BASELINE`.
        seed: of the run.
        values: by measure; those that were taken.
        seconds: by phase.
        epsilon: ε of the run's guarantee; None without one.
        delta: its δ.
        guarantee: in words; empty where nothing was trained.
        exposures: each canary's copies, format, |R|, rank, exposure and how the rank was found.
    """

    name: str
    seed: int
    values: Mapping[str, float]
    seconds: Mapping[str, float]
    epsilon: float | None = None
    delta: float | None = None
    guarantee: str = ""
    exposures: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PolicyResults:
    """All runs made under the same settings.

    Args:
        path: where they are kept.
        settings: everything that a run depends on, but its policy and seed.
        facts: what else a reader of the table should know; computed on private rows.
        measures: the columns.
        commands: that the runs came from.
        rows: by name and seed.
    """

    path: Path
    settings: Mapping[str, Any]
    facts: Mapping[str, Any]
    measures: Sequence[Measure]
    commands: list[str]
    rows: dict[tuple[str, int], Row] = field(default_factory=dict)

    def resume(self) -> None:
        """Take in the runs that the file holds, if there is one.

        Raises:
            InputError: it is none of ours, or its runs were made under other settings.
        """
        if not self.path.exists():
            return
        try:
            kept = json.loads(self.path.read_text("utf-8"))
            rows = [Row(**row) for row in kept["rows"]]
            settings, commands = dict(kept["settings"]), list(kept["commands"])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path}: holds no comparison; name another --output") from error
        mine = json.loads(json.dumps(self.settings))
        names = [n for n in mine | settings if mine.get(n) != settings.get(n)]
        if names:
            raise InputError(
                f"{self.path}: its runs were made with other settings ({', '.join(names)}); "
                "name another --output, or take the file away"
            )
        self.commands = list(dict.fromkeys([*commands, *self.commands]))
        self.rows = {(row.name, row.seed): row for row in rows}

    def add(self, row: Row) -> None:
        """Add a run, and write the file."""
        self.rows[row.name, row.seed] = row
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_json(self.path, self.to_dict())

    @property
    def names(self) -> list[str]:
        """Policies and what they are set beside, in the order of their first runs."""
        return list(dict.fromkeys(name for name, _ in self.rows))

    def runs(self, name: str) -> list[Row]:
        """Return the runs of one name."""
        return [row for (whose, _), row in self.rows.items() if whose == name]

    def values(self, name: str, measure: Measure) -> list[float]:
        """Return one measure of one name, a value for each seed; none where it was not taken."""
        return [r.values[measure.name] for r in self.runs(name) if measure.name in r.values]

    def score(self, name: str, measure: Measure) -> Score | None:
        """Return the mean over the seeds; None where the measure was not taken."""
        values = self.values(name, measure)
        if not values:
            return None
        return mean(measure.name, values, measure.goal, measure.minimum, measure.maximum)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        scores = [(name, self.score(name, m)) for name in self.names for m in self.measures]
        return {
            "settings": self.settings,
            "facts": self.facts,
            "commands": self.commands,
            "scores": [{"policy": name} | _plain(score) for name, score in scores if score],
            "rows": [asdict(row) for row in self.rows.values()],
        }


def _plain(score: Score) -> dict[str, Any]:
    """Return a score with null for what JSON has no number for."""
    return {k: None if v in (-math.inf, math.inf) else v for k, v in asdict(score).items()}
