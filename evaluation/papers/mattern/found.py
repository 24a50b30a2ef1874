"""What was found in paper 002's experiment, read from the rows, by seed or over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of
from evaluation.papers.mattern.cases import (
    REAL,
    RIVAL,
    TWIN,
    Level,
    baseline,
    names,
    short,
)
from evaluation.papers.mattern.reviews import ATTRIBUTES
from evaluation.papers.mattern.scoring import ACCURACY, DISTINCT, FIDELITY
from evaluation.papers.mattern.sizes import NUCLEUS, Size
from evaluation.papers.rows import Rows
from evaluation.tables import names_of
from evaluation.utility import targets

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Found:
    """The rows of an experiment that is finished.

    Args:
        rows: all of them.
        size: how large.
    """

    rows: Rows
    size: Size

    def of(self, level: Level) -> dict[int, dict[str, Any]]:
        """Return the rows of a level, by seed."""
        return self.rows.by_seed(*level.key)

    def values(
        self, level: Level, measure: str, target: str, classifier: str, decoding: str = NUCLEUS
    ) -> BySeed:
        """Return a measure by seed."""
        rows = {seed: _decoded(row, decoding) for seed, row in self.of(level).items()}
        return {seed: row[measure][target][classifier] for seed, row in rows.items()}

    def accuracy(self, level: Level, target: str, classifier: str) -> BySeed:
        """Return accuracies by seed."""
        return self.values(level, ACCURACY, target, classifier)

    def fidelity(self, level: Level, target: str, classifier: str) -> BySeed:
        """Return label fidelities by seed."""
        return self.values(level, FIDELITY, target, classifier)

    def distinct(self, level: Level, decoding: str) -> Interval:
        """Return the share of different pairs of words."""
        rows = self.of(level).values()
        return mean_of([_decoded(row, decoding)[DISTINCT] for row in rows])

    def perplexity(self, level: Level) -> Interval:
        """Return the perplexity of test rows."""
        return geometric_mean([row["perplexity"] for row in self.of(level).values()])

    def relative(self, level: Level) -> Interval:
        """Return the logarithm of a twin's perplexity less that of no private data."""
        ours, theirs = (
            {seed: math.log(row["perplexity"]) for seed, row in self.of(one).items()}
            for one in (level, baseline(level.data))
        )
        return difference(ours, theirs)

    def leak(self, level: Level, kind: str, name: str) -> BySeed:
        """Return what an attack found, by seed."""
        return {seed: row["leaks"][kind][name] for seed, row in self.of(level).items()}

    def chance(self, data: str, records: int | None, attack: str) -> BySeed:
        """Return the AUROC that rows of no private data have against the same rows, by seed."""
        count = names(None, records)[1]
        return {s: row["chance"][count][attack] for s, row in self.of(baseline(data)).items()}

    def revealed(self, level: Level, attack: str) -> Interval:
        """Return the AUROC of a twin less what it is by chance.

        Which rows were drawn moves an AUROC, whatever was written; so seeds are paired.
        """
        chance = self.chance(level.data, level.records, attack)
        return difference(self.leak(level, "AUROC", attack), chance)

    def attacks(self, data: str) -> list[str]:
        """Return the names of the attacks."""
        row = next(iter(self.of(baseline(data)).values()))
        return list(row["leaks"]["AUROC"])


def wanted(data: str) -> list[str]:
    """Return the targets that claims speak of: each attribute alone."""
    return [names_of((name,)) for name in ATTRIBUTES[data]]


def joint(data: str) -> str:
    """Return the target of all attributes together."""
    return names_of(targets(ATTRIBUTES[data])[-1])


def gap(
    found: Found,
    data: str,
    target: str,
    classifier: str,
    records: int | None,
    epsilon: float | None,
) -> Interval:
    """Return the accuracy of all real rows less that of a twin's."""
    twin = Level(data, TWIN, records, epsilon, found.size.mismatch)
    return _less(found, Level(data, REAL), twin, target, classifier)


def least_gap(found: Found, data: str, target: str, classifier: str) -> Interval:
    """Return the accuracy of all real rows less that of as many and as short ones as a twin's."""
    return _less(found, Level(data, REAL), short(data, found.size), target, classifier)


def baseline_over_rival(
    found: Found, data: str, target: str, classifier: str, records: int | None, epsilon: float
) -> Interval:
    """Return the accuracy of rows without private data less that of a private classifier."""
    rival = Level(data, RIVAL, records, epsilon)
    return _less(found, baseline(data), rival, target, classifier)


def over_rival(
    found: Found, data: str, target: str, classifier: str, records: int | None, epsilon: float
) -> Interval:
    """Return a twin's accuracy less that of a private classifier of the same records and ε."""
    twin = Level(data, TWIN, records, epsilon, found.size.mismatch)
    rival = Level(data, RIVAL, records, epsilon)
    return _less(found, twin, rival, target, classifier)


def over_baseline(found: Found, level: Level, target: str, classifier: str) -> Interval:
    """Return a twin's accuracy less that of rows without private data."""
    return _less(found, level, baseline(level.data), target, classifier)


def _less(found: Found, ours: Level, theirs: Level, target: str, classifier: str) -> Interval:
    return difference(*(found.accuracy(one, target, classifier) for one in (ours, theirs)))


def _decoded(row: Mapping[str, Any], decoding: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = row if decoding == NUCLEUS else row["decodings"][decoding]
    return found
