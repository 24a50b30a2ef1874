"""Parquet, Feather and other files of Arrow's → tables, or one line that says what is wrong.

The cells are private, and the messages of pyarrow may quote them: none is passed on. Buffers may be
compressed, so they are bounded. Arrow's format says of each compressed buffer how large it is, in
its first eight bytes; where buffers lie stands in a FlatBuffer
(arrow.apache.org/docs/format/Columnar.html#recordbatch-message).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twinset.errors import InputError
from twinset.files.limits import MOST_REPEATED, check_inflated, check_names
from twinset.table.lazy_columns import ROWS_AT_ONCE, Reading

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
