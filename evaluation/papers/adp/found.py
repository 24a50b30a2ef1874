"""What was found of the models of paper 000's experiment, read from the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.papers.adp.cases import ATTACK, ATTACKED, NO_COPIES
from evaluation.papers.adp.noise import DP_SGD, NO_DP
from evaluation.papers.adp.published import DIGITS, SIGMAS
from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of
from evaluation.papers.rows import Rows
from twinset.privacy.rounding import up_decimals

LARGEST_EXPOSURE = DIGITS * math.log2(10)


@dataclass(frozen=True)
class Found:
    """The rows.

    Args:
        rows: all of them.
    """

    rows: Rows

    def of(self, form: str, sigma: float, copies: int = NO_COPIES) -> list[dict[str, Any]]:
        """Return the rows of one model, a seed each."""
        return list(self.rows.by_seed(form, sigma, copies).values())

    def perplexity(self, form: str, sigma: float) -> Interval:
        """Return the test perplexity of a model that saw no canary."""
        return geometric_mean([row["perplexity_test"] for row in self.of(form, sigma)])

    def loss(self, form: str, sigma: float) -> Interval:
        """Return its logarithm: nats per token."""
        return mean_of([math.log(row["perplexity_test"]) for row in self.of(form, sigma)])

    def relative(self, form: str, sigma: float) -> Interval:
        """Return the test perplexity over that of DP-SGD at the same σ, seed by seed.

        One seed has no interval: whatever noise was drawn once, more test lines do not tell.
        """
        ours, theirs = self._perplexities(form, sigma), self._perplexities(DP_SGD, sigma)
        return geometric_mean([ours[seed] / theirs[seed] for seed in ours])

    def noise(self, form: str, sigma: float) -> float:
        """Return the mean standard deviation of the noise over σC."""
        rows = self.of(form, sigma)
        return sum(row["mean_noise"] for row in rows) / len(rows)

    def spent(self, form: str, sigma: float, which: str) -> str:
        """Return the largest ε of some kind over seeds, rounded up; "none" where one has none.

        Args:
            form: of the model.
            sigma: of the model.
            which: most_protected, least_protected or nominal.
        """
        values = [row[f"epsilon_{which}"] for row in self.of(form, sigma)]
        return "none" if None in values else up_decimals(max(values))

    def exposure(self, form: str, sigma: float, copies: int) -> Interval:
        """Return the exposure of the canary, in bits."""
        bits = [row["exposure"] for row in self.of(form, sigma, copies)]
        return mean_of(bits, 0.0, LARGEST_EXPOSURE)

    def protection(self, form: str, sigma: float, copies: int, than: str = NO_DP) -> Interval:
        """Return the exposure less that of another model; of DP-SGD that of the same σ."""
        theirs = sigma if than == DP_SGD else 0.0
        return difference(
            self._exposures(form, sigma, copies), self._exposures(than, theirs, copies)
        )

    def attacks(self, form: str, sigma: float) -> Sequence[dict[str, Any]]:
        """Return the findings of the attack on one form's noise."""
        (row,) = self.rows.by_seed(ATTACK, form, sigma).values()
        findings: Sequence[dict[str, Any]] = row["findings"]
        return findings

    def all_attacks(self) -> Iterator[tuple[str, float, dict[str, Any]]]:
        """Yield form, σ and finding."""
        for form in ATTACKED:
            for sigma in SIGMAS:
                yield from ((form, sigma, finding) for finding in self.attacks(form, sigma))

    def _exposures(self, form: str, sigma: float, copies: int) -> dict[int, float]:
        rows = self.rows.by_seed(form, sigma, copies).items()
        return {seed: row["exposure"] for seed, row in rows}

    def _perplexities(self, form: str, sigma: float) -> dict[int, float]:
        rows = self.rows.by_seed(form, sigma, NO_COPIES).items()
        return {seed: row["perplexity_test"] for seed, row in rows}
