"""Files of JSON objects, one a line or in an array → tables, or one line that says what is wrong.

The cells are private, and the messages of pandas may quote them: none is passed on, and errors are
raised `from None` so that no traceback holds one either.
"""

from __future__ import annotations

import io
import json
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twinset.errors import InputError
from twinset.files.limits import (
    MOST_CELL,
    MOST_LINE,
    MOST_REPEATED,
    MOST_SHEET_ROWS,
    check_inflated,
    check_names,
)
from twinset.table.arrow_columns import ROWS_AT_ONCE, Reading, RowNumbers, exact
from twinset.table.text_files import UTF8, Layout, text_lines, undecodable

_CHUNK = 2**20  # characters
_BETWEEN = re.compile(r"[\s,]*")  # items of an array
_NO_LINE = "not valid JSON of an object; write one object a line"
_NO_ITEM = "not valid JSON of an object; write an array of objects, [{…}, {…}]"
_Sized = tuple[dict[str, Any], int]


def read_jsonl(path: Path) -> pd.DataFrame:
    """Read one JSON object a line; a value keeps its JSON type ("1" stays a text)."""
    return jsonl(path, Layout(UTF8)).whole()


def jsonl(path: Path, layout: Layout) -> Reading:
    """Return the ways to read JSONL."""
    rows = RowNumbers("line")
    return _json_objects(lambda: _json_lines(path, layout, rows), path, rows)


def json_file(path: Path, layout: Layout) -> Reading:
    """Return the ways to read an array of JSON objects; many call JSONL so too."""
    try:
        with layout.text(path) as text:
            is_array = text.read(_CHUNK).lstrip().startswith("[")
    except UnicodeError:
        raise undecodable(path, layout, "the file") from None
    if not is_array:
        return jsonl(path, layout)
    rows = RowNumbers("item")
    return _json_objects(lambda: _json_items(path, layout, rows), path, rows)


def _json_objects(found: Callable[[], Iterator[_Sized]], path: Path, rows: RowNumbers) -> Reading:
    """Return the ways to read objects, each with the number of characters that it takes."""

    def pieces() -> Iterator[pd.DataFrame]:
        objects = _checked_objects(found(), path)
        while some := list(islice(objects, ROWS_AT_ONCE)):
            yield _json_table(some)

    def column(place: int, name: str) -> pd.Series:
        objects = _checked_objects(found(), path)
        return _json_table([{name: o[name]} if name in o else {} for o in objects])[name]

    return Reading(
        lambda: _json_table(list(_checked_objects(found(), path))), pieces, column, rows=rows
    )


def _json_table(objects: list[dict[str, Any]]) -> pd.DataFrame:
    return exact(pd.DataFrame(objects), lambda name: [each.get(name) for each in objects])


def _checked_objects(objects: Iterator[_Sized], path: Path) -> Iterator[dict[str, Any]]:
    read, names = 0, set[str]()
    for row, (found, size) in enumerate(objects, start=1):
        read += size
        if not found.keys() <= names:
            names |= found.keys()
            check_names(names, path)
        if row * len(names) > max(MOST_REPEATED, read):
            raise InputError(
                f"{path}: most of its {len(names)} columns are missing in most rows; "
                "keep the columns that you need"
            )
        yield found


def _json_lines(path: Path, layout: Layout, rows: RowNumbers) -> Iterator[_Sized]:
    rows.begin()
    try:
        for line in text_lines(path, layout, "\n", rows):
            rows.count(is_blank=not line.strip())
            if line.strip():
                yield _json_row(line, f"{path}: {rows.last}"), len(line)
    except UnicodeError:
        raise undecodable(path, layout, rows.next) from None


def _json_items(path: Path, layout: Layout, rows: RowNumbers) -> Iterator[_Sized]:
    """Yield the objects of an array, of which few are in memory at once."""
    rows.begin()
    decoder = json.JSONDecoder()
    try:
        with layout.text(path) as text:
            rest = text.read(_CHUNK)
            at = rest.index("[") + 1
            while (at := _end(_BETWEEN, rest, at)) == len(rest) or rest[at] != "]":
                try:
                    found, end = decoder.raw_decode(rest, at)
                except ValueError:  # it may go on
                    more = text.read(max(_CHUNK, len(rest) - at))
                    rest, at = rest[at:] + more, 0
                    if not more or len(rest) > MOST_LINE:
                        raise InputError(f"{path}: {rows.next} is {_NO_ITEM}") from None
                    continue
                rows.count()
                yield _json_object(found, rest[at:end], f"{path}: {rows.last}", _NO_ITEM), end - at
                at = end
    except UnicodeError:
        raise undecodable(path, layout, rows.next) from None
    except RecursionError:
        raise InputError(f"{path}: {rows.next} is {_NO_ITEM}") from None


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()


def _json_row(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place} is {_NO_LINE}") from None
    return _json_object(found, line, place, _NO_LINE)


def _json_object(found: Any, text: str, place: str, wrong: str) -> dict[str, Any]:
    """Return an object; refuse what is none, and an escaped half of a surrogate pair: no text."""
    try:
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InputError(f"{place} is {wrong}") from None
    if not isinstance(found, dict):
        raise InputError(f"{place} is {wrong}")
    return found


_MAGIC = b"ARROW1\0\0"  # before the stream, in Feather


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file with its pandas dtypes."""
    return parquet(path).whole()


def parquet(path: Path) -> Reading:
    """Return the ways to read Parquet."""

    def whole() -> pd.DataFrame:
        with _parquet(path) as raw:
            return table_frame(pq.read_table(raw))

    def pieces() -> Iterator[pd.DataFrame]:
        with _parquet(path) as raw:
            # a buffer: else a whole group of rows is read, which may be all of them
            file = pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)
            for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
                yield table_frame(batch)

    def column(place: int, name: str) -> pd.Series:
        with _parquet(path) as raw:
            return table_frame(pq.read_table(raw, columns=[name]))[name]

    with _parquet(path) as raw:
        schema = pq.read_schema(raw)
    return Reading(whole, pieces, column, declared(schema))


def declared(schema: pa.Schema) -> dict[str, str]:
    """Return the dtypes of whole numbers and booleans."""
    return {
        f.name: str(f.type) for f in schema if pa.types.is_integer(f.type) or f.type == pa.bool_()
    }


@contextmanager
def _parquet(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as raw:  # a handle: from a path pyarrow also reads "name=value/"
            _check_parquet(raw, path)
            yield raw
    except (InputError, OSError, MemoryError):
        raise
    except Exception:  # whatever strange notes in the file make two libraries raise
        raise InputError(f"{path}: not a readable Parquet file; write it again") from None


def _check_parquet(raw: IO[bytes], path: Path) -> None:
    """Look at the file's own figures; leaves the handle at its beginning."""
    found = pq.read_metadata(raw)
    check_names(range(found.num_columns), path)
    check_names(found.schema.to_arrow_schema().names, path)
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    groups = (found.row_group(number) for number in range(found.num_row_groups))
    check_inflated(sum(group.total_byte_size for group in groups), size, path)
    if found.num_rows > MOST_REPEATED and found.num_rows > size:
        raise InputError(f"{path}: has {found.num_rows} rows in {size} bytes; write it again")


def table_frame(table: pa.Table | pa.RecordBatch) -> pd.DataFrame:
    """Return Arrow's table as pandas'; whole numbers stay such beside a gap, in an object column.

    Raises:
        pa.ArrowException: as `_utf8`.
    """
    return _utf8(table.to_pandas(integer_object_nulls=True))


def _utf8(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of Arrow's strings as it is, once all of them are known to be UTF-8.

    They are decoded where they are used, and the error of one that is not would quote it there.

    Raises:
        pa.ArrowException: one is not; the message must not be passed on.
    """
    for _, column in frame.items():
        is_category = isinstance(column.dtype, pd.CategoricalDtype)
        cells = column.cat.categories.to_series() if is_category else column
        if isinstance(cells.dtype, pd.StringDtype):
            pa.array(cells).validate(full=True)
    return frame


def feather(path: Path) -> Reading:
    """Return the ways to read Feather (version 2), or a stream as `datasets` keeps it."""

    def batches() -> Iterator[pa.RecordBatch]:
        with _stream(path) as raw:
            for batch in pa.ipc.open_stream(raw):
                batch.validate(full=True)  # else a damaged one is read beyond its ends
                yield batch.replace_schema_metadata(None)

    def pieces() -> Iterator[pd.DataFrame]:
        with _readable(path):
            for batch in batches():
                for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                    yield table_frame(batch.slice(start, ROWS_AT_ONCE))

    with _readable(path):
        _check_messages(path)
        with _stream(path) as raw:
            schema = pa.ipc.open_stream(raw).schema.remove_metadata()
        check_names(schema.names, path)

    def table(names: list[str]) -> pd.DataFrame:
        with _readable(path):
            found = pa.Table.from_batches(batches(), schema)
            return table_frame(found.select(names))

    return Reading(
        lambda: table(schema.names), pieces, lambda _, name: table([name])[name], declared(schema)
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (InputError, OSError, MemoryError, GeneratorExit):
        raise
    except Exception:  # whatever strange notes in the file make two libraries raise
        raise InputError(f"{path}: not a readable Feather or Arrow file; write it again") from None


@contextmanager
def _stream(path: Path) -> Iterator[IO[bytes]]:
    with open(path, "rb") as raw:
        if raw.read(len(_MAGIC)) != _MAGIC:
            raw.seek(0)
        yield raw


def _check_messages(path: Path) -> None:
    """Refuse more than the file can hold in earnest, before any of it is decompressed."""
    inflated, rows, size = 0, 0, path.stat().st_size
    with _stream(path) as raw:
        for message in pa.ipc.MessageReader.open_stream(raw):
            if message.type in ("record batch", "dictionary"):
                length, buffers = _sizes(message)
                inflated, rows = inflated + buffers, rows + length
                check_inflated(inflated, size, path)
    if rows > max(MOST_REPEATED, size):
        raise InputError(f"{path}: has {rows} rows in {size} bytes; write it again")


def _sizes(message: pa.Message) -> tuple[int, int]:
    """Return how many rows a batch has, and how many bytes it takes once decompressed."""
    data, body = _Table.root(memoryview(message.metadata)).table(2), memoryview(message.body)
    batch = data.table(1) if message.type == "dictionary" else data
    length, is_compressed = batch.number(0), batch.place(3) is not None
    found = 0
    for start, size in batch.pairs(2):
        (plain,) = struct.unpack_from("<q", body, start) if is_compressed and size else (-1,)
        found += max(size, plain)
    return length, found


class _Table:
    """A table of a FlatBuffer.

    Args:
        data: the buffer.
        at: where the table is.
    """

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, *struct.unpack_from("<I", data))

    def place(self, field: int) -> int | None:
        """Return where a field is; None where it is left out."""
        vtable = self._at - self._read("<i", self._at)
        if 4 + 2 * field >= self._read("<H", vtable):
            return None
        offset = self._read("<H", vtable + 4 + 2 * field)
        return self._at + offset if offset else None

    def number(self, field: int) -> int:
        """Return an integer of 64 bits."""
        place = self.place(field)
        return 0 if place is None else self._read("<q", place)

    def table(self, field: int) -> _Table:
        """Return a table inside."""
        return _Table(self._data, self._pointed(field))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a list of pairs of integers of 64 bits."""
        start = self._pointed(field)
        count = self._read("<I", start)
        return list(struct.iter_unpack("<qq", self._data[start + 4 :][: 16 * count]))

    def _pointed(self, field: int) -> int:
        place = self.place(field)
        if place is None:
            raise ValueError("a field is missing")
        return place + self._read("<I", place)

    def _read(self, kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("before the beginning")
        found: int = struct.unpack_from(kind, self._data, at)[0]
        return found


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
        header, *found = _sheet_table(path, sheet, rows)
        return frame(header, found)

    def pieces() -> Iterator[pd.DataFrame]:
        found = _sheet_table(path, sheet, rows)
        header = next(found)
        while some := list(islice(found, ROWS_AT_ONCE)):
            yield frame(header, some)

    def column(place: int, name: str) -> pd.Series:
        cells = [(row[place],) for row in islice(_sheet_table(path, sheet, rows), 1, None)]
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


def _sheet_table(path: Path, sheet: str | None, rows: RowNumbers) -> Iterator[_Row]:
    """Yield the header, then all rows that are not blank, as wide as it."""
    rows.begin()
    header: _Row = ()
    for cells in _sheet_rows(path, sheet):
        rows.count(is_blank=not cells)
        if len(rows.blank) > MOST_SHEET_ROWS:
            raise InputError(f"{path}: has more rows than a sheet can have; write it again")
        if cells and not header:
            header = _sheet_header(path, cells)
            yield header
        elif cells:
            _check_row(path, cells, header, rows)
            yield cells + (None,) * (len(header) - len(cells))
    if not header:
        raise InputError(f"{path}: the sheet is empty; give a table with a header row")


def _sheet_header(path: Path, cells: _Row) -> _Row:
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


def _sheet_rows(path: Path, sheet: str | None) -> Iterator[_Row]:
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


_HUB_TIMEOUT = 10.0  # seconds until the hub counts as out of reach
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def saved(folder: Path, split: str | None) -> Reading:
    """Return the ways to read a folder of `datasets.save_to_disk`, with or without splits.

    Raises:
        InputError: another kind of folder, or a split that is not in it.
    """
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except Exception:
        raise InputError(
            f"{folder}: not a folder saved by datasets.save_to_disk; name a file in it"
        ) from None
    if not isinstance(loaded, DatasetDict):
        loaded = {str(loaded.split) if loaded.split else "train": loaded}
    if split is None and len(loaded) == 1:
        split = next(iter(loaded))
    if split not in loaded:
        raise InputError(f"{folder}: choose a split with `split`: {', '.join(loaded)}")
    return dataset(loaded[split], str(folder), "save the data set again")


def dataset(data: Any, source: str, remedy: str) -> Reading:
    """Return the ways to read a `datasets.Dataset`."""
    check_names(data.column_names, source)
    tables = data.with_format("arrow")
    damaged = f"{source}: its data are damaged; {remedy}"

    @contextmanager
    def checked() -> Iterator[None]:
        try:
            yield
        except Exception:  # a damaged cell; the message may hold it
            raise InputError(damaged) from None

    def whole() -> pd.DataFrame:
        with checked():
            return table_frame(tables[:])

    def pieces() -> Iterator[pd.DataFrame]:
        with checked():
            yield from map(table_frame, tables.iter(ROWS_AT_ONCE))

    def column(place: int, name: str) -> pd.Series:
        with checked():
            return table_frame(tables.select_columns([name])[:])[name]

    kinds = {name: str(getattr(kind, "dtype", "")) for name, kind in data.features.items()}
    declared = {n: kind for n, kind in kinds.items() if re.fullmatch(r"u?int\d+|bool", kind)}
    return Reading(whole, pieces, column, declared)


def on_hub(name: str, split: str | None) -> Reading:
    """Return the ways to read a data set of the hub (`owner/name`); its own cache keeps a copy.

    Raises:
        InputError: not a hub name, no network, no such data set or split, or several splits.
    """
    missing = f"{name}: no such file or folder"
    if not _HUB_NAME.fullmatch(name):
        raise InputError(f"{missing}; check the path")
    from datasets import get_dataset_split_names, load_dataset
    from huggingface_hub import HfApi, constants

    try:
        if not constants.HF_HUB_OFFLINE:  # offline, the library's own cache may still have it
            # One try: `datasets` would retry for half a minute, and print every one of them.
            HfApi().dataset_info(name, timeout=_HUB_TIMEOUT)
        splits = [split] if split is not None else get_dataset_split_names(name)
        loaded = load_dataset(name, split=splits[0]) if len(splits) == 1 else None
    except Exception:  # no network, no such name or split, gated, code of its own: dozens of kinds
        raise InputError(
            f"{missing}, and no such data set or split can be loaded from the hub; download it "
            "and give a CSV, Parquet or JSONL file"
        ) from None
    if loaded is None:
        raise InputError(f"{name}: choose a split with `split`: {', '.join(splits)}")
    return dataset(loaded, name, "download the data set again")
