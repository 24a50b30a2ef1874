"""A table as columns: facts from its source, cells as texts and labels, and pieces of both.

Readers of files yield pieces of a table, and `collect_table` joins them. The texts of a large table
are in an unnamed mapped file. No other user can open it, and it disappears with the process.

The meaning of a cell depends on no other cell of its column. A reader that infers the type of a
column lets one row change all others: next to "free" the price "3.50" is a text, and without it the
number 3.5. Two tables that differ in one record would then differ in all records, and noise for one
record would not cover that.
"""

from __future__ import annotations

import datetime
import math
import mmap
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, islice
from numbers import Number
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from twinset.errors import InputError
from twinset.files.atomic import writing
from twinset.table.schema import LabelValue, plain, read_line

ROWS_AT_ONCE = 10_000  # of a piece: a few megabytes of texts
STATED = "twinset: stated by the source"  # key of a table's `attrs`
_LARGEST = 2**53  # below it whole numbers are the same as floats
_TRUTH = {"True": True, "False": False}
_NARROW = {"halffloat[pyarrow]": "float16", "float[pyarrow]": "float32"}
_NARROW |= {kind: kind for kind in ("float16", "float32")}
MOST_PIECES = 5  # between commas, of one value without quotes
_DIGITS = 400  # that no float has
_NO_LABELS = "holds values other than text, numbers and booleans. Write them as text."
_HALF = re.compile("[\ud800-\udfff]")
_VISIBLE = re.compile(r"[^\s\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # nor of `CONTROL`
_KINDS = {str: pa.large_string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}

# cells that are a text, a number or a date. Others are lists or objects.
WRITABLE = (str, Number, Decimal, np.bool_, datetime.date, datetime.time, datetime.timedelta)

Cell = TypeVar("Cell")
Piece = tuple[int, Mapping[str, Any]]  # number of rows, and by column its cells: Arrow's or a list


# -- what a source states --------------------------------------------------------------------------


@dataclass
class RowNumbers:
    """Names of rows in messages, numbered as a spreadsheet or an editor numbers them.

    >>> RowNumbers("row", header=1).name(0)
    'row 2'
    >>> RowNumbers("line", blank=bytearray(b"0110")).name(1)
    'line 4'
    """

    word: str = "row"
    header: int = 0  # rows before the first one
    # of each row of the file, header included, whether it holds nothing ("0" or "1")
    blank: bytearray = field(default_factory=bytearray)

    @property
    def next(self) -> str:
        """The row after the last counted one."""
        rows = len(self.blank)
        return "the header" if rows < self.header else f"{self.word} {rows + 1}"

    def name(self, index: int) -> str:
        """Return the name of a row, given its number from 0."""
        place = index + self.header
        if b"1" in self.blank:
            filled = np.flatnonzero(np.frombuffer(bytes(self.blank), np.uint8) == ord("0"))
            place = int(filled[place])
        return f"{self.word} {place + 1}"


@dataclass(frozen=True)
class TableFacts:
    """Facts that a table's source states. They never come from cells."""

    # Cells are of CSV or TSV, where a number is a text that is written as one.
    is_text: bool = False
    # Column names stood in the rows (JSONL), and in no header that all rows share. Then names,
    # their number and their order are as private as cells.
    is_named_by_rows: bool = False
    # Columns have types of their own, unlike those of CSV, Excel and JSONL.
    states_types: bool = True
    # By column, its whole numbers and truths in a source that states types. pandas makes other
    # dtypes of these where cells are missing. None: a table that was made in memory.
    types: dict[str, str] | None = None
    rows: RowNumbers = field(default_factory=RowNumbers)
    notes: Sequence[str] = ()  # how the table was read, for its owner

    @property
    def has_types(self) -> bool:
        """Whether a cell says if it is a number, a text or a truth, as in Parquet and in JSON."""
        return self.states_types or self.is_named_by_rows


def facts_of(table: pd.DataFrame | pd.Series) -> TableFacts:
    """Return the facts stated by the source of a table or column."""
    found: TableFacts = table.attrs.get(STATED) or TableFacts()
    return found


# -- pieces ----------------------------------------------------------------------------------------


def collect_table(
    pieces: Iterable[Piece], schema: pa.Schema | None = None, folder: Path | None = None
) -> pd.DataFrame:
    """Join pieces into a table.

    `schema` is Arrow's, if the source states types. Texts after the first piece go to `folder`.
    """
    total = 0
    chunks: dict[str, list[Any]] = {} if schema is None else {name: [] for name in schema.names}
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        for rows, columns in pieces:
            for name in columns:  # a key of JSONL may come late
                chunks.setdefault(name, [pa.nulls(total)])
            if folder is not None and total and file is None:
                with writing(folder):
                    file = stack.enter_context(TemporaryFile(dir=folder))
            for name, parts in chunks.items():
                cells = columns[name] if name in columns else pa.nulls(rows)
                if isinstance(cells, list):
                    # Of one plain kind they become Arrow's. What Arrow infers would take 1 and 2.5
                    # for floats. Objects and whole numbers of more than 64 bits stay as they are.
                    kinds = set(map(type, cells)) - {type(None)}
                    with suppress(KeyError, OverflowError, UnicodeError, pa.ArrowException):
                        if len(kinds) < 2:
                            cells = pa.array(cells, _KINDS[kinds.pop()] if kinds else pa.null())
                elif pa.types.is_string(cells.type):
                    cells = cells.cast(pa.large_string())
                is_text = isinstance(cells, pa.Array) and pa.types.is_large_string(cells.type)
                if file is not None and folder is not None and is_text:
                    # each array is its own stream, and memory keeps only where it begins
                    start, batch = file.tell(), pa.record_batch([cells], ["cells"])
                    with writing(folder), pa.ipc.new_stream(file, batch.schema) as stream:
                        stream.write_batch(batch)
                    cells = start
                parts.append(cells)
            total += rows
        if file is not None and folder is not None and file.tell():
            with writing(folder):
                file.flush()
            # mapped: the system takes the memory back when it needs it
            pages = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            for parts in chunks.values():
                for place, part in enumerate(parts):
                    if isinstance(part, int):
                        parts[place] = pa.ipc.open_stream(pages.slice(part)).read_all()[0].chunk(0)
    arrow, mixed = {}, {}
    for name, parts in chunks.items():
        # a category with many values, whose cells were unfolded, becomes one again
        is_folded = schema is not None and pa.types.is_dictionary(schema.field(name).type)
        if is_folded and (kinds := {p.type for p in parts if not pa.types.is_dictionary(p.type)}):
            plain = [p.dictionary_decode() if pa.types.is_dictionary(p.type) else p for p in parts]
            whole = pa.chunked_array([part.cast(next(iter(kinds))) for part in plain])
            arrow[name] = whole.dictionary_encode()
            continue
        kinds = {part.type for part in parts if isinstance(part, pa.Array)} - {pa.null()}
        if len(kinds) < 2 and all(isinstance(part, pa.Array) for part in parts):
            kind = kinds.pop() if kinds else pa.null()
            cast = [part if part.type == kind else part.cast(kind) for part in parts]
            arrow[name] = pa.chunked_array(cast, kind)
        else:
            lists = (part if isinstance(part, list) else part.to_pylist() for part in parts)
            mixed[name] = list(chain.from_iterable(lists))
    table = pa.table(arrow, metadata=None if schema is None else schema.metadata)
    # whole numbers stay such next to a gap, in an object column
    frame = table.unify_dictionaries().to_pandas(integer_object_nulls=True)
    if schema is not None:  # all its columns are Arrow's, and one may have become the index
        return frame
    for name, cells in mixed.items():
        # pandas would make floats of all numbers, and a fraction would change whole ones
        frame[name] = pd.Series(cells, dtype=object)
    return frame[list(chunks)] if chunks else pd.DataFrame(index=range(total))


def table_of(data: Any) -> Any:
    """Return a table made of lists by column or of a list of rows as in JSONL. Keep other data.

    >>> table_of([{"a": 1}, {"a": None, "b": "x"}])["a"].tolist()
    [1, None]
    """
    is_by_rows = isinstance(data, list) and bool(data) and all(isinstance(r, Mapping) for r in data)
    if is_by_rows:
        names = dict.fromkeys(chain.from_iterable(data))
        cells = {name: [row.get(name) for row in data] for name in names}
    elif isinstance(data, Mapping):
        cells = dict(data)
    else:
        return data
    if not all(isinstance(name, str) and whole_characters(name) == name for name in cells):
        raise InputError("table: column names must be text")
    try:
        rows = {-1 if isinstance(column, str) else len(column) for column in cells.values()}
    except TypeError:  # a number, or None
        rows = {-1}
    if len(rows) != 1 or -1 in rows:
        raise InputError("table: its columns must be lists that are equally long")
    found = collect_table([(rows.pop(), {name: list(column) for name, column in cells.items()})])
    found.attrs[STATED] = TableFacts(is_named_by_rows=is_by_rows, states_types=False)
    return found


def listed(given: Any) -> list[Any] | None:
    """Return the items of a list, set, array, index or series. None: it is one value, or by name.

    >>> listed(pd.Index(["a", "b"])), listed({3, 1}), listed("ab")
    (['a', 'b'], [1, 3], None)
    """
    if not pd.api.types.is_list_like(given) or isinstance(given, Mapping):
        return None
    return sorted(given, key=str) if isinstance(given, set | frozenset) else list(given)


def asked_values(wanted: Any, fits: Callable[[Any], bool]) -> list[Any]:
    """Return the values of a condition. A text that does not fit whole has commas between values.

    If a comma may also belong to a value, as in 4,5,6,5, the values are put in double quotes.

    Raises:
        InputError: a text can be read in several ways.

    >>> asked_values(["a", "b,c,"], {"a", "b", "c"}.__contains__)
    ['a', 'b', 'c', None]
    >>> asked_values('Paris, Texas,"York"', {"Paris, Texas", "York"}.__contains__)
    ['Paris, Texas', 'York']
    """
    many = listed(wanted)
    if many is not None:
        texts = [asked_values(one, fits) if isinstance(one, str) else [one] for one in many]
        return list(chain.from_iterable(texts))
    if not isinstance(wanted, str) or fits(wanted):
        return [wanted]
    pieces, found = wanted.split(","), deque([[list[Any]()]], MOST_PIECES)
    for start in reversed(range(len(pieces))):
        ways = []  # how the pieces from here on can be read
        for length, rests in enumerate(reversed(found), start=1):
            part = ",".join(pieces[start : start + length]).strip()
            with suppress(ValueError):  # it is not one value in quotes
                if part.startswith('"') and not fits(part):
                    (part,) = read_line(part)
                if not part or fits(part):
                    ways += [[part or None, *rest] for rest in rests]
        found.append(ways[:2])
    if len(found[-1]) > 1:
        raise InputError(
            f"`where`: {wanted[:60]!r} can be read in several ways. Put each value in double "
            "quotes, or repeat `where`."
        )
    if not found[-1]:  # one of them fits nothing
        with suppress(ValueError):
            return [part or None for part in read_line(wanted)]
    return [*found[-1], [wanted]][0]


def by_name(given: Any, option: str) -> dict[str, Any]:
    """Return an option's values by column, from a dictionary or a series."""
    if given is None or hasattr(given, "items"):
        return {} if given is None else dict(given.items())
    raise InputError(f"`{option}`: give a value for each column, as a dictionary")


def blocks(column: Any) -> Iterator[Any]:
    """Yield a column or a table in pieces, so that only a few cells are Python objects at once."""
    for start in range(0, len(column), ROWS_AT_ONCE):
        yield column.iloc[start : start + ROWS_AT_ONCE]


def some_at_once(cells: Iterable[Cell], length: int | None = None) -> Iterator[list[Cell]]:
    """Yield all cells in lists of `length`. The last list may be shorter."""
    source = iter(cells)
    while some := list(islice(source, length or ROWS_AT_ONCE)):
        yield some


# -- cells that are made when they are asked for ---------------------------------------------------


@dataclass(eq=False)
class Picked(Sequence[Cell]):
    """A selection of items, by their places.

    >>> list(Picked("abc", [2, 0, 0]))
    ['c', 'a', 'a']
    """

    items: Any  # a list, or an array of pandas or Arrow
    places: Any  # (n,) of those that are meant
    change: Callable[[Any], Any] = lambda item: item  # made to each item when it is looked at

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.change(self.items[int(self.places[index])])


class Texts(Picked[str]):
    """Some cells of a column's array, all of them texts. `places` rise from 0, shape (n,)."""

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = self.places[start : start + ROWS_AT_ONCE].tolist()
            # a slice is many times faster than to pick single cells
            cells = self.items[rows[0] : rows[-1] + 1].tolist()
            cells = cells if len(cells) == len(rows) else [cells[row - rows[0]] for row in rows]
            yield from map(self.change, cells)

    def repeats(self) -> int:
        """Count repeated texts. It compares 64-bit hashes, so one table in 10⁷ is miscounted."""
        found = np.fromiter(map(hash, self), np.int64, len(self))
        return len(found) - len(np.unique(found))


# -- what a cell is --------------------------------------------------------------------------------


def plain_cell(cell: Any) -> Any:
    """Return a cell as a Python number or text. Dates follow ISO 8601, decimals become numbers.

    >>> plain_cell(Decimal("4.50")), plain_cell(pd.Timestamp("2024-02-29"))
    (4.5, '2024-02-29')
    >>> {plain_cell(pd.Timedelta("20h")), plain_cell(datetime.timedelta(hours=20))}
    {'20:00:00'}
    >>> plain_cell(pd.Timedelta(1, "ns"))
    '0:00:00.000000001'
    """
    if isinstance(cell, Decimal):
        if cell.is_snan():
            return math.nan
        is_whole = (
            cell.is_finite() and cell.adjusted() < _DIGITS and cell == cell.to_integral_value()
        )
        return int(cell) if is_whole else float(cell)
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat().removesuffix("T00:00:00")
    if isinstance(cell, datetime.timedelta):
        text = str(datetime.timedelta(cell.days, cell.seconds, cell.microseconds))
        rest = getattr(cell, "nanoseconds", 0)  # pandas has these, Python has not
        return f"{text}{'' if cell.microseconds else '.000000'}{rest:03}" if rest else text
    if isinstance(cell, np.floating):
        return float(str(cell))  # 3.3 of 32 bits, which would widen to 3.299999952316284
    if isinstance(cell, str) and _HALF.search(cell):
        return whole_characters(cell)
    return cell.item() if isinstance(cell, np.generic) else cell


def label_value(cell: Any) -> Any:
    """Return a cell as a label. Whole floats become ints, because a gap turns ints into floats.

    >>> [label_value(cell) for cell in (5.0, -0.0, 2.5, Decimal("3.0"))]
    [5, 0, 2.5, 3]
    """
    value = plain_cell(cell)
    is_whole = isinstance(value, float) and value.is_integer() and -(2**63) <= value < 2**64
    return int(value) if is_whole else value


def no_dtype_holds(values: Sequence[Any]) -> bool:
    """Return whether fractions are mixed with whole numbers that are too large for a float."""
    is_large = any(type(v) is int and abs(v) > _LARGEST for v in values)
    return is_large and any(isinstance(v, float) for v in values)


def whole_characters(text: str) -> str:
    r"""Return a text with � for each unpaired half of a surrogate pair, such as half an emoji.

    >>> whole_characters("so \ud83d\ude00 \ud83d")
    'so 😀 �'
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def widened(column: pd.Series) -> pd.Series:
    """Return floats of 16 or 32 bits as the shortest decimal numbers that they print as.

    >>> widened(pd.Series([3.3], dtype="float32")).tolist()
    [3.3]
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        values = pd.Series(column.cat.categories)
        known = widened(values)
        return column if known is values else column.cat.rename_categories(known.tolist())
    kind = _NARROW.get(str(column.dtype).lower())
    return column if kind is None else column.astype(kind).astype(str).astype("float64")


def parse_number(text: str) -> int | float | None:
    """Return a finite number. A whole one keeps all its digits, more than a float can hold.

    >>> parse_number("12"), parse_number("1e3"), parse_number("inf"), parse_number("one")
    (12, 1000.0, None, None)
    """
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            return number if abs(number) <= sys.float_info.max else None
    return None


def as_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all cells of a table as written texts. A gap is empty.

    >>> as_texts(pd.DataFrame({"stars": [4.5, 5.0, None]})).stars.tolist()
    ['4.5', '5', '']
    """
    cells = {name: list(map(plain, widened(frame[name]).tolist())) for name in frame}
    return pd.DataFrame(cells, frame.index, dtype=object).where(frame.notna(), "")


def read_text(text: str) -> int | float | bool | None:
    """Return the number or boolean that a text spells exactly as `plain` does, or None.

    "3.10", "1E3", "+1", "007" and "TRUE" stay texts, because no number is written like that.

    >>> [read_text(text) for text in ("3.1", "-1", "True", "3.10", "1.0", "+1")]
    [3.1, -1, True, None, None, None]
    """
    if text in _TRUTH:
        return _TRUTH[text]
    value = parse_number(text)
    is_large = isinstance(value, int) and not -(2**63) <= value < 2**63  # no column holds it
    return value if value is not None and not is_large and plain(value) == text else None


def typed(column: pd.Series) -> pd.Series:
    """Return a column of texts as numbers or booleans if `plain` restores every cell.

    A displayed cell is then the same as in the file, whatever the other cells are.

    >>> [str(typed(pd.Series(c, dtype="str")).dtype) for c in (["7", "12"], ["7", None], ["007"])]
    ['int64', 'float64', 'str']
    """
    # the first texts settle most columns, before all of them are looked up
    for cells in blocks(column):
        if any(read_text(text) is None for text in cells.dropna().unique()):
            return column
    numbers, texts = pd.factorize(column)  # (N,) place of each cell in `texts` (-1: a gap)
    values: list[Any] = list(map(read_text, texts))
    has_gap, kinds = bool((numbers < 0).any()), set(map(type, values))
    largest = 2**63 - 1 if kinds == {int} and not has_gap else _LARGEST
    is_large = any(type(value) is int and abs(value) > largest for value in values)
    if not values or is_large or (bool in kinds and len(kinds) > 1):
        return column
    # a gap makes floats of numbers, and objects of booleans
    known = pd.Series([*values, np.nan] if has_gap else values).to_numpy()
    return pd.Series(known[numbers], column.index, name=column.name)


def has_text(column: pd.Series, place: str) -> np.ndarray:
    """Return (N,) whether a cell is a text that is not blank. At least one cell must be a text."""
    cells = (cell for some in blocks(column) for cell in some.tolist())
    found = [_VISIBLE.search(c) is not None if isinstance(c, str) else None for c in cells]
    if all(is_filled is None for is_filled in found):
        kind = "empty" if column.isna().all() else column.dtype
        kind = "of no one kind" if kind == "object" else kind
        remedy = f"text (it is {kind}). Choose another with `text`."
        if any(isinstance(cell, bytes) for cell in column.iloc[:ROWS_AT_ONCE].tolist()):
            remedy = "text but bytes. Decode them, as `frame[name].str.decode('utf-8')` does."
        raise InputError(f"{place} holds no {remedy}")
    return np.array([is_filled is True for is_filled in found], bool)


def text_cells(column: pd.Series, place: str) -> list[str | None]:
    """Return the texts, with None where a cell has none."""
    return column.astype(object).where(has_text(column, place), None).tolist()


@dataclass(frozen=True)
class LabelCodes:
    """The labels of a column as numbers."""

    numbers: np.ndarray  # (N,) places in `values` (-1 if there is no label)
    values: list[LabelValue]  # all different, in the order in which they occur

    def of_rows(self, rows: np.ndarray) -> LabelCodes:
        """Return the labels of some rows (n,), as if no other rows existed. Each has a label."""
        used, numbers = np.unique(self.numbers[rows], return_inverse=True)
        values = [self.values[number] for number in used.tolist()]
        return LabelCodes(numbers.astype(np.int32), values)

    def as_numbers(self) -> LabelCodes:
        """Return numbers or booleans if all values are texts that spell such (`read_text`).

        Use it only on public sets of texts, because each result depends on the other texts.

        >>> [LabelCodes(np.array([0]), texts).as_numbers().values for texts in (["1"], ["1.0"])]
        [[1], ['1.0']]
        """
        known = [read_text(value) if isinstance(value, str) else None for value in self.values]
        if (
            None in known
            or no_dtype_holds(known)
            or len({type(value) is bool for value in known}) != 1
        ):
            return self
        return LabelCodes(self.numbers, [value for value in known if value is not None])


def codes_of(own: Sequence[LabelValue], values: Sequence[LabelValue], places: Any) -> LabelCodes:
    """Return the labels of rows (N,), given their `places` in `own`. Each of `own` is a value."""
    number = {value: n for n, value in enumerate(values)}
    return LabelCodes(np.array([number[value] for value in own], np.int32)[places], [*values])


def combined(columns: Sequence[LabelCodes]) -> Picked[tuple[LabelValue, ...]]:
    """Return each row's label combination, out of those that occur."""
    items: list[tuple[LabelValue, ...]] = [()]
    numbers = np.zeros(len(columns[0].numbers), np.int64)
    for codes in columns:
        many = len(codes.values)
        pairs, numbers = np.unique(numbers * many + codes.numbers, return_inverse=True)
        items = [(*items[pair // many], codes.values[pair % many]) for pair in pairs.tolist()]
    return Picked(items, numbers.astype(np.int32))


def label_codes(
    column: pd.Series, place: str, as_written: bool = False, may_mix: bool = False
) -> LabelCodes:
    """Return the distinct values as plain Python values, and the value of each cell.

    The spelling of a value depends on that value alone, so no record changes another's
    (`label_value`). With `as_written`, texts of a file without types stay unchanged. Declared
    values need that, because no value may decide the meaning of another.
    """
    if column.dtype == object:  # 1 and True are equal, and a list cannot be looked up
        own, found = np.arange(len(column)), column.where(column.notna(), None).tolist()
    else:
        try:
            own, distinct = pd.factorize(widened(column))  # (N,) places in `distinct` (-1: a gap)
            found = distinct.tolist()
        except (TypeError, NotImplementedError):  # lists
            raise InputError(f"{place} {_NO_LABELS}") from None
    places, known = [], dict[tuple[type, Any], int]()
    for value in map(label_value, found):
        if value is None or (isinstance(value, str) and not value.strip()):
            places.append(-1)
        elif type(value) in (str, int, float, bool):
            places.append(known.setdefault((type(value), value), len(known)))  # by its type too
        else:
            raise InputError(f"{place} {_NO_LABELS}")
    numbers = np.array([*places, -1], np.int32)[own]
    kinds = {kind for kind, _ in known}
    if len(kinds) > 1 and kinds != {int, float} and not may_mix:
        each = np.array([*("number" if k in (int, float) else str(k) for k, _ in known), None])
        of_rows = pd.Series(each[numbers])
        rare = (of_rows == of_rows.value_counts().index[-1]).to_numpy()
        first = facts_of(column).rows.name(int(rare.argmax()))
        remedy = "" if facts_of(column).has_types else ", or declare the values with `labels`"
        raise InputError(
            f"{place} mixes text, numbers or booleans, first in {first}. Make them of one kind"
            f"{remedy}."
        )
    codes = LabelCodes(numbers, [value for _, value in known])
    whole = [v for v in codes.values if type(v) is int]
    if whole and not (-(2**63) <= min(whole) and max(whole) < 2 ** (64 - (min(whole) < 0))):
        raise InputError(f"{place} holds whole numbers of more than 64 bits. Write them as text.")
    if no_dtype_holds(codes.values):
        raise InputError(f"{place} holds fractions and large whole numbers. Write them as text.")
    if float in kinds:
        for number, value in enumerate(codes.values):
            if isinstance(value, float) and not abs(value) <= sys.float_info.max:
                row = facts_of(column).rows.name(int((codes.numbers == number).argmax()))
                raise InputError(f"{place}, {row}: the number is infinite. Correct it.")
    return codes if as_written or not facts_of(column).is_text else codes.as_numbers()


def label_cells(column: pd.Series, place: str) -> list[LabelValue | None]:
    """Return the labels, with None where a cell has none. See `label_codes`."""
    found = label_codes(column, place)
    known: list[LabelValue | None] = [*found.values, None]
    return [known[number] for number in found.numbers.tolist()]
