"""Columns as Arrow: cells in pieces, tables on the disk, and what a cell of a file is.

Readers of files yield pieces of a table, and `collect_table` makes one table of them. Few cells
are Python objects at once. The texts of a large table lie in a file that is mapped. It has no
name: no other user can open it, and it is gone with the process, however that ends.

What a cell is depends on no other cell of its column. A reader that infers types of whole columns
lets one row change all others: next to "free" the price "3.50" is a text, and without it the
number 3.5. Then two tables that differ in one record differ in all of them, and no noise on one
record's part covers that.
"""

from __future__ import annotations

import datetime
import math
import mmap
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
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

ROWS_AT_ONCE = 10_000  # of a piece: few megabytes of texts
_LARGEST = 2**53  # below it whole numbers are the same as floats
_TRUTH = {"True": True, "False": False}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_KINDS = {str: pa.large_string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_MAPS: WeakSet[mmap.mmap] = WeakSet()

Cell = TypeVar("Cell")
Piece = tuple[int, Mapping[str, Any]]  # number of rows, and by column its cells: Arrow's or a list


@dataclass
class RowNumbers:
    """What a table's rows are called in messages: as a spreadsheet or an editor counts them.

    Args:
        word: for a row.
        header: rows before the first one.
        blank: of each row of the file, header included, whether it holds nothing ("0" or "1").

    >>> RowNumbers("row", header=1).name(0)
    'row 2'
    >>> RowNumbers("line", blank=bytearray(b"0110")).name(1)
    'line 4'
    """

    word: str = "row"
    header: int = 0
    blank: bytearray = field(default_factory=bytearray)

    def count(self, is_blank: bool = False) -> None:
        """Count one more row of the file."""
        self.blank.append(b"01"[is_blank])

    @property
    def last(self) -> str:
        """The row that was counted last."""
        return f"{self.word} {len(self.blank)}"

    @property
    def next(self) -> str:
        """The row after that."""
        rows = len(self.blank)
        return "the header" if rows < self.header else f"{self.word} {rows + 1}"

    def name(self, index: int) -> str:
        """Return what to call a row of the table, by its number from 0."""
        place = index + self.header
        if b"1" in self.blank:
            filled = np.flatnonzero(np.frombuffer(bytes(self.blank), np.uint8) == ord("0"))
            place = int(filled[place])
        return f"{self.word} {place + 1}"


@dataclass(frozen=True)
class TableReader:
    """A table that can be read once, piece by piece.

    Args:
        pieces: its rows, some at a time.
        schema: of Arrow, where the source states types.
        rows: what they are called. Known once the table was read.
        notes: on how the source is read, for its owner.
    """

    pieces: Iterator[Piece]
    schema: pa.Schema | None = None
    rows: RowNumbers = field(default_factory=RowNumbers)
    notes: Sequence[str] = ()


def collect_table(reader: TableReader, folder: Path | None = None) -> pd.DataFrame:
    """Return a whole table. In a folder, texts behind its first piece are on the disk.

    Args:
        reader: of the table.
        folder: private to its owner, where a file without a name is made. None: in memory.

    Raises:
        InputError: the file cannot be written, or whatever reading raises.
    """
    schema, total = reader.schema, 0
    chunks: dict[str, list[Any]] = {} if schema is None else {name: [] for name in schema.names}
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        for rows, columns in reader.pieces:
            for name in columns:  # a key of JSONL may come late
                chunks.setdefault(name, [pa.nulls(total)])
            if folder is not None and total and file is None:
                with writing(folder):
                    file = stack.enter_context(TemporaryFile(dir=folder))
            for name, parts in chunks.items():
                cells = _as_arrow(columns[name]) if name in columns else pa.nulls(rows)
                is_text = isinstance(cells, pa.Array) and pa.types.is_large_string(cells.type)
                if file is not None and folder is not None and is_text:
                    with writing(folder):
                        cells = _write_chunk(cells, file)  # where in the file it begins
                parts.append(cells)
            total += rows
        pages = None
        if file is not None and folder is not None:
            with writing(folder):
                file.flush()
            pages = map_file(file) if file.tell() else None
    known = {name: _whole_column(parts, pages) for name, parts in chunks.items()}
    plain = {name: cells for name, cells in known.items() if not isinstance(cells, list)}
    table = pa.table(plain, metadata=None if schema is None else schema.metadata)
    # whole numbers stay such next to a gap, in an object column
    frame = table.unify_dictionaries().to_pandas(integer_object_nulls=True)
    if schema is not None:  # all its columns are plain, and one of them may have become the index
        return frame
    for name, cells in known.items():
        if isinstance(cells, list):  # of several kinds, as pandas takes them
            frame[name] = exact(pd.Series(cells), cells)
    return frame[list(known)] if known else pd.DataFrame(index=range(total))


def _as_arrow(cells: Any) -> Any:
    """Return cells as an array of Arrow's where all of them are of one plain kind."""
    if isinstance(cells, pa.Array):
        return cells.cast(pa.large_string()) if pa.types.is_string(cells.type) else cells
    kinds = set(map(type, cells)) - {type(None)}
    if not kinds:
        return pa.nulls(len(cells))
    try:
        return pa.array(cells, _KINDS[kinds.pop()]) if len(kinds) == 1 else list(cells)
    except (KeyError, OverflowError, UnicodeError, pa.ArrowException):
        return list(cells)  # objects, or a whole number of more than 64 bits


def _write_chunk(cells: pa.Array, file: IO[bytes]) -> int:
    """Write an array as a stream of its own, so that columns may come late, and return where."""
    start = file.tell()
    batch = pa.record_batch([cells], ["cells"])
    with pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    return start


def _whole_column(parts: list[Any], pages: pa.Buffer | None) -> pa.ChunkedArray | list[Any]:
    """Return a column's pieces as one array, or as a list where they are of several kinds."""
    arrays = [
        pa.ipc.open_stream(pages.slice(part)).read_next_batch().column(0)
        if isinstance(part, int) and pages is not None
        else part
        for part in parts
    ]
    types = {part.type for part in arrays if isinstance(part, pa.Array)} - {pa.null()}
    if len(types) > 1 or any(isinstance(part, list) for part in arrays):
        return list(
            chain.from_iterable(p if isinstance(p, list) else p.to_pylist() for p in arrays)
        )
    kind = types.pop() if types else pa.null()
    return pa.chunked_array([p if p.type == kind else p.cast(kind) for p in arrays], kind)


def map_file(file: IO[bytes]) -> pa.Buffer:
    """Return a file's bytes, mapped: pages are read when they are looked at."""
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _MAPS.add(pages)
    return pa.py_buffer(pages)


def release_memory_maps() -> None:
    """Give back the memory of mapped pages. The system reads them again if need be."""
    for pages in _MAPS:
        pages.madvise(mmap.MADV_DONTNEED)


def blocks(column: pd.Series) -> Iterator[pd.Series]:
    """Yield a column in pieces, and release what lies on the disk after each."""
    for start in range(0, len(column), ROWS_AT_ONCE):
        yield column.iloc[start : start + ROWS_AT_ONCE]
        release_memory_maps()


def some_at_once(cells: Iterable[Cell], length: int | None = None) -> Iterator[list[Cell]]:
    """Yield all cells in lists of `length`, the last of which may be shorter."""
    source = iter(cells)
    while some := list(islice(source, length or ROWS_AT_ONCE)):
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
        rows: rising numbers of those that are meant, from 0. None: all.
        mend: what each of them is changed by when it is looked at. None: they stay as they are.
    """

    def __init__(
        self,
        column: pd.Series,
        rows: np.ndarray | None = None,
        mend: Callable[[str], str] | None = None,
    ) -> None:
        self._column, self._mend = column, mend
        self.rows = np.arange(len(column)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(cells for _, cells in self._blocks())

    def cell(self, index: int) -> str:
        """Return one text."""
        found: str = self._column.iat[int(self.rows[index])]
        return found if self._mend is None else self._mend(found)

    def at(self, places: np.ndarray) -> Texts:
        """Return those of them in rising places, from 0."""
        return Texts(self._column, self.rows[places], self._mend)

    def mended(self, change: Callable[[str], str]) -> Texts:
        """Return the same texts, changed when they are looked at."""
        return Texts(self._column, self.rows, change)

    def rows_where(self, holds: Callable[[str], bool]) -> list[int]:
        """Return the table's rows, from 0, of texts of which something holds.

        Args:
            holds: true of what contains a text of which it is true. So a block is asked first.
        """
        return [
            row
            for rows, cells in self._blocks()
            if holds(" ".join(cells))
            for row, cell in zip(rows, cells, strict=True)
            if holds(cell)
        ]

    def repeats(self) -> int:
        """Return how many texts occurred before: by 64 bits of each, so one in 10⁷ tables errs."""
        found = np.fromiter(map(hash, self), np.int64, len(self))
        found.sort()
        return int((found[1:] == found[:-1]).sum())

    def _blocks(self) -> Iterator[tuple[list[int], list[str]]]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = self.rows[start : start + ROWS_AT_ONCE].tolist()
            # a slice is many times faster than to pick single cells
            cells = self._column.iloc[rows[0] : rows[-1] + 1].tolist()
            cells = cells if len(cells) == len(rows) else [cells[row - rows[0]] for row in rows]
            yield rows, cells if self._mend is None else list(map(self._mend, cells))
            release_memory_maps()


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

    def cell(self, index: int) -> Combination:
        """Return one record's combination."""
        return self.known[self.numbers[index]]


class Picked(LazySequence[list[int]]):
    """Some rows of many: those at `places`."""

    def __init__(self, rows: Sequence[list[int]], places: Sequence[int]) -> None:
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._places)

    def cell(self, index: int) -> list[int]:
        """Return one row."""
        return self._rows[self._places[index]]


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


def exact(column: pd.Series, cells: Sequence[Any]) -> pd.Series:
    """Return a column whose large whole numbers are what they were, also next to a gap.

    pandas makes floats of all of a column's numbers there, which are exact up to 2⁵³ alone.

    >>> ids = [2**60 + 1, None]
    >>> exact(pd.Series(ids), ids).tolist() == ids
    True
    """
    if column.dtype == "float64" and (column.abs() >= _LARGEST).any():
        return pd.Series(cells, column.index, dtype=object)
    return column


def typed(column: pd.Series) -> pd.Series:
    """Return a column of texts as numbers or booleans, if `shown` makes every cell of it again.

    So whoever shows a cell has what stood in the file, whatever the other cells are.

    >>> [str(typed(pd.Series(c, dtype="str")).dtype) for c in (["7", "12"], ["7", None], ["007"])]
    ['int64', 'float64', 'str']
    """
    parts, has_value = [], False
    for block in blocks(column):
        numbers, texts = pd.factorize(block)
        values = [value for value in map(_canonical, texts) if value is not None]
        if len(values) < len(texts):
            return column
        has_gap, kinds = bool((numbers < 0).any()), set(map(type, values))
        if bool in kinds and len(kinds) > 1:
            return column
        if kinds == {int} and not has_gap and all(abs(value) < 2**63 for value in values):
            known = np.array(values, np.int64)
        elif bool in kinds:  # with a gap they are objects
            known = np.array([*values, np.nan], object) if has_gap else np.array(values)
        elif all(type(value) is float or abs(value) <= _LARGEST for value in values):
            known = np.array([*values, np.nan], np.float64)
        else:
            return column
        has_value = has_value or bool(values)
        parts.append(pd.Series(known[numbers], block.index))
    large = [p for p in parts if p.dtype == "int64" and (p.abs() > _LARGEST).any()]
    truths = [p for p in parts if p.dtype in ("bool", "object")]
    are_floats = any(p.dtype == "float64" and p.notna().any() for p in parts)
    if not has_value or (truths and (are_floats or any(p.dtype == "int64" for p in parts))):
        return column
    if large and any(p.dtype == "float64" for p in parts):  # a gap or a fraction elsewhere
        return column
    return pd.concat(parts, ignore_index=False).rename(column.name)


def _canonical(text: str) -> int | float | bool | None:
    """Return what a text is written as in the one way that `shown` writes. None: it is not."""
    if text in _TRUTH:
        return _TRUTH[text]
    value = parse_number(text) if _NUMBER.fullmatch(text) else None
    return value if value is not None and shown(value) == text else None


def parse_number(text: str) -> int | float:
    """Return a number: a whole one in all its digits, which may be more than a float has."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def numbers_of(values: Sequence[Any]) -> list[Any] | None:
    """Return texts as numbers or booleans, where all of them are such. None: they are not.

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
    found = [parse_number(text) for text in texts]
    return found if all(map(math.isfinite, found)) else None
