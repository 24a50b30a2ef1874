"""The interval of a number that is no mean of rows: the jackknife over blocks of rows.

Numbers such as the share of distinct words or a divergence depend on how many rows there are, so
the bootstrap, which repeats rows, is off. Leaving out one block of rows at a time shifts all values
alike, and the shift cancels (Shao and Tu 1995, "The Jackknife and Bootstrap", §2.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from evaluation.findings import Goal, Score

BLOCKS = 10


def leaving_out(number: int) -> Iterator[np.ndarray]:
    """Yield which rows (N,) are kept when each block of them is left out; of one row, nothing.

    Rows must be in random order.
    """
    blocks = min(BLOCKS, number)
    for block in range(blocks) if blocks > 1 else ():
        yield np.arange(number) % BLOCKS != block


def jackknife(
    name: str,
    value: float,
    without: Sequence[float],
    goal: Goal,
    minimum: float,
    maximum: float,
    n: int,
) -> Score:
    """Return a value with Student's t interval of the jackknife, cut at the range.

    The interval speaks of other rows from the same sources, as many. It is rather too wide than too
    narrow (Efron and Stein 1981). Of fewer than two blocks there is none: it is the whole range.

    Args:
        name: the measure.
        value: on all rows.
        without: the same, leaving out each block of rows.
        goal: the way it should go.
        minimum: least possible value.
        maximum: greatest possible value.
        n: rows.
    """
    from scipy.stats import t

    value = min(max(value, minimum), maximum)  # by rounding it may be beyond
    blocks, half = len(without), math.inf
    if blocks > 1 and np.isfinite(without).all():
        error = math.sqrt((blocks - 1) * float(np.var(without)))
        half = float(t.ppf(0.975, blocks - 1)) * error
    low, high = max(minimum, value - half), min(maximum, value + half)
    return Score(name, value, low, high, goal, minimum, maximum, n)
