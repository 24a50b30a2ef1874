"""From values to places on a picture, and where the ticks of an axis stand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_POSITIVE = 1e-12


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic axis; values outside of it are drawn at its ends.

    Args:
        low: least value.
        high: greatest value, above `low`.
        start: where `low` is drawn.
        end: where `high` is drawn.
        log: logarithmic; then `low` is above 0.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return where a value is drawn.

        >>> Scale(0.01, 1.0, 0.0, 100.0, log=True)(0.1)
        50.0
        """
        low, high, value = self._bent(self.low), self._bent(self.high), self._bent(value)
        share = (min(max(value, low), high) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values within the axis, at most about so many.

        >>> Scale(0.0, 1.0, 0.0, 1.0).ticks(), Scale(1.0, 100.0, 0.0, 1.0, log=True).ticks()
        ([0.0, 0.25, 0.5, 0.75, 1.0], [1.0, 10.0, 100.0])
        """
        return self._powers(most) if self.log else self._multiples(most)

    def _bent(self, value: float) -> float:
        return math.log10(max(value, LEAST_POSITIVE)) if self.log else value

    def _multiples(self, most: int) -> list[float]:
        step = _round_step((self.high - self.low) / max(1, most - 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]

    def _powers(self, most: int) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high))
        powers = [10.0**k for k in range(first, last + 1)]
        if len(powers) > most:
            return powers[:: math.ceil(len(powers) / most)]
        if len(powers) > 2:
            return powers
        finer = (m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5))
        within = [value for value in finer if self.low <= value * (1 + 1e-9) <= self.high * 1.001]
        return within if len(within) > 1 else self._multiples(most)


def spanning(values: Iterable[float], log: bool = False) -> tuple[float, float]:
    """Return a lower and an upper end that hold all finite values with a little room.

    >>> spanning([0.2, 0.4, float("nan")]), spanning([3.0, 700.0], log=True), spanning([])
    ((0.18, 0.42), (3.0, 700.0), (0.0, 1.0))
    >>> spanning([1e-155])
    (-0.5, 0.5)
    """
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if not known:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        return (low, high) if high > low else (low / 2, high * 2)
    rooms = (0.1 * (high - low), 0.1 * abs(high), 0.5)
    room = next(room for room in rooms if room > 1e-9)  # below, both ends round to one number
    return round(low - room, 12), round(high + room, 12)


def round_above(value: float) -> float:
    """Return a round number that is not below a value above 0.

    >>> round_above(0.013), round_above(7.2)
    (0.02, 10.0)
    """
    return _round_step(value * (1 - 1e-9))


def _round_step(least: float) -> float:
    """Return the least of 1, 2, 2.5, 5 times a power of ten that is not below."""
    least = max(least, LEAST_POSITIVE)
    unit = 10.0 ** math.floor(math.log10(least))
    steps = (m * unit for m in (1, 2, 2.5, 5, 10))
    return round(next((step for step in steps if step >= least * (1 - 1e-9)), 10 * unit), 15)
