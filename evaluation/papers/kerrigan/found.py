"""What was found of one model of paper 003's experiment, read from the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.papers.intervals import Groups, Interval, ratio
from evaluation.papers.kerrigan.claim import Evidence
from evaluation.papers.kerrigan.published import BOTH, PRIVATE, PUBLIC, SIGMAS
from evaluation.papers.rows import Rows

LARGEST = max(SIGMAS)
LEVELS = [(PUBLIC, 0.0), *((start, sigma) for start in (PRIVATE, BOTH) for sigma in SIGMAS)]


@dataclass(frozen=True)
class Found:
    """The rows of one model.

    Args:
        name: of the model.
        network: the paper's column: small, large or none.
        rows: of all models.
        counts: groups of the public text's word counts on the test lines.
    """

    name: str
    network: str
    rows: Rows
    counts: Groups

    def of(self, start: str, sigma: float) -> dict[int, dict[str, Any]]:
        """Return the rows of one line of the table, by seed."""
        return self.rows.by_seed(self.name, start, sigma)

    def relative(self, start: str, sigma: float) -> Interval:
        """Return perplexity over that of the public model."""
        return ratio(self._groups(start, sigma), self._groups(PUBLIC, 0.0))

    def evidence(self) -> Evidence:
        """Return the four ratios that the claim rests on."""
        public, both = self._groups(PUBLIC, 0.0), self._groups(BOTH, LARGEST)
        private, quiet = self._groups(PRIVATE, LARGEST), self._groups(PRIVATE, 0.0)
        counts = dict.fromkeys(public, self.counts)
        return Evidence(
            learns=ratio(both, public),
            beats=ratio(both, private),
            useless=ratio(private, counts),
            able=ratio(quiet, counts),
        )

    def _groups(self, start: str, sigma: float) -> dict[int, Groups]:
        rows = self.of(start, sigma).items()
        return {seed: np.array(row["test_groups"]) for seed, row in rows}


def blocks(rows: Rows) -> Iterator[tuple[Mapping[str, Any], list[Found]]]:
    """Yield each kind of tokens, its facts, and the models that share it."""
    for block in rows.facts["blocks"]:
        counts = np.array(block["counts_groups"])
        names = block["contestants"].items()
        yield block, [Found(name, network, rows, counts) for name, network in names]


def models(rows: Rows) -> list[Found]:
    """Return all models."""
    return [one for _, several in blocks(rows) for one in several]
