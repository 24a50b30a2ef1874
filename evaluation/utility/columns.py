"""Columns of a table as parts, and models that predict one of them from all the others.

Numbers and dates are cut, texts count by their gaps alone. A gap is a value of its own. One table
decides how columns are cut and which of their values are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from twinset.table.cells import Cells, have_commas, loosely, read_date, read_number
from twinset.table.schema import plain

PARTS = 20  # that a column of many numbers is cut into
FEW = 30  # different values that are compared as they are
GAP, FILLED, REST = "(gap)", "(filled)", "(others)"
# Ten columns of 5,000 rows take about ten seconds on one core.
MODELLED_ROWS, MODELLED_COLUMNS = 5_000, 12
TARGETS, INPUTS = 10, 30  # values of a column that is predicted, and of one that predicts
# Each of `PARTS` parts to one of five. They are predicted, and twenty are too many.
FIFTHS = {f"{part:02}": f"{part // 4}" for part in range(PARTS)}


@dataclass(frozen=True)
class Cut:
    """How the cells of a column become parts: as they are, by edges, or by their gaps alone."""

    edges: tuple[float, ...] = ()  # between the parts of many numbers or dates
    by_gaps: bool = False  # texts and identifiers hardly repeat, so only their gaps are compared
    is_date: bool = False  # edges are in seconds since 1970
    has_commas: bool = False  # as real cells have: edges are of numbers with decimal commas

    @classmethod
    def of(cls, real: pd.Series) -> Cut:
        """Return how to cut a column, by its real cells.

        >>> Cut.of(pd.Series([f"text {n}" for n in range(99)])).by_gaps
        True
        """
        cells = Cells.of(real)
        filled, texts = int((cells.places >= 0).sum()), cells.texts
        if len(texts) <= FEW:
            return cls()
        commas = have_commas(texts)
        numbers = np.array([*(cell_number(text, commas) for text in texts), np.nan])[cells.places]
        known = numbers[~np.isnan(numbers)]
        if len(known) <= 0.5 * filled:
            return cls(by_gaps=len(texts) > 0.5 * filled)
        # whole numbers, none of which repeats, are identifiers
        if len(texts) == filled and all(text.isdecimal() for text in texts):
            return cls(by_gaps=True)
        edges = np.unique(np.quantile(known, np.linspace(0, 1, PARTS + 1)))
        is_date = sum(read_number(text) is not None for text in texts) < len(texts) / 2
        return cls(tuple(edges[1:-1].tolist()), False, is_date, commas)

    def parts(self, column: pd.Series) -> np.ndarray:
        """Return the part of each cell (n,), as a text.

        A twin has the spelling of declared values, so capitals and blanks at the ends don't count.

        >>> Cut().parts(pd.Series(["1.0", None, " York"])).tolist()
        ['1', '(gap)', 'york']
        """
        cells = Cells.of(column)
        if self.by_gaps:
            found = [FILLED] * len(cells.texts)
        elif self.edges:
            names = [f"{part:02}" for part in range(PARTS)]
            return cut_at(column, self.edges, names, self.has_commas)
        else:  # 1.0 of a text file is 1 of a column of numbers
            values = map(read_number, cells.texts)
            pairs = zip(values, cells.texts, strict=True)
            found = [loosely(text) if v is None else plain(v[0]) for v, text in pairs]
        return np.array([*found, GAP], object)[cells.places]


def cut_at(
    column: pd.Series, edges: Sequence[float], names: Sequence[str], has_commas: bool = False
) -> np.ndarray:
    """Return the name of the part (n,) that each number or date is in. Other cells are gaps."""
    cells = Cells.of(column)
    numbers = np.array([*(cell_number(text, has_commas) for text in cells.texts), np.nan])
    places = np.searchsorted(edges, numbers, side="right").tolist()
    found = [GAP if np.isnan(n) else names[p] for n, p in zip(numbers, places, strict=True)]
    return np.array(found, object)[cells.places]


def cell_number(text: str, has_commas: bool = False) -> float:
    """Return a cell as a number, a date in seconds, or NaN."""
    if (found := read_number(text, has_commas)) is not None:
        return found[0]
    return next(iter(read_date(text).meanings.values()), np.nan)


def keep_frequent(parts: Sequence[np.ndarray], most: int, by: int) -> list[np.ndarray]:
    """Return parts of tables, with one value for all that are rare in table number `by`."""
    kept = pd.Series(parts[by]).value_counts().index[:most]
    return [np.where(np.isin(each.astype(str), kept.astype(str)), each, REST) for each in parts]


def column_tasks(
    parts: Mapping[str, Sequence[np.ndarray]], cuts: Mapping[str, Cut], by: int
) -> Iterator[tuple[str, list[Any], list[np.ndarray]]]:
    """Yield each column that can be predicted, with its inputs and values in every table.

    Inputs (n, d) have a 1 for each value that a row has in the other columns.

    Args:
        parts: of each column, those of every table.
        cuts: of each column.
        by: number of the table that decides which values are frequent.
    """
    from scipy.sparse import csr_array, hstack

    names = list(parts)[:MODELLED_COLUMNS]
    ends = np.cumsum([0, *map(len, next(iter(parts.values()), ()))]).tolist()
    inputs = {}
    for name in names:
        codes = pd.factorize(np.concatenate(keep_frequent(parts[name], INPUTS, by)))[0]
        inputs[name] = csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)))
    for name in names if len(names) > 1 else ():
        if cuts[name].by_gaps:
            continue
        found = parts[name]
        if cuts[name].edges:  # four parts become one
            found = [np.array([FIFTHS.get(p, p) for p in each], object) for each in found]
        x = csr_array(hstack([inputs[other] for other in names if other != name]))
        of_tables = [x[start:end] for start, end in pairwise(ends)]
        yield name, of_tables, keep_frequent(found, TARGETS, by)


def column_model() -> Any:
    """Return an unfitted model of a column."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=200)
