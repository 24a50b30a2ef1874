"""Values over seeds, with 95 % intervals: means, differences, ratios of perplexities.

Seeds are paired: what two models have in common by their seed does not blur their difference. Knows
no experiment and passes no judgement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from evaluation.scores import mean

DRAWS = 2000
_LARGEST = 700.0  # e to a larger power is no float

Value = TypeVar("Value")
Groups = np.ndarray  # (G, 2): nats and tokens of the same groups of scored lines for every model


@dataclass(frozen=True)
class Interval:
    """One value with its 95 % interval.

    Args:
        value: the middle.
        low: of the interval; -∞, or 0 of a ratio, where one seed tells nothing.
        high: of the interval; ∞ likewise.
        seeds: it was taken over.
    """

    value: float
    low: float
    high: float
    seeds: int

    def above(self, bound: float) -> bool | None:
        """Whether the value is above a bound; None where the interval does not tell.

        >>> [Interval(2, low, high, 3).above(1) for low, high in ((1.5, 2.5), (0, 4))]
        [True, None]
        """
        return True if self.low > bound else False if self.high < bound else None

    def within(self, least: float, most: float) -> Interval:
        """Return it cut at what is possible.

        >>> Interval(15.0, -3.0, 33.0, 3).within(0.0, 16.6).text(1)
        '15.0 [0.0, 16.6]'
        """
        return replace(self, low=max(self.low, least), high=min(self.high, most))

    def text(self, digits: int) -> str:
        """Return it in so many decimals, without an interval where there is none.

        >>> Interval(1, 0.5, 1.5, 3).text(2), Interval(1, 0, math.inf, 1).text(2)
        ('1.00 [0.50, 1.50]', '1.00')
        """
        middle, low, high = (f"{x:.{digits}f}" for x in (self.value, self.low, self.high))
        return middle if math.isinf(self.high) else f"{middle} [{low}, {high}]"

    def __str__(self) -> str:
        """Return "0.812 [0.794, 0.829]"."""
        return self.text(3)


def mean_of(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Interval:
    """Return the mean over seeds with Student's t interval, cut at the range; one seed has none.

    Raises:
        ValueError: there is no value.
    """
    score = mean("", values, "match", least, most)
    low, high = (score.low, score.high) if len(values) > 1 else (-math.inf, math.inf)
    return Interval(score.value, low, high, len(values))


def geometric_mean(values: Sequence[float]) -> Interval:
    """Return e to the mean of logarithms, and to the ends of its interval: of perplexities.

    >>> print(geometric_mean([10.0, 1000.0]).text(0).split()[0])
    100
    """
    return _powers(mean_of([math.log(value) for value in values]))


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """Return ours less theirs, seed by seed.

    Raises:
        ValueError: no seed has both.

    >>> difference({0: 3.0, 1: 5.0}, {0: 2.0, 1: 4.0, 2: 9.0})
    Interval(value=1.0, low=1.0, high=1.0, seeds=2)
    """
    return mean_of(_differences(ours, theirs, lambda value: value))


def ratio(ours: Mapping[int, Groups], theirs: Mapping[int, Groups]) -> Interval:
    """Return perplexity over perplexity, seed by seed: below 1 where ours is better.

    Of one seed alone the interval is a bootstrap over groups of lines: it speaks of these weights.

    Raises:
        ValueError: no seed has both.
    """
    mean = mean_of(_differences(ours, theirs, _nats))
    if mean.seeds == 1:
        (seed,) = ours.keys() & theirs.keys()
        low, high = _bootstrap(ours[seed], theirs[seed])
        mean = replace(mean, low=low, high=high)
    return _powers(mean)


def _differences(
    ours: Mapping[int, Value], theirs: Mapping[int, Value], number: Callable[[Value], float]
) -> list[float]:
    return [number(ours[seed]) - number(theirs[seed]) for seed in ours if seed in theirs]


def _powers(nats: Interval) -> Interval:
    """Return e to all of it; what is infinite stays so."""
    value, low, high = map(_times, (nats.value, nats.low, nats.high))
    return Interval(value, low, high, nats.seeds)


def _times(nats: float) -> float:
    return math.exp(nats if math.isinf(nats) else min(nats, _LARGEST))


def _nats(groups: Groups) -> float:
    return float(groups[:, 0].sum() / groups[:, 1].sum())


def _bootstrap(ours: Groups, theirs: Groups) -> tuple[float, float]:
    """Return the 95 % percentiles of the difference over draws of groups, the same for both."""
    drawn = np.random.default_rng(0).integers(len(ours), size=(DRAWS, len(ours)))
    a, b = (groups[drawn].sum(1) for groups in (ours, theirs))  # (draws, 2)
    low, high = np.quantile(a[:, 0] / a[:, 1] - b[:, 0] / b[:, 1], [0.025, 0.975])
    return float(low), float(high)
