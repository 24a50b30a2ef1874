"""Columns as Arrow: a table collected in pieces, its texts, and what a single cell is.

Readers of files yield pieces of a table, and `collect_table` joins them. The texts of a large table
lie in a mapped file. It has no name: no other user can open it, and it is gone with the process.

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
from typing import IO, Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from twinset.files.atomic import writing
from twinset.table.schema import Combination

ROWS_AT_ONCE = 10_000  # of a piece: a few megabytes of texts
_LARGEST = 2**53  # below it whole numbers are the same as floats
_TRUTH = {"True": True, "False": False}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_KINDS = {str: pa.large_string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}

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

    @property
    def last(self) -> str:
        """The row that was read last."""
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
    """Return a whole table. With a folder of its owner, later pieces' texts lie on the disk."""
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
                    # each array is a stream of its own; what stays in memory is where it begins
                    start, batch = file.tell(), pa.record_batch([cells], ["cells"])
                    with writing(folder), pa.ipc.new_stream(file, batch.schema) as stream:
                        stream.write_batch(batch)
                    cells = start
                parts.append(cells)
            total += rows
        if file is not None and folder is not None and file.tell():
            with writing(folder):
                file.flush()
            pages = map_file(file)
            for parts in chunks.values():
                for place, part in enumerate(parts):
                    if isinstance(part, int):
                        parts[place] = pa.ipc.open_stream(pages.slice(part)).read_all()[0].chunk(0)
    plain, mixed = {}, {}
    for name, parts in chunks.items():
        kinds = {part.type for part in parts if isinstance(part, pa.Array)} - {pa.null()}
        if len(kinds) < 2 and all(isinstance(part, pa.Array) for part in parts):
            kind = kinds.pop() if kinds else pa.null()
            cast = [part if part.type == kind else part.cast(kind) for part in parts]
            plain[name] = pa.chunked_array(cast, kind)
        else:
            lists = (part if isinstance(part, list) else part.to_pylist() for part in parts)
            mixed[name] = list(chain.from_iterable(lists))
    table = pa.table(plain, metadata=None if schema is None else schema.metadata)
    # whole numbers stay such next to a gap, in an object column
    frame = table.unify_dictionaries().to_pandas(integer_object_nulls=True)
    if schema is not None:  # all its columns are plain, and one of them may have become the index
        return frame
    for name, cells in mixed.items():
        # pandas would make floats of all numbers, and a fraction would change whole ones
        frame[name] = pd.Series(cells, dtype=object)
    return frame[list(chunks)] if chunks else pd.DataFrame(index=range(total))


def _as_arrow(cells: Any) -> Any:
    """Return cells as an array of Arrow's where all of them are of one plain kind."""
    if isinstance(cells, pa.Array):
        return cells.cast(pa.large_string()) if pa.types.is_string(cells.type) else cells
    kinds = set(map(type, cells)) - {type(None)}
    if not kinds:
        return pa.nulls(len(cells))
    # not what Arrow infers: it would take 1 and 2.5 for floats, and dates of a sheet for its own
    try:
        return pa.array(cells, _KINDS[kinds.pop()]) if len(kinds) == 1 else list(cells)
    except (KeyError, OverflowError, UnicodeError, pa.ArrowException):
        return list(cells)  # objects, or a whole number of more than 64 bits


def map_file(file: IO[bytes]) -> pa.Buffer:
    """Return a file's bytes, mapped. The system takes their memory back when it needs it."""
    return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def blocks(column: Any) -> Iterator[Any]:
    """Yield a column or a table in pieces, so that few of its cells are Python objects at once."""
    for start in range(0, len(column), ROWS_AT_ONCE):
        yield column.iloc[start : start + ROWS_AT_ONCE]


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

    def __getitem__(self, index: Any) -> Any:
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
        self.column, self.mend = column, mend
        self.rows = np.arange(len(column)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(cells for _, cells in self._blocks())

    def cell(self, index: int) -> str:
        """Return one text."""
        found: str = self.column.iat[int(self.rows[index])]
        return found if self.mend is None else self.mend(found)

    def rows_where(self, holds: Callable[[str], bool]) -> list[int]:
        """Return the table's rows, from 0, of texts of which something holds.

        It must hold of whatever contains such a text, so a block is asked first.
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
        return len(found) - len(np.unique(found))

    def _blocks(self) -> Iterator[tuple[list[int], list[str]]]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = self.rows[start : start + ROWS_AT_ONCE].tolist()
            # a slice is many times faster than to pick single cells
            cells = self.column.iloc[rows[0] : rows[-1] + 1].tolist()
            cells = cells if len(cells) == len(rows) else [cells[row - rows[0]] for row in rows]
            yield rows, cells if self.mend is None else list(map(self.mend, cells))


@dataclass(eq=False)
class Labels(LazySequence[Combination]):
    """Label combinations by their numbers: (N,) which of `known` each record has."""

    numbers: np.ndarray
    known: Sequence[Combination]

    def __len__(self) -> int:
        return len(self.numbers)

    def cell(self, index: int) -> Combination:
        """Return one record's combination."""
        return self.known[self.numbers[index]]


@dataclass(eq=False)
class Picked(LazySequence[list[int]]):
    """Some rows of many: those at `places`."""

    rows: Sequence[list[int]]
    places: Sequence[int]

    def __len__(self) -> int:
        return len(self.places)

    def cell(self, index: int) -> list[int]:
        """Return one row."""
        return self.rows[self.places[index]]


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


def typed(column: pd.Series) -> pd.Series:
    """Return a column of texts as numbers or booleans, if `shown` makes every cell of it again.

    So whoever shows a cell has what stood in the file, whatever the other cells are.

    >>> [str(typed(pd.Series(c, dtype="str")).dtype) for c in (["7", "12"], ["7", None], ["007"])]
    ['int64', 'float64', 'str']
    """

    def read(text: str) -> int | float | bool | None:
        if text in _TRUTH:
            return _TRUTH[text]
        value = parse_number(text) if _NUMBER.fullmatch(text) else None
        return value if value is not None and shown(value) == text else None

    # most columns are told by their first texts, before all of them are looked up
    for cells in blocks(column):
        if any(read(text) is None for text in cells.dropna().unique()):
            return column
    numbers, texts = pd.factorize(column)  # (N,) place of each cell in `texts`; -1: a gap
    values: list[Any] = list(map(read, texts))
    has_gap, kinds = bool((numbers < 0).any()), set(map(type, values))
    if not values or (bool in kinds and len(kinds) > 1):
        return column
    if bool in kinds:  # with a gap they are objects
        known = np.array([*values, np.nan], object) if has_gap else np.array(values)
    elif kinds == {int} and not has_gap and all(abs(value) < 2**63 for value in values):
        known = np.array(values, np.int64)
    elif all(type(value) is float or abs(value) <= _LARGEST for value in values):
        known = np.array([*values, np.nan], np.float64)
    else:
        return column
    return pd.Series(known[numbers], column.index, name=column.name)


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
