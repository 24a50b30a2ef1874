"""Columns of which few cells are Python objects at once, and tables that lie on the disk.

A large table is written in Arrow's format and looked at there. Its file has no name: nobody else
can open it, and it is gone with the process, however that ends. Knows nothing of what cells mean.
"""

from __future__ import annotations

import datetime
import math
import mmap
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar, overload
from weakref import WeakSet

import numpy as np
import pandas as pd
import pyarrow as pa

from twinset.files.atomic import writing
from twinset.table.schema import Combination

AT_ONCE = 10_000  # cells
ROWS_AT_ONCE = 10_000  # of a table that is read piece by piece

# Columns of one of these dtypes in every piece have it, and the same cells, in the whole table.
_PLAIN = {
    "str": pa.large_string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}

_OPEN: WeakSet[mmap.mmap] = WeakSet()

Cell = TypeVar("Cell")


def blocks(column: pd.Series) -> Iterator[pd.Series]:
    """Yield a column in pieces, and let go of what lies on the disk after each."""
    for start in range(0, len(column), AT_ONCE):
        yield column.iloc[start : start + AT_ONCE]
        let_go()


def some_at_once(cells: Iterable[Cell], length: int = AT_ONCE) -> Iterator[list[Cell]]:
    """Yield all cells, in lists of a fixed length but for the last."""
    source = iter(cells)
    while some := list(islice(source, length)):
        yield some


class LazySequence(Sequence[Cell]):
    """Cells that are made when they are asked for."""

    @abstractmethod
    def cell(self, index: int) -> Cell:
        """Return one of them."""

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> list[Cell]: ...
    def __getitem__(self, index: int | slice) -> Cell | list[Cell]:
        if isinstance(index, slice):
            return [self.cell(i) for i in range(*index.indices(len(self)))]
        return self.cell(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Texts(LazySequence[str]):
    """Some cells of a column, all of them texts.

    Args:
        column: of a table, in memory or on the disk.
        rows: rising numbers of those that are meant, from 0; None: all.
        mended: what each of them is to be changed to; None: they stay as they are.
    """

    def __init__(
        self,
        column: pd.Series,
        rows: np.ndarray | None = None,
        mended: Callable[[str], str] | None = None,
    ) -> None:
        self._column, self._mended = column, mended
        self._rows = range(len(column)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(cells for _, cells in self._blocks())

    def cell(self, index: int) -> str:
        """Return one text."""
        found: str = self._column.iat[int(self._rows[index])]
        return found if self._mended is None else self._mended(found)

    @property
    def rows(self) -> np.ndarray:
        """Their rows in the table, from 0."""
        return np.asarray(self._rows)

    def some(self, places: np.ndarray) -> Texts:
        """Return those of them in rising places, from 0."""
        return Texts(self._column, self.rows[places], self._mended)

    def rows_where(self, holds: Callable[[str], bool]) -> list[int]:
        """Return the table's rows, from 0, of texts of which something holds.

        Args:
            holds: true of what contains a text of which it is true; so a block is asked first.
        """
        return [
            row
            for rows, cells in self._blocks()
            if holds(" ".join(cells))
            for row, cell in zip(rows, cells, strict=True)
            if holds(cell)
        ]

    def mended(self, change: Callable[[str], str]) -> Texts:
        """Return the same texts, changed when they are looked at."""
        rows = None if isinstance(self._rows, range) else self._rows
        return Texts(self._column, rows, change)

    def repeats(self) -> int:
        """Return how many texts occurred before: by 64 bits of each, so one in 10⁷ tables errs."""
        found = np.fromiter(map(hash, self), np.int64, len(self))
        found.sort()
        return int((found[1:] == found[:-1]).sum())

    def _blocks(self) -> Iterator[tuple[Sequence[int], list[str]]]:
        for start in range(0, len(self), AT_ONCE):
            rows: Any = self._rows[start : start + AT_ONCE]
            first = rows[0]
            cells = self._column.iloc[first : rows[-1] + 1].tolist()
            cells = cells if len(cells) == len(rows) else [cells[row - first] for row in rows]
            yield rows, cells if self._mended is None else list(map(self._mended, cells))
            let_go()


class Labels(LazySequence[Combination]):
    """Label combinations by their numbers.

    Args:
        numbers: (N,) which of `known` each record has.
        known: all combinations.
    """

    def __init__(self, numbers: np.ndarray, known: Sequence[Combination]) -> None:
        self.numbers, self.known = numbers, list(known)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Combination]:
        for start in range(0, len(self), AT_ONCE):
            for number in self.numbers[start : start + AT_ONCE].tolist():
                yield self.known[number]

    def cell(self, index: int) -> Combination:
        """Return one record's combination."""
        return self.known[self.numbers[index]]


class Picked(LazySequence[list[int]]):
    """Some rows of many.

    Args:
        rows: all of them.
        places: those that are meant.
    """

    def __init__(self, rows: Sequence[list[int]], places: Sequence[int]) -> None:
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._places)

    def cell(self, index: int) -> list[int]:
        """Return one row."""
        return self._rows[self._places[index]]


@dataclass
class RowNumbers:
    """What a table's rows are called in messages: as a spreadsheet or an editor counts them.

    Args:
        word: for a row.
        header: rows before the first one.
        blank: of each row of the file, header included, whether it holds nothing.

    >>> RowNumbers("row", header=1).name(0)
    'row 2'
    >>> RowNumbers("line", blank=bytearray(b"0110")).name(1)
    'line 4'
    """

    word: str = "row"
    header: int = 0
    blank: bytearray = field(default_factory=bytearray)

    def begin(self) -> None:
        """Count from the first row of the file."""
        self.blank.clear()

    def count(self, is_blank: bool = False) -> None:
        """Go on by a row of the file."""
        self.blank.append(b"01"[is_blank])

    @property
    def last(self) -> str:
        """The row that was counted last."""
        return f"{self.word} {len(self.blank)}"

    @property
    def next(self) -> str:
        """The row after that."""
        return "the header" if len(self.blank) < self.header else self._numbered(len(self.blank))

    def name(self, index: int) -> str:
        """Return what to call a row of the table.

        Args:
            index: from 0.
        """
        if b"1" not in self.blank:
            return self._numbered(index + self.header)
        filled = np.flatnonzero(np.frombuffer(bytes(self.blank), np.uint8) == ord("0"))
        return self._numbered(int(filled[index + self.header]))

    def _numbered(self, place: int) -> str:
        return f"{self.word} {place + 1}"

    def to_plain(self) -> list[Any]:
        """Return plain values, of which another one like this can be made."""
        return [self.word, self.header, self.blank.decode() if b"1" in self.blank else ""]


@dataclass(frozen=True)
class Reading:
    """The ways to read a table.

    Args:
        whole: all of it.
        pieces: some rows after the others, each piece with dtypes of its own.
        column: one column by its place and its name, as `whole` has it.
        declared: dtypes of whole numbers and booleans, where the source states types: pandas makes
            others of them where cells are missing.
        rows: what they are called; known once the table was read.
        notes: on how the source is read, for its owner.
    """

    whole: Callable[[], pd.DataFrame]
    pieces: Callable[[], Iterator[pd.DataFrame]]
    column: Callable[[int, str], pd.Series]
    declared: Mapping[str, str] = field(default_factory=dict)
    rows: RowNumbers = field(default_factory=RowNumbers)
    notes: Sequence[str] = ()


def let_go() -> None:
    """Give back the memory of pages that were looked at; the system reads them again if need be."""
    for pages in _OPEN:
        pages.madvise(mmap.MADV_DONTNEED)


def mapped(reading: Reading, folder: Path) -> pd.DataFrame:
    """Return what `reading.whole` returns, its texts on the disk unless there are few.

    A column whose dtype is not plain, or not that of its first rows throughout, is in memory.

    Args:
        reading: of the table.
        folder: private to its owner, where the file is made.

    Raises:
        InputError: the file cannot be written, or whatever reading raises.
    """
    pieces = reading.pieces()
    first, second = next(pieces, None), next(pieces, None)
    if first is None or not _can_be_mapped(first):
        return reading.whole()
    if second is None:
        return first
    with writing(folder):
        file = TemporaryFile(dir=folder)
    with file:
        names, plain = _written(chain([first, second], pieces), file, folder)
        table = _looked_at(file)
    columns = {name: _series(table[name]) for name in plain}
    for place, name in enumerate(names):
        if name not in columns:
            columns[name] = reading.column(place, name)
    return pd.DataFrame({name: columns[name] for name in names})


def _can_be_mapped(first: pd.DataFrame) -> bool:
    """Return whether columns can be told by their names, and rows by their numbers."""
    named = all(isinstance(name, str) for name in first.columns) and first.columns.is_unique
    return named and isinstance(first.index, pd.RangeIndex)


def _written(
    pieces: Iterator[pd.DataFrame], file: IO[bytes], folder: Path
) -> tuple[list[str], list[str]]:
    """Write all pieces; return the names of all columns, and of those that are plain throughout."""
    first = next(pieces)
    kinds = {str(name): str(dtype) for name, dtype in first.dtypes.items()}
    kinds = {name: dtype for name, dtype in kinds.items() if dtype in _PLAIN}
    schema = pa.schema([(name, _PLAIN[dtype]) for name, dtype in kinds.items()])
    names, plain = dict.fromkeys(first.columns), dict(kinds)
    writer = pa.ipc.new_stream(file, schema)
    for piece in chain([first], pieces):
        names |= dict.fromkeys(piece.columns)
        plain = {n: d for n, d in plain.items() if n in piece and str(piece[n].dtype) == d}
        with writing(folder):
            for batch in _rows(piece, schema, plain).to_batches():
                writer.write_batch(batch)
    with writing(folder):
        writer.close()
        file.flush()
    return list(names), list(plain)


def _rows(piece: pd.DataFrame, schema: pa.Schema, plain: dict[str, str]) -> pa.Table:
    """Return a piece's rows; of columns that are not plain, nothing."""
    cells = [
        pa.array(piece[field.name], field.type, from_pandas=True)
        if field.name in plain
        else pa.nulls(len(piece), field.type)
        for field in schema
    ]
    return pa.table(cells, schema)


def _looked_at(file: IO[bytes]) -> pa.Table:
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _OPEN.add(pages)
    return pa.ipc.open_stream(pa.py_buffer(pages)).read_all()


def _series(column: pa.ChunkedArray) -> pd.Series:
    """Return a column; texts stay where they are."""
    if not pa.types.is_large_string(column.type):
        return pd.Series(column.to_numpy(), dtype=_numpy(column.type))
    dtype: Any = pd.StringDtype("pyarrow", na_value=np.nan)
    return pd.Series(dtype.__from_arrow__(column), dtype=dtype)


def _numpy(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(kind.to_pandas_dtype())


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
