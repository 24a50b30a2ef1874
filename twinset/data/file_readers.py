"""Bytes of a CSV, JSON or Parquet file → a table, or one line that says what is wrong.

The cells are private, and the messages of pandas and pyarrow may quote them: none is passed on, and
errors are raised `from None` so that no traceback holds one either. Rows are counted as a
spreadsheet or an editor shows them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twinset.data.lazy_columns import ROWS_AT_ONCE, Reading, RowNumbers
from twinset.data.text_layout import UTF8, Layout, open_bytes
from twinset.errors import InputError
from twinset.files.limits import (
    MOST_CELL,
    MOST_LINE,
    MOST_REPEATED,
    check_inflated,
    check_names,
)

_CHUNK = 2**20  # characters
_BETWEEN = re.compile(r"[\s,]*")  # items of an array
_NO_LINE = "not valid JSON of an object; write one object a line"
_NO_ITEM = "not valid JSON of an object; write an array of objects, [{…}, {…}]"
_Sized = tuple[dict[str, Any], int]


def _lines(path: Path, layout: Layout, newline: str, rows: RowNumbers) -> Iterator[str]:
    """Yield the lines of a file; the first unreadable one raises UnicodeError on its turn.

    Decoding goes by blocks, so a strict decoder would fail rows too early; escaping the bad bytes
    and looking for the escapes names the right row.
    """
    for line in layout.lines(path, newline):
        if "\0" in line:
            raise InputError(
                f"{path}: {rows.next} has a NUL character; remove it, or leave `strict` out"
            )
        if len(line) > MOST_LINE:
            raise _too_long(path)
        line.encode()
        yield line


def _too_long(path: Path) -> InputError:
    return InputError(
        f"{path}: a line or a cell has more than {MOST_CELL} characters; look for a quoted cell "
        "that is never closed"
    )


def _undecodable(path: Path, layout: Layout, row: str) -> InputError:
    return InputError(
        f"{path}: {row} is not {layout.name} text; save it as UTF-8, or name its `encoding`"
    )


def read_delimited(path: Path, delimiter: str) -> pd.DataFrame:
    """Read CSV or TSV as twinset writes it."""
    return delimited(path, Layout(UTF8, delimiter)).whole()


def delimited(path: Path, layout: Layout) -> Reading:
    """Return the ways to read CSV; only an empty cell is missing, and all rows are equally wide."""
    rows, options = RowNumbers("row", header=1), _delimited_options(layout)

    def whole() -> pd.DataFrame:
        with _delimited(path, layout, _check_rows(path, layout, rows)) as raw:
            return pd.read_csv(raw, **options)

    def pieces() -> Iterator[pd.DataFrame]:
        with _delimited(path, layout, _check_rows(path, layout, rows)) as raw:
            yield from pd.read_csv(raw, chunksize=ROWS_AT_ONCE, **options)

    def column(place: int, name: str) -> pd.Series:
        with _delimited(path, layout, "the header") as raw:
            return pd.read_csv(raw, usecols=[place], **options)[name]

    return Reading(whole, pieces, column, rows=rows)


def _delimited_options(layout: Layout) -> dict[str, Any]:
    return {
        "sep": layout.delimiter,
        "encoding": UTF8 if layout.is_plain else None,  # of what is decoded already
        "skiprows": layout.skipped,
        "keep_default_na": False,
        "na_values": [""],
        "low_memory": False,  # types are inferred once a column, not once a block of rows
    }


@contextmanager
def _delimited(path: Path, layout: Layout, last: str) -> Iterator[IO[Any]]:
    try:
        with open_bytes(path) if layout.is_plain else layout.text(path) as raw:
            yield raw
    except (ValueError, OverflowError):
        raise InputError(
            f"{path}: {last} cannot be parsed; look for a quoted cell that is never closed"
        ) from None


def _check_rows(path: Path, layout: Layout, rows: RowNumbers) -> str:
    """Return the last row's name; refuse what pandas would fill in, rename or quote in an error."""
    limit = csv.field_size_limit(MOST_CELL)
    try:
        _check_widths(path, layout, rows)
    except UnicodeError:
        raise _undecodable(path, layout, rows.next) from None
    except csv.Error:
        raise _too_long(path) from None
    finally:
        csv.field_size_limit(limit)
    return rows.last


def _check_widths(path: Path, layout: Layout, rows: RowNumbers) -> None:
    rows.begin()
    lines = islice(_lines(path, layout, "", rows), layout.skipped, None)
    header: list[str] | None = None
    for cells in csv.reader(lines, delimiter=str(layout.delimiter)):
        is_blank = len(cells) < 2 and not "".join(cells).strip()
        rows.count(is_blank)
        if is_blank:
            continue
        if header is None:
            header = cells
            _check_header(path, header)
        elif len(cells) != len(header):
            raise InputError(
                f"{path}: {rows.last} has {len(cells)} cells where the header has {len(header)}; "
                "put cells that hold the separator, a quote or a line break in double quotes, or "
                "name the separator with `delimiter`"
            )
    if header is None:
        raise InputError(f"{path}: the file is empty; give a table with a header row")


def _check_header(path: Path, header: list[str]) -> None:
    check_names(header, path)
    names = [name for name in header if name]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise InputError(f"{path}: two columns have the same name; rename one in the header")


def read_jsonl(path: Path) -> pd.DataFrame:
    """Read one JSON object a line; a value keeps its JSON type ("1" stays a text)."""
    return jsonl(path, Layout(UTF8)).whole()


def jsonl(path: Path, layout: Layout) -> Reading:
    """Return the ways to read JSONL."""
    rows = RowNumbers("line")
    return _objects(lambda: _json_lines(path, layout, rows), path, rows)


def json_file(path: Path, layout: Layout) -> Reading:
    """Return the ways to read an array of JSON objects; many call JSONL so too."""
    try:
        with layout.text(path) as text:
            is_array = text.read(_CHUNK).lstrip().startswith("[")
    except UnicodeError:
        raise _undecodable(path, layout, "the file") from None
    if not is_array:
        return jsonl(path, layout)
    rows = RowNumbers("item")
    return _objects(lambda: _json_items(path, layout, rows), path, rows)


def _objects(found: Callable[[], Iterator[_Sized]], path: Path, rows: RowNumbers) -> Reading:
    """Return the ways to read objects, each with the number of characters that it takes."""

    def pieces() -> Iterator[pd.DataFrame]:
        objects = _checked(found(), path)
        while some := list(islice(objects, ROWS_AT_ONCE)):
            yield pd.DataFrame(some)

    def column(place: int, name: str) -> pd.Series:
        objects = _checked(found(), path)
        return pd.DataFrame([{name: o[name]} if name in o else {} for o in objects])[name]

    return Reading(lambda: pd.DataFrame(list(_checked(found(), path))), pieces, column, rows=rows)


def _checked(objects: Iterator[_Sized], path: Path) -> Iterator[dict[str, Any]]:
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
        for line in _lines(path, layout, "\n", rows):
            rows.count(is_blank=not line.strip())
            if line.strip():
                yield _json_row(line, f"{path}: {rows.last}"), len(line)
    except UnicodeError:
        raise _undecodable(path, layout, rows.next) from None


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
                yield _object(found, rest[at:end], f"{path}: {rows.last}", _NO_ITEM), end - at
                at = end
    except UnicodeError:
        raise _undecodable(path, layout, rows.next) from None
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
    return _object(found, line, place, _NO_LINE)


def _object(found: Any, text: str, place: str, wrong: str) -> dict[str, Any]:
    """Return an object; refuse what is none, and an escaped half of a surrogate pair: no text."""
    try:
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InputError(f"{place} is {wrong}") from None
    if not isinstance(found, dict):
        raise InputError(f"{place} is {wrong}")
    return found


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file with its pandas dtypes."""
    return parquet(path).whole()


def parquet(path: Path) -> Reading:
    """Return the ways to read Parquet."""

    def whole() -> pd.DataFrame:
        with _parquet(path) as raw:
            return utf8(pd.read_parquet(raw))

    def pieces() -> Iterator[pd.DataFrame]:
        with _parquet(path) as raw:
            # a buffer: else a whole group of rows is read, which may be all of them
            file = pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)
            for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
                yield utf8(batch.to_pandas())

    def column(place: int, name: str) -> pd.Series:
        with _parquet(path) as raw:
            return utf8(pd.read_parquet(raw, columns=[name]))[name]

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


def utf8(frame: pd.DataFrame) -> pd.DataFrame:
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
