"""What was found in paper 001's experiment, read from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.papers.anadp.cases import ATTACK, LEAKAGE
from evaluation.papers.anadp.corpora import SETS
from evaluation.papers.anadp.noise import NO_DP, UNIFORM
from evaluation.papers.intervals import Interval, difference, mean_of
from evaluation.papers.rows import Rows
from twinset.privacy.rounding import up_decimals

RANKS, EXPOSURE = "rank", "exposure"
MEASURES = {
    RANKS: "mean reciprocal rank of names",
    EXPOSURE: "exposure of telephone numbers, bits",
}
BySeed = dict[int, float]


@dataclass(frozen=True)
class Found:
    """The rows.

    Args:
        rows: all of them.
    """

    rows: Rows

    def of(self, dataset: str, method: str, form: str) -> list[dict[str, Any]]:
        """Return the rows of one way of training a classifier, a seed each."""
        return list(self.rows.by_seed(dataset, method, form).values())

    def accuracy(self, dataset: str, method: str, form: str) -> Interval:
        """Return the accuracy on test rows."""
        return mean_of(list(self._accuracies(dataset, method, form).values()), 0.0, 1.0)

    def gain(self, dataset: str, method: str, form: str, than: str = UNIFORM) -> Interval:
        """Return the accuracy less that of another form, seed by seed."""
        ours, theirs = (self._accuracies(dataset, method, f) for f in (form, than))
        return difference(ours, theirs)

    def mean_gain(self, method: str, form: str, than: str = UNIFORM) -> Interval:
        """Return the same of the mean accuracy over the sets."""
        return difference(self._over_sets(method, form), self._over_sets(method, than))

    def spent(self, rows: Sequence[Mapping[str, Any]], which: str = "epsilon") -> str:
        """Return the largest ε of some rows, rounded up; "none" where one has none."""
        values = [row[which] for row in rows]
        return "none" if None in values else up_decimals(max(values))

    def leaking(self, form: str) -> list[dict[str, Any]]:
        """Return the rows of a language model of e-mails, a seed each."""
        return list(self.rows.by_seed(LEAKAGE, form).values())

    def known(self, measure: str, form: str, part: str) -> Interval | None:
        """Return how well names or numbers of a part are known; None where there are none."""
        values = list(self._known(measure, form, part).values())
        return mean_of(values) if values else None

    def learnt(self, measure: str, form: str) -> Interval | None:
        """Return how much better those that were learnt from are known than the held-out."""
        more = list(self._more_known(measure, form).values())
        return mean_of(more) if more else None

    def against(self, measure: str, form: str, than: str) -> Interval:
        """Return how much more what was learnt from is known than held-out, than by another form.

        Held-out names and numbers are better known, too, by who has learnt how such look.
        """
        ours, theirs = (self._more_known(measure, f) for f in (form, than))
        return difference(ours, theirs)

    def attacks(self, form: str) -> Sequence[dict[str, Any]]:
        """Return the findings of the attack on one form's noise."""
        (row,) = self.rows.by_seed(ATTACK, form).values()
        findings: Sequence[dict[str, Any]] = row["findings"]
        return findings

    def cells(self, dataset: str, method: str, form: str) -> dict[tuple[str, str], float]:
        """Return by layer and kind the noise over that of `uniform`, geometric mean over seeds."""
        logs: dict[tuple[str, str], list[float]] = {}
        for row in self.of(dataset, method, form):
            for layer, kind, factor in row["noise"]:
                logs.setdefault((layer, kind), []).append(float(np.log(factor)))
        return {place: float(np.exp(np.mean(values))) for place, values in logs.items()}

    def _accuracies(self, dataset: str, method: str, form: str) -> BySeed:
        rows = self.rows.by_seed(dataset, method, form).items()
        return {seed: row["accuracy"] for seed, row in rows}

    def _over_sets(self, method: str, form: str) -> BySeed:
        each = [self._accuracies(dataset, method, form) for dataset in SETS]
        return {seed: float(np.mean([found[seed] for found in each])) for seed in each[0]}

    def _more_known(self, measure: str, form: str) -> BySeed:
        train, heldout = (self._known(measure, form, p) for p in ("train", "held-out"))
        return {seed: value - heldout[seed] for seed, value in train.items() if seed in heldout}

    def _known(self, measure: str, form: str, part: str) -> BySeed:
        rows = self.rows.by_seed(LEAKAGE, form).items()
        found = {seed: row["known"][part][measure] for seed, row in rows}
        return {seed: value for seed, value in found.items() if value is not None}


def gap_closed(found: Found, method: str, form: str) -> float | None:
    """Return the share of what uniform noise costs that a form wins back; None where it costs none.

    Of mean accuracies over sets and seeds.
    """
    cost = found.mean_gain(method, NO_DP)
    return found.mean_gain(method, form).value / cost.value if cost.value > 0 else None
