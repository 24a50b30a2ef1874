"""The labels of a column as plain values, each once, and which of them each cell is.

Messages name columns and row numbers and never hold a cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.table.cells import numbers_of, plain_cell
from twinset.table.formats import is_of_text, row_name
from twinset.table.lazy_columns import AT_ONCE, blocks
from twinset.table.schema import LabelValue


@dataclass(frozen=True)
class LabelCodes:
    """The labels of a column, a number each.

    Args:
        numbers: (N,) places in `values`; -1 where there is no label.
        values: all different, in the order in which they occur.
    """

    numbers: np.ndarray
    values: list[LabelValue]

    @property
    def has_value(self) -> np.ndarray:
        """(N,) whether there is a label."""
        return self.numbers >= 0

    def of_rows(self, rows: np.ndarray) -> LabelCodes:
        """Return the labels of some rows, which all have one, as if there had been no others.

        Args:
            rows: (n,) numbers of rows, from 0.
        """
        used, numbers = np.unique(self.numbers[rows], return_inverse=True)
        values = [self.values[number] for number in used.tolist()]
        return LabelCodes(numbers.astype(np.int32), values)


def label_codes(column: pd.Series, place: str, as_written: bool = False) -> LabelCodes:
    """Return plain Python values of one type, each once, and which of them each cell is.

    Whole floats become ints (a column of ints with a gap reaches us as floats); the schema's dtype
    makes them floats again in the twin where that is what the column holds.

    Args:
        column: of labels.
        place: what to call it in messages.
        as_written: texts of a file that states no types stay as they are, if all of them are
            numbers too: where values are declared, none may decide what another is.

    Raises:
        InputError: the cells are no labels.
    """
    numbers = np.full(len(column), -1, np.int32)
    known: dict[tuple[type, Any], int] = {}  # by its type too: 1 and True are equal
    for start, cells in enumerate(blocks(column)):
        own, values = _factorized(cells)
        if not {type(value) for value in values if value is not None} <= {str, int, float, bool}:
            raise InputError(
                f"{place} holds neither text, numbers nor booleans; write them as text"
            )
        places = [
            -1 if value is None else known.setdefault((type(value), value), len(known))
            for value in values
        ]
        numbers[start * AT_ONCE :][: len(cells)] = np.array([*places, -1], np.int32)[own]
    kinds = {kind for kind, _ in known}
    if len(kinds) > 1 and kinds != {int, float}:
        raise InputError(f"{place} mixes text, numbers or booleans; make them of one kind")
    found = _merged(LabelCodes(numbers, [value for _, value in known]), column, place)
    return found if as_written or not is_of_text(column) else as_numbers(found)


def as_numbers(found: LabelCodes) -> LabelCodes:
    """Return labels as numbers or booleans where all of their values are written as such."""
    values = numbers_of(found.values)
    return found if values is None else _whole(LabelCodes(found.numbers, values))


def _factorized(cells: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Return which value each cell is, -1 for none, and the values, None where they are blank."""
    if cells.dtype == object:  # 1 and True are equal, and a list cannot be looked up
        gaps = cells.isna()
        return np.where(gaps, -1, np.arange(len(cells))), [
            None if gap else _plain(cell)
            for cell, gap in zip(cells.tolist(), gaps.tolist(), strict=True)
        ]
    numbers, values = pd.factorize(cells)
    return numbers, [_plain(value) for value in values.tolist()]


def _merged(found: LabelCodes, column: pd.Series, place: str) -> LabelCodes:
    """Return labels of which no two are equal, whole floats as ints."""
    if float not in set(map(type, found.values)):
        return found
    for number, value in enumerate(found.values):
        if isinstance(value, float) and not math.isfinite(value):
            row = row_name(column, int((found.numbers == number).argmax()))
            raise InputError(f"{place}, {row}: the number is infinite; correct it")
    return whole(found, column)


def whole(found: LabelCodes, column: pd.Series) -> LabelCodes:
    """Return labels as ints where all of them are whole numbers; categories stay as they are."""
    return _distinct(found) if isinstance(column.dtype, pd.CategoricalDtype) else _whole(found)


def _whole(found: LabelCodes) -> LabelCodes:
    values: list[Any] = found.values
    if all(map(_is_whole, values)):
        values = [int(value) for value in values]
    return _distinct(LabelCodes(found.numbers, values))


def _distinct(found: LabelCodes) -> LabelCodes:
    """Return labels of which no two are equal."""
    places: dict[LabelValue, int] = {}
    moved = [places.setdefault(value, len(places)) for value in found.values]
    return LabelCodes(np.array([*moved, -1], np.int32)[found.numbers], list(places))


def _is_whole(value: LabelValue) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def label_cells(column: pd.Series, place: str) -> list[LabelValue | None]:
    """Return the labels, None where there is none; see `label_codes`."""
    found = label_codes(column, place)
    known: list[LabelValue | None] = [*found.values, None]
    return [known[number] for number in found.numbers.tolist()]


def _plain(cell: Any) -> Any:
    value = plain_cell(cell)
    return None if isinstance(value, str) and not value.strip() else value
