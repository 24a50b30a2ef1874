"""Parquet, Feather, Excel and the `datasets` library, read or refused in one line.

The cells are private, and the messages of libraries may quote them: none is passed on, and errors
are raised `from None` so that no traceback holds one either. Others wrote these files, so that all
in them is bounded before it is decompressed. Code that comes with a data set never runs, and of
formulas the last results are read.
"""

from __future__ import annotations

import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq

from twinset.errors import InputError
from twinset.files.limits import (
    MOST_CELL,
    MOST_REPEATED,
    MOST_SHEET_ROWS,
    check_inflated,
    check_names,
)
from twinset.table import arrow_columns
from twinset.table.arrow_columns import Piece, RowNumbers, TableReader, some_at_once

_MAGIC = b"ARROW1\0\0"  # before the stream, in Feather
_ERRORS = {"#N/A", "#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!"}  # of formulas
_HUB_TIMEOUT = 10.0  # seconds until the hub counts as out of reach
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@contextmanager
def _one_line(message: str) -> Iterator[None]:
    """Say in one line that a file cannot be read, whatever makes a library raise."""
    try:
        yield
    except (InputError, OSError, MemoryError, GeneratorExit):
        raise
    except Exception:  # damaged cells, strange notes in the file: dozens of kinds
        raise InputError(message) from None


def read_parquet(path: Path) -> TableReader:
    """Return a reader of Parquet."""
    message = f"{path}: not a readable Parquet file; write it again"

    def pieces() -> Iterator[Piece]:
        with open(path, "rb") as raw, _one_line(message):
            # a buffer: else a whole group of rows is read, which may be all of them
            file = pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)
            for batch in file.iter_batches(arrow_columns.ROWS_AT_ONCE, use_threads=False):
                yield _arrow_piece(batch)

    # a handle: from a path pyarrow also reads "name=value/"
    with open(path, "rb") as raw, _one_line(message):
        file = pq.ParquetFile(raw)
        found = file.metadata
        check_names(range(found.num_columns), path)
        schema = _checked_schema(file.schema_arrow, path)
        # Notes of pandas in the file may be no notes. They make this raise, not a later step.
        schema.empty_table().to_pandas()
        groups = (found.row_group(number) for number in range(found.num_row_groups))
        _check_sizes(sum(group.total_byte_size for group in groups), found.num_rows, path)
    return TableReader(pieces(), schema)


def _checked_schema(schema: pa.Schema, source: str | Path) -> pa.Schema:
    check_names(schema.names, source)
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{source}: two columns have the same name; rename one")
    return schema


def _check_sizes(inflated: int, rows: int, path: Path) -> None:
    """Refuse what a small file may stand for: many bytes, or runs of one value in many rows."""
    size = path.stat().st_size
    check_inflated(inflated, size, path)
    if rows > max(MOST_REPEATED, size):
        raise InputError(f"{path}: has {rows} rows in {size} bytes; write it again")


def _arrow_piece(batch: pa.RecordBatch) -> Piece:
    """Return a batch of which every buffer is whole and every text is UTF-8.

    A damaged one would be read beyond its ends, and an error of a text would quote it.
    """
    batch.validate(full=True)
    return batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))


def read_feather(path: Path) -> TableReader:
    """Return a reader of Feather (version 2), or of a stream as `datasets` keeps it."""
    message = f"{path}: not a readable Feather or Arrow file; write it again"

    def opened() -> IO[bytes]:
        raw = open(path, "rb")  # noqa: SIM115  # every caller closes it
        if raw.read(len(_MAGIC)) != _MAGIC:
            raw.seek(0)
        return raw

    def pieces() -> Iterator[Piece]:
        with opened() as raw, _one_line(message):
            for batch in pa.ipc.open_stream(raw):
                for start in range(0, batch.num_rows, arrow_columns.ROWS_AT_ONCE):
                    yield _arrow_piece(batch.slice(start, arrow_columns.ROWS_AT_ONCE))

    with _one_line(message):
        inflated, rows = 0, 0
        with opened() as raw:  # more than the file can hold is refused before it is decompressed
            for part in pa.ipc.MessageReader.open_stream(raw):
                if part.type in ("record batch", "dictionary"):
                    length, buffers = _message_size(part)
                    inflated, rows = inflated + buffers, rows + length
                    _check_sizes(inflated, rows, path)
        with opened() as raw:
            schema = _checked_schema(pa.ipc.open_stream(raw).schema.remove_metadata(), path)
    return TableReader(pieces(), schema)


def _message_size(message: pa.Message) -> tuple[int, int]:
    """Return how many rows a batch has, and how many bytes it takes once decompressed.

    Arrow says of each compressed buffer how large it is, in its first eight bytes. Where buffers
    lie stands in a FlatBuffer (arrow.apache.org/docs/format/Columnar.html#recordbatch-message).
    A table of a FlatBuffer begins with the way back to its vtable, which holds the offset of each
    field, or 0 for one that is left out.
    """
    data, body = memoryview(message.metadata), memoryview(message.body)

    def read(kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("before the beginning")
        found: int = struct.unpack_from(kind, data, at)[0]
        return found

    def place(table: int, field: int) -> int:
        """Return where a field of a table is; 0: it is left out."""
        vtable = table - read("<i", table)
        is_there = 4 + 2 * field < read("<H", vtable)
        offset = read("<H", vtable + 4 + 2 * field) if is_there else 0
        return table + offset if offset else 0

    def follow(table: int, field: int) -> int:
        at = place(table, field) or -1  # which cannot be read
        return at + read("<I", at)

    batch = follow(read("<I", 0), 2)  # Message.header
    batch = follow(batch, 1) if message.type == "dictionary" else batch  # DictionaryBatch.data
    length_at, is_compressed = place(batch, 0), place(batch, 3) > 0
    start, total = follow(batch, 2), 0  # RecordBatch.buffers: a count, then pairs of 64 bits
    for offset, size in struct.iter_unpack("<qq", data[start + 4 :][: 16 * read("<I", start)]):
        plain = struct.unpack_from("<q", body, offset)[0] if is_compressed and size else -1
        total += max(size, plain)
    return read("<q", length_at) if length_at else 0, total


def read_excel(path: Path, sheet: str | None = None) -> TableReader:
    """Return a reader of a sheet, by default the first. Its first row with cells is the header."""
    rows, notes = RowNumbers("row", header=1), []
    with _workbook(path) as book:
        names = book.sheetnames
    if sheet is not None and sheet not in names:
        raise InputError(f"{path}: has no sheet {sheet!r}; check `split`")
    if sheet is None and len(names) > 1:
        notes = [f"read the first of {len(names)} sheets (`split` names another)"]

    def pieces() -> Iterator[Piece]:
        found = _sheet_rows(path, names[0] if sheet is None else sheet, rows)
        if (header := next(found, None)) is None:
            raise InputError(f"{path}: the sheet is empty; give a table with a header row")
        yield 0, {name: [] for name in header}
        for some in some_at_once(found):
            columns = map(list, zip(*some, strict=True))
            yield len(some), dict(zip(header, columns, strict=True))

    return TableReader(pieces(), rows=rows, notes=notes)


@contextmanager
def _workbook(path: Path) -> Iterator[Any]:
    from openpyxl import load_workbook

    message = f"{path}: not a readable Excel file (.xlsx without a password); save it again"
    with path.open("rb") as raw, warnings.catch_warnings(), _one_line(message):
        warnings.simplefilter("ignore")  # of what else is in the file
        with ZipFile(raw) as parts:
            inside = sum(part.file_size for part in parts.infolist())
        check_inflated(inside, path.stat().st_size, path)
        raw.seek(0)
        with closing(load_workbook(raw, read_only=True, data_only=True, keep_links=False)) as book:
            yield book


def _sheet_rows(path: Path, sheet: str, rows: RowNumbers) -> Iterator[tuple[Any, ...]]:
    """Yield the header, then all rows that are not blank, as wide as it."""
    header: tuple[str, ...] = ()
    most = max(MOST_REPEATED, 10 * path.stat().st_size)  # cells of a file that is not mostly gaps
    with _workbook(path) as book:
        found = book[sheet]
        found.reset_dimensions()  # what the file says of its size, which may be anything
        for values in found.iter_rows(values_only=True):
            cells = [None if cell in _ERRORS or cell == "" else cell for cell in values]
            while cells and cells[-1] is None:
                cells.pop()
            rows.blank.append(b"01"[not cells])
            if len(rows.blank) > MOST_SHEET_ROWS:
                raise InputError(f"{path}: has more rows than a sheet can have; write it again")
            if not cells:
                continue
            if not header:
                header = tuple(
                    f"Unnamed: {n}" if c is None else str(c) for n, c in enumerate(cells)
                )
                check_names(header, path)
                if len(set(header)) < len(header):
                    raise InputError(
                        f"{path}: two columns have the same name; rename one in the header"
                    )
                yield header
                continue
            if len(cells) > len(header):
                raise InputError(
                    f"{path}: {rows.last} has {len(cells)} cells where the header has "
                    f"{len(header)}; name every column in the first row, and keep notes out of the "
                    "table"
                )
            if len(rows.blank) * len(header) > most:
                raise InputError(
                    f"{path}: most of its cells are empty; keep the columns that you need"
                )
            if any(isinstance(cell, str) and len(cell) > MOST_CELL for cell in cells):
                raise InputError(
                    f"{path}: {rows.last} has more than {MOST_CELL} characters in a cell"
                )
            yield (*cells, *[None] * (len(header) - len(cells)))


def read_saved_dataset(folder: Path, split: str | None) -> TableReader:
    """Return a reader of a folder of `datasets.save_to_disk`, with or without splits."""
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
    return read_dataset(loaded[split], str(folder), "save the data set again")


def read_hub_dataset(name: str, split: str | None) -> TableReader:
    """Return a reader of a data set of the hub (`owner/name`). Its own cache keeps a copy."""
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
    return read_dataset(loaded, name, "download the data set again")


def read_dataset(data: Any, source: str, remedy: str) -> TableReader:
    """Return a reader of a `datasets.Dataset`."""
    schema = _checked_schema(data.features.arrow_schema, source)

    def pieces() -> Iterator[Piece]:
        with _one_line(f"{source}: its data are damaged; {remedy}"):
            for table in data.with_format("arrow").iter(arrow_columns.ROWS_AT_ONCE):
                yield from map(_arrow_piece, table.combine_chunks().to_batches())

    return TableReader(pieces(), schema)
