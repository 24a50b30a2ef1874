"""Are the other columns faithful? Each column, each pair of columns, and models of one by all.

Numbers and dates are cut at the real table's quantiles, so that equal shares are compared. A gap is
a value of its own.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from twinset.table.kinds import Cells, read_dates, read_number

PARTS = 20  # that a column of many numbers is cut into
FEW = 30  # different values that are compared as they are
GAP = "(gap)"


def cut_alike(real: pd.Series, other: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the same parts of a column in two tables, as texts (n,) and (m,).

    >>> cut_alike(pd.Series([1, None]), pd.Series([1.0]))[0].tolist()
    ['1', '(gap)']
    """
    found = [Cells.of(real), Cells.of(other)]
    numbers = [
        np.array([cell_number(t) for t in cells.texts] + [np.nan])[cells.places] for cells in found
    ]
    known = ~np.isnan(numbers[0])
    is_many = len(found[0].texts) > FEW and known.sum() > 0.5 * (found[0].places >= 0).sum()
    if not is_many:
        texts = [np.array([*cells.texts, GAP], object)[cells.places] for cells in found]
        return texts[0], texts[1]
    edges = np.unique(np.quantile(numbers[0][known], np.linspace(0, 1, PARTS + 1)))
    parts = []
    for each in numbers:
        places = np.searchsorted(edges[1:-1], each, side="right")
        parts.append(np.where(np.isnan(each), GAP, places.astype(str)).astype(object))
    return parts[0], parts[1]


def cell_number(text: str) -> float:
    """Return a cell as a number, a date in seconds, or NaN."""
    if (found := read_number(text)) is not None:
        return found[0]
    return next(iter(read_dates(text).values()), np.nan)


def total_variation(real: np.ndarray, other: np.ndarray) -> float:
    """Return half the sum of differences of shares: 0 if tables agree, 1 if no value is shared.

    >>> total_variation(np.array(["a", "b"], object), np.array(["a", "a"], object))
    0.5
    """
    shares = [pd.Series(each).value_counts(normalize=True) for each in (real, other)]
    return float(shares[0].sub(shares[1], fill_value=0).abs().sum() / 2)


def column_distances(
    real: pd.DataFrame, other: pd.DataFrame
) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Return the total variation of each column that both tables have, and of each pair of them."""
    names = [name for name in real if name in other]
    parts = {name: cut_alike(real[name], other[name]) for name in names}
    one = {name: total_variation(*parts[name]) for name in names}
    two = {}
    for a, b in combinations(names, 2):
        both = (parts[a][i] + "\0" + parts[b][i] for i in (0, 1))
        two[a, b] = total_variation(*both)
    return one, two
