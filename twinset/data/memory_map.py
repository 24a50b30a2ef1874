"""A table that lies on the disk and is looked at there, in Arrow's format.

Its file has no name: nobody else can open it, and it is gone with the process, however that ends.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from weakref import WeakSet

import numpy as np
import pandas as pd
import pyarrow as pa

from twinset.files.atomic import writing

ROWS_AT_ONCE = 10_000

# Columns of one of these dtypes in every piece have it, and the same cells, in the whole table.
_PLAIN = {
    "str": pa.large_string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}

_OPEN: WeakSet[mmap.mmap] = WeakSet()


@dataclass(frozen=True)
class Reading:
    """The ways to read a table.

    Args:
        whole: all of it.
        pieces: some rows after the others, each piece with dtypes of its own.
        column: one column by its place and its name, as `whole` has it.
        declared: dtypes of whole numbers and booleans, where the source states types: pandas makes
            others of them where cells are missing.
    """

    whole: Callable[[], pd.DataFrame]
    pieces: Callable[[], Iterator[pd.DataFrame]]
    column: Callable[[int, str], pd.Series]
    declared: Mapping[str, str] = field(default_factory=dict)


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
