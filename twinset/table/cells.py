"""Cells of files that state no types: what a cell is depends on no other cell of its column.

A reader that infers types of whole columns lets one row change all others: beside "free" the price
"3.50" is a text, and without it the number 3.5. Then two tables that differ in one record differ in
all of them, and no noise on one record's part covers that.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

FIRST = 1000  # cells that tell of most columns that they hold texts
_LARGEST = 2**53  # below it whole numbers are the same as floats
_TRUTH = {"True": True, "False": False}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


def plain_cell(cell: Any) -> Any:
    """Return a cell as Python's own number or text: dates by ISO 8601, decimals as numbers.

    >>> plain_cell(Decimal("4.50")), plain_cell(pd.Timestamp("2024-02-29"))
    (4.5, '2024-02-29')
    """
    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() else float(cell)
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat().removesuffix("T00:00:00")
    if isinstance(cell, datetime.timedelta):
        return str(pd.Timedelta(cell).to_pytimedelta())  # also where all of a column are such
    return cell.item() if isinstance(cell, np.generic) else cell


def shown(cell: Any) -> str:
    """Return a cell as text, whole numbers without a point.

    >>> shown(7.0), shown(2.5), shown(True)
    ('7', '2.5', 'True')
    """
    value = plain_cell(cell)
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def exact(frame: pd.DataFrame, cells: Callable[[str], Sequence[Any]]) -> pd.DataFrame:
    """Return a table whose large whole numbers are what they were, also beside a gap or a fraction.

    pandas makes floats of all of a column's numbers there, which are exact up to 2⁵³ alone.

    Args:
        frame: made of cells.
        cells: returns those of a column, by its name, as they were.

    >>> ids = [2**60 + 1, None]
    >>> exact(pd.DataFrame({"id": ids}), {"id": ids}.get)["id"].tolist() == ids
    True
    """
    for name in frame.columns[frame.dtypes == "float64"]:
        if (frame[name].abs() >= _LARGEST).any():
            frame[name] = pd.Series(cells(name), frame.index, dtype=object)
    return frame


def typed(column: pd.Series) -> pd.Series:
    """Return a column of texts as numbers or booleans, if `shown` makes every cell of it again.

    So whoever shows a cell has what stood in the file, whatever the other cells are.

    >>> [str(typed(pd.Series(c, dtype="str")).dtype) for c in (["7", "12"], ["7", None], ["007"])]
    ['int64', 'float64', 'str']
    """
    if not all(map(_is_canonical, column.iloc[:FIRST].dropna())):
        return column
    numbers, values = pd.factorize(column)
    if not len(values) or not all(map(_is_canonical, values)):
        return column
    has_gaps = bool((numbers < 0).any())
    found = _of_one_kind([_value(text) for text in values], has_gaps)
    if found is None:
        return column
    known = pd.Series([*found, np.nan] if has_gaps else found)  # booleans and a gap are objects
    return known.iloc[numbers].set_axis(column.index).rename(column.name)


def _is_canonical(text: str) -> bool:
    return text in _TRUTH or (_NUMBER.fullmatch(text) is not None and shown(_value(text)) == text)


def _value(text: str) -> int | float | bool:
    if text in _TRUTH:
        return _TRUTH[text]
    try:
        return int(text)
    except ValueError:
        return float(text)


def _of_one_kind(values: Sequence[Any], has_gaps: bool) -> Sequence[Any] | None:
    """Return values that one column can hold exactly; None: it cannot."""
    kinds = set(map(type, values))
    if bool in kinds:
        return values if kinds == {bool} else None
    if kinds == {int} and not has_gaps:
        return values if all(abs(value) < 2**63 for value in values) else None
    if all(type(value) is float or abs(value) <= _LARGEST for value in values):
        return [float(value) for value in values]
    return None


def numbers_of(values: Sequence[Any]) -> list[Any] | None:
    """Return texts as numbers or booleans, where all of them are such; None: they are not.

    For a set of texts that is public: what becomes of one depends on the others.

    >>> numbers_of(["1.0", "2.0"]), numbers_of(["true", "FALSE"]), numbers_of(["01", "02"])
    ([1.0, 2.0], [True, False], None)
    """
    if not values or not all(isinstance(value, str) for value in values):
        return None
    texts = [value.strip() for value in values]
    if all(text.lower() in ("true", "false") for text in texts):
        return [text.lower() == "true" for text in texts]
    if not all(map(_NUMBER.fullmatch, texts)):
        return None
    found = [_value(text) for text in texts]
    return found if all(map(math.isfinite, found)) else None
