"""A measured number with everything needed to read it. Knows nothing of how it was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Goal = Literal["maximise", "minimise", "match"]  # match: as near as can be to real rows' value
# What a value was computed from. What only the twin and its model went into may be published: it is
# post-processing of what is differentially private. Everything else stays with the owner.
Where = Literal["private rows", "release alone"]
Z_95 = 1.959963984540054  # two-sided 95 % quantile of the standard normal


@dataclass(frozen=True)
class Score:
    """One value with its 95 % interval, the way it should go, its range and its sample size.

    Args:
        name: the measure.
        value: what was found.
        low: lower end of the interval.
        high: upper end.
        goal: the way it should go.
        minimum: least possible value.
        maximum: greatest possible value; may be ∞.
        n: what the interval counts: rows, pairs, runs.
        where: what it was computed from.
    """

    name: str
    value: float
    low: float
    high: float
    goal: Goal
    minimum: float
    maximum: float
    n: int
    where: Where = "private rows"

    def __str__(self) -> str:
        """Return "0.812 [0.794, 0.829]"."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(name: str, hits: int, n: int, goal: Goal = "maximise") -> Score:
    """Return hits / n with Wilson's interval (Wilson 1927), which holds near 0 and 1 too.

    The interval speaks of the n rows counted, not of training once more.

    Raises:
        ValueError: n is 0, or hits is not within 0 … n.

    >>> print(proportion("accuracy", 90, 100))
    0.900 [0.826, 0.945]
    """
    from scipy.stats import binomtest

    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"{hits} of {n} is no proportion")
    found = binomtest(hits, n).proportion_ci(0.95, "wilson")
    p = hits / n
    low, high = min(p, float(found.low)), max(p, float(found.high))  # by rounding p may be outside
    return Score(name, p, low, high, goal, 0.0, 1.0, n)


def mean(name: str, values: Sequence[float], goal: Goal, minimum: float, maximum: float) -> Score:
    """Return the mean of repetitions with Student's t interval, cut at the range.

    The interval speaks of doing it all once more. One value has none: it is the whole range.

    Raises:
        ValueError: there is no value.

    >>> print(mean("accuracy", [0.8, 0.9, 0.85], "maximise", 0.0, 1.0))
    0.850 [0.726, 0.974]
    """
    from scipy.stats import t

    n, middle = len(values), statistics.fmean(values)
    half = math.inf
    if n > 1:
        half = float(t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    low, high = max(minimum, middle - half), min(maximum, middle + half)
    return Score(name, middle, low, high, goal, minimum, maximum, n)
