"""Sheets of Excel files (.xlsx) → tables. Knows nothing of formulas: their last results are read.

The file is a zip of XML that others wrote, so everything in it is bounded; what a library says of
it may quote cells and is not passed on.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd

from twinset.errors import InputError
from twinset.files.limits import (
    MOST_CELL,
    MOST_REPEATED,
    MOST_SHEET_ROWS,
    check_inflated,
    check_names,
)
from twinset.table.cells import exact
from twinset.table.lazy_columns import ROWS_AT_ONCE, Reading, RowNumbers

_ERRORS = {"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!"}  # of formulas
_Row = tuple[Any, ...]


def excel(path: Path, sheet: str | None = None) -> Reading:
    """Return the ways to read a sheet, whose first row that is not blank is the header.

    Args:
        path: of the file.
        sheet: its name; None: the first.

    Raises:
        InputError: not such a file, or it has no such sheet.
    """
    rows, notes = RowNumbers("row", header=1), _notes(path, sheet)

    def frame(header: _Row, found: Sequence[_Row]) -> pd.DataFrame:
        def cells(name: str) -> list[Any]:
            place = header.index(name)
            return [row[place] for row in found]

        return exact(pd.DataFrame(found, columns=list(header)), cells)

    def whole() -> pd.DataFrame:
        header, *found = _table(path, sheet, rows)
        return frame(header, found)

    def pieces() -> Iterator[pd.DataFrame]:
        found = _table(path, sheet, rows)
        header = next(found)
        while some := list(islice(found, ROWS_AT_ONCE)):
            yield frame(header, some)

    def column(place: int, name: str) -> pd.Series:
        cells = [(row[place],) for row in islice(_table(path, sheet, rows), 1, None)]
        return frame((name,), cells)[name]

    return Reading(whole, pieces, column, rows=rows, notes=notes)


def _notes(path: Path, sheet: str | None) -> list[str]:
    with _workbook(path) as book:
        names = book.sheetnames
    if sheet is not None and sheet not in names:
        raise InputError(f"{path}: has no sheet {sheet!r}; check `split`")
    if sheet is None and len(names) > 1:
        return [f"read the first of {len(names)} sheets (`split` names another)"]
    return []


def _table(path: Path, sheet: str | None, rows: RowNumbers) -> Iterator[_Row]:
    """Yield the header, then all rows that are not blank, as wide as it."""
    rows.begin()
    header: _Row = ()
    for cells in _rows(path, sheet):
        rows.count(is_blank=not cells)
        if len(rows.blank) > MOST_SHEET_ROWS:
            raise InputError(f"{path}: has more rows than a sheet can have; write it again")
        if cells and not header:
            header = _header(path, cells)
            yield header
        elif cells:
            _check_row(path, cells, header, rows)
            yield cells + (None,) * (len(header) - len(cells))
    if not header:
        raise InputError(f"{path}: the sheet is empty; give a table with a header row")


def _header(path: Path, cells: _Row) -> _Row:
    names = tuple(f"Unnamed: {n}" if c is None else str(c) for n, c in enumerate(cells))
    check_names(names, path)
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two columns have the same name; rename one in the header")
    return names


def _check_row(path: Path, cells: _Row, header: _Row, rows: RowNumbers) -> None:
    if len(cells) > len(header):
        raise InputError(
            f"{path}: {rows.last} has {len(cells)} cells where the header has {len(header)}; name "
            "every column in the first row, and keep notes out of the table"
        )
    if len(rows.blank) * len(header) > max(MOST_REPEATED, 10 * path.stat().st_size):
        raise InputError(f"{path}: most of its cells are empty; keep the columns that you need")
    if any(isinstance(cell, str) and len(cell) > MOST_CELL for cell in cells):
        raise InputError(f"{path}: {rows.last} has more than {MOST_CELL} characters in a cell")


def _rows(path: Path, sheet: str | None) -> Iterator[_Row]:
    """Yield all rows without the empty cells at their ends."""
    with _workbook(path) as book:
        found = book[book.sheetnames[0] if sheet is None else sheet]
        found.reset_dimensions()  # what the file says of its size, which may be anything
        for cells in found.iter_rows(values_only=True):
            plain = [None if cell in _ERRORS or cell == "" else cell for cell in cells]
            while plain and plain[-1] is None:
                plain.pop()
            yield tuple(plain)


@contextmanager
def _workbook(path: Path) -> Iterator[Any]:
    from openpyxl import load_workbook

    try:
        with path.open("rb") as raw, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what else is in the file
            _check_zip(raw, path)
            with closing(load_workbook(raw, read_only=True, data_only=True, keep_links=False)) as b:
                yield b
    except (InputError, OSError, MemoryError, GeneratorExit):
        raise
    except Exception:  # of a zip, of XML, of a sheet: dozens of kinds
        raise InputError(
            f"{path}: not a readable Excel file (.xlsx without a password); save it again"
        ) from None


def _check_zip(raw: io.BufferedReader, path: Path) -> None:
    with ZipFile(raw) as parts:
        inside = sum(part.file_size for part in parts.infolist())
    check_inflated(inside, path.stat().st_size, path)
    raw.seek(0)
