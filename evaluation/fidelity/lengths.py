"""How long texts are, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from evaluation.fidelity.words import words
from evaluation.findings import Histogram, Score, mean

_BINS = 20


def lengths(texts: Sequence[str]) -> np.ndarray:
    """Return the number of words of each text (N,)."""
    return np.array([len(words(text)) for text in texts])


def length_scores(counted: np.ndarray) -> list[Score]:
    """Return mean and median of lengths; the intervals speak of other rows from the same source."""
    values = counted.tolist()
    return [mean("mean length", values, "match", 0.0, math.inf), _median(sorted(values))]


def _median(values: list[int]) -> Score:
    """Return the median with its interval between two order statistics, for any distribution."""
    from scipy.stats import binom

    n = len(values)
    rank = int(binom.ppf(0.025, n, 0.5))  # fewer than 2.5 % of samples have less below the median
    low, high = (values[rank - 1], values[n - rank]) if rank else (0.0, math.inf)
    middle = float(np.median(values))
    return Score("median length", middle, low, high, "match", 0.0, math.inf, n)


def length_histogram(tables: Mapping[str, np.ndarray]) -> Histogram:
    """Return the shares of rows by length; the last bin holds what is beyond 99 % of all rows.

    Args:
        tables: by name, the lengths of its rows.
    """
    top = max(np.quantile(counted, 0.99) for counted in tables.values())
    width = _round_up(max(1.0, top / _BINS))
    bins = math.ceil((top + 1) / width)
    names = [f"{i * width}–{(i + 1) * width - 1}" if width > 1 else f"{i}" for i in range(bins)]
    series = {
        name: (np.bincount(np.minimum(counted // width, bins), minlength=bins + 1) / len(counted))
        for name, counted in tables.items()
    }
    return Histogram(
        "fidelity",
        "length",
        "words",
        [*names, f"{bins * width} or more"],
        {name: shares.tolist() for name, shares in series.items()},
    )


def _round_up(width: float) -> int:
    """Return the next of 1, 2, 5, 10, 20 and so on.

    >>> [_round_up(width) for width in (1, 1.2, 4, 11)]
    [1, 2, 5, 20]
    """
    power = 10 ** math.floor(math.log10(width))
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= width))
