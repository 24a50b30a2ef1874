"""The finished rows of a study: a store whose rows are asked for by a path within them."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of
from evaluation.results_store import Key, ResultsStore
from twinset.privacy.accounting.rounding import up_decimals


class Results(ResultsStore):
    """All rows of a study that were made under the same settings; only their owner reads them.

    Below, `level` is a key without its seed, and `path` leads to a value within a row.
    """

    kept_for: ClassVar[int | None] = 0o600

    def values(self, level: Key, *path: str) -> dict[int, Any]:
        """Return by seed what stands under `path`.

        >>> from pathlib import Path
        >>> rows = {("a", 0.5, seed): {"leak": {"names": seed}} for seed in range(2)}
        >>> Results(Path("a.json"), {}, rows=rows).values(("a", 0.5), "leak", "names")
        {0: 0, 1: 1}
        """
        return {seed: _at(row, path) for seed, row in self.by_seed(*level).items()}

    def arrays(self, level: Key, *path: str) -> dict[int, np.ndarray]:
        """Return by seed what stands under `path`, as an array."""
        return {seed: np.array(value) for seed, value in self.values(level, *path).items()}

    def first(self, level: Key) -> dict[str, Any]:
        """Return one of the rows, for what is the same in all."""
        return next(iter(self.by_seed(*level).values()))

    def mean(
        self, level: Key, *path: str, least: float = -math.inf, most: float = math.inf
    ) -> Interval:
        """Return the mean over seeds, its interval cut at the range."""
        return mean_of(list(self.values(level, *path).values()), least, most)

    def share(self, level: Key, *path: str) -> Interval:
        """Return the mean over seeds of what lies between 0 and 1."""
        return self.mean(level, *path, least=0.0, most=1.0)

    def geometric(self, level: Key, *path: str) -> Interval:
        """Return the geometric mean over seeds: of perplexities."""
        return geometric_mean(list(self.values(level, *path).values()))

    def difference(self, ours: Key, theirs: Key, *path: str) -> Interval:
        """Return the values of one level less those of another, seed by seed."""
        return difference(self.values(ours, *path), self.values(theirs, *path))

    def largest(self, level: Key, name: str) -> str:
        """Return the largest ε over seeds, rounded up; "none" where one has none."""
        values = [row[name] for row in self.by_seed(*level).values()]
        return "none" if None in values else up_decimals(max(values))

    def effort(self, level: Key, rate: str, unit: str) -> dict[str, str]:
        """Return the last cells of a line: seeds, and what was done in a second, or how long."""
        return {
            "seeds": str(len(self.by_seed(*level))),
            unit: f"{fmean(self.values(level, rate).values()):.0f}",
        }


def finite(value: float | None) -> float | None:
    """Return a value, None for infinity, which JSON does not know."""
    return None if value is None or math.isinf(value) else value


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value
