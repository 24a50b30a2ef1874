"""Bytes of a CSV, TSV, JSONL or Parquet file → a table, or one line that says what is wrong where.

The cells are private, and the messages of pandas and pyarrow may quote them: none is passed on, and
errors are raised `from None` so that no traceback holds one either. Rows count from 1, the first
one after the header.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twinset.data.lazy_columns import ROWS_AT_ONCE, Reading
from twinset.errors import InputError
from twinset.files.limits import (
    MOST_CELL,
    MOST_LINE,
    MOST_REPEATED,
    check_inflated,
    check_names,
    inflated,
)


def _open_bytes(path: Path) -> IO[bytes]:
    return inflated(path) if path.name.lower().endswith(".gz") else path.open("rb")


@contextmanager
def _lines(path: Path, newline: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a UTF-8 file; the first unreadable one raises UnicodeError on its turn.

    Decoding goes by blocks, so a strict decoder would fail rows too early; escaping the bad bytes
    and looking for the escapes names the right row. A NUL means UTF-16 or a binary file.
    """

    def checked(handle: Iterable[str]) -> Iterator[str]:
        for line in handle:
            if "\0" in line:
                raise UnicodeError
            if len(line) > MOST_LINE:
                raise _too_long(path)
            line.encode()
            yield line

    with (
        _open_bytes(path) as raw,
        io.TextIOWrapper(raw, "utf-8-sig", "surrogateescape", newline) as text,
    ):
        yield checked(text)


def _too_long(path: Path) -> InputError:
    return InputError(
        f"{path}: a line or a cell has more than {MOST_CELL} characters; look for a quoted cell "
        "that is never closed"
    )


def _place(row: int) -> str:
    return f"row {row}" if row else "the header"


def _not_utf8(path: Path, row: int) -> InputError:
    return InputError(f"{path}: {_place(row)} is not UTF-8 text; save it as UTF-8")


def read_delimited(path: Path, delimiter: str) -> pd.DataFrame:
    """Read CSV or TSV; only an empty cell is missing, and every row has the header's width."""
    with _delimited(path, _check_rows(path, delimiter)) as raw:
        return pd.read_csv(raw, **_delimited_options(delimiter))


def delimited(path: Path, delimiter: str) -> Reading:
    """Return the ways to read CSV or TSV."""

    def pieces() -> Iterator[pd.DataFrame]:
        with _delimited(path, _check_rows(path, delimiter)) as raw:
            yield from pd.read_csv(raw, chunksize=ROWS_AT_ONCE, **_delimited_options(delimiter))

    def column(place: int, name: str) -> pd.Series:
        with _delimited(path, 0) as raw:
            return pd.read_csv(raw, usecols=[place], **_delimited_options(delimiter))[name]

    return Reading(partial(read_delimited, path, delimiter), pieces, column)


def _delimited_options(delimiter: str) -> dict[str, Any]:
    return {
        "sep": delimiter,
        "encoding": "utf-8-sig",
        "keep_default_na": False,
        "na_values": [""],
        "low_memory": False,  # types are inferred once a column, not once a block of rows
    }


@contextmanager
def _delimited(path: Path, rows: int) -> Iterator[IO[bytes]]:
    try:
        with _open_bytes(path) as raw:
            yield raw
    except (ValueError, OverflowError):
        raise InputError(
            f"{path}: {_place(rows)} cannot be parsed; look for a quoted cell that is never closed"
        ) from None


def _check_rows(path: Path, delimiter: str) -> int:
    """Return the number of rows; refuse what pandas would fill in, rename or quote in an error."""
    row = -1  # the header
    limit = csv.field_size_limit(MOST_CELL)
    try:
        with _lines(path, newline="") as lines:
            reader = csv.reader(lines, delimiter=delimiter)
            rows = (cells for cells in reader if len(cells) > 1 or "".join(cells).strip())
            header = next(rows, None)
            if header is None:
                raise InputError(f"{path}: the file is empty; give a table with a header row")
            _check_header(path, header)
            row = 0
            for row, cells in enumerate(rows, start=1):  # noqa: B007 (the count is the result)
                if len(cells) != len(header):
                    raise InputError(
                        f"{path}: row {row} has {len(cells)} cells where the header has "
                        f"{len(header)}; put cells that hold the separator, a quote or a line "
                        "break in double quotes"
                    )
    except UnicodeError:
        raise _not_utf8(path, row + 1) from None
    except csv.Error:
        raise _too_long(path) from None
    finally:
        csv.field_size_limit(limit)
    return row


def _check_header(path: Path, header: list[str]) -> None:
    check_names(header, path)
    names = [name for name in header if name]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise InputError(f"{path}: two columns have the same name; rename one in the header")


def read_jsonl(path: Path) -> pd.DataFrame:
    """Read one JSON object a line; a value keeps its JSON type ("1" stays a text)."""
    return pd.DataFrame(list(_json_rows(path)))


def jsonl(path: Path) -> Reading:
    """Return the ways to read JSONL."""

    def pieces() -> Iterator[pd.DataFrame]:
        rows = _json_rows(path)
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield pd.DataFrame(some)

    def column(place: int, name: str) -> pd.Series:
        rows = _json_rows(path)
        return pd.DataFrame([{name: r[name]} if name in r else {} for r in rows])[name]

    return Reading(partial(read_jsonl, path), pieces, column)


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    row, read, names = 0, 0, set[str]()
    try:
        with _lines(path, newline="\n") as lines:
            for line in lines:
                if line.strip():
                    row, read = row + 1, read + len(line)
                    found = _json_row(line, f"{path}: row {row}")
                    if not found.keys() <= names:
                        names |= found.keys()
                        check_names(names, path)
                    if row * len(names) > max(MOST_REPEATED, read):
                        raise InputError(
                            f"{path}: most of its {len(names)} columns are missing in most rows; "
                            "keep the columns that you need"
                        )
                    yield found
    except UnicodeError:
        raise _not_utf8(path, row + 1) from None


def _json_row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if "\\u" in line:  # an escaped half of a surrogate pair is JSON, but not text
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InputError(f"{place} is not valid JSON; write one object a line") from None
    if not isinstance(row, dict):
        raise InputError(f"{place} is not a JSON object; write one object a line")
    return row


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file with its pandas dtypes."""
    with _parquet(path) as raw:
        return utf8(pd.read_parquet(raw))


def parquet(path: Path) -> Reading:
    """Return the ways to read Parquet."""

    def pieces() -> Iterator[pd.DataFrame]:
        from pyarrow.parquet import ParquetFile

        with _parquet(path) as raw:
            # a buffer: else a whole group of rows is read, which may be all of them
            file = ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)
            for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
                yield utf8(batch.to_pandas())

    def column(place: int, name: str) -> pd.Series:
        with _parquet(path) as raw:
            return utf8(pd.read_parquet(raw, columns=[name]))[name]

    return Reading(partial(read_parquet, path), pieces, column, _declared(path))


def _declared(path: Path) -> dict[str, str]:
    with _parquet(path) as raw:
        fields = list(pq.read_schema(raw))
    return {
        f.name: str(f.type) for f in fields if pa.types.is_integer(f.type) or f.type == pa.bool_()
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
    from pyarrow.parquet import read_metadata

    found = read_metadata(raw)
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
