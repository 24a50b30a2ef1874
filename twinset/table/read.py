"""A table from standard input, which can be read once only: kept where it can be read again."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Any, cast

import pandas as pd

from twinset.errors import InputError
from twinset.table.arrow_columns import Reading, RowNumbers, mapped
from twinset.table.other_formats import (
    dataset,
    excel,
    feather,
    json_file,
    jsonl,
    on_hub,
    parquet,
    saved,
)
from twinset.table.text_files import Layout, delimited, detected

STDIN = "-"
UNNAMED = "FILE"  # in commands to paste, which cannot read it again
_OPEN_FILES = Path("/proc/self/fd")


@contextmanager
def spooled(folder: Path | None = None) -> Iterator[tuple[Path, str]]:
    """Yield a file that holds standard input, and its format: csv or json.

    The file has no name where the system allows that, and is gone with the process.

    Args:
        folder: private to its owner, where the file is made; None: where the system keeps such.

    Raises:
        InputError: there is nothing on standard input; or whatever is wrong with the table.
    """
    with _file(folder) as (file, path):
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("-: nothing comes by standard input; pipe a table in, or name a file")
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        file.seek(0)
        start = file.read(1000).lstrip(b"\xef\xbb\xbf \r\n\t\0\xff\xfe")
        try:
            yield path, "json" if start.startswith((b"{", b"[")) else "csv"
        except InputError as error:
            raise InputError(str(error).replace(str(path), "standard input")) from None


@contextmanager
def _file(folder: Path | None) -> Iterator[tuple[IO[Any], Path]]:
    if _OPEN_FILES.is_dir():
        with TemporaryFile(dir=folder) as file:
            yield file, _OPEN_FILES / str(file.fileno())
    else:
        with NamedTemporaryFile(dir=folder) as named:
            yield named, Path(named.name)


FORMATS: dict[str, str] = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".parquet": "parquet",
}
READ_ONLY: dict[str, str] = {  # a twin is written in none of these
    ".json": "json",
    ".json.gz": "json",
    ".xlsx": "xlsx",
    ".feather": "feather",
    ".arrow": "feather",
}
# As OWASP's "CSV injection" lists them; the last four are = + - @ in full width.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_OF_TEXT = (*_DELIMITERS, "jsonl", "json")
_STATED = "twinset: stated by the source"  # key of a table's `attrs`, which hold plain values


def format_of(path: str | Path) -> str | None:
    """Return the format a file name's ending stands for, or None where it stands for none.

    >>> format_of("reviews.csv.gz"), format_of("Twin.PARQUET"), format_of("notes.docx")
    ('csv', 'parquet', None)
    """
    name = Path(path).name.lower()
    known = (FORMATS | READ_ONLY).items()
    return next((kind for ending, kind in known if name.endswith(ending)), None)


def read_frame(
    source: str | Path,
    split: str | None = None,
    folder: Path | None = None,
    layout: Layout | None = None,
) -> pd.DataFrame:
    """Read a file, standard input, a folder saved by `datasets`, or a data set of the hub.

    In CSV and TSV only an empty cell is missing: "NA", "None" and "null" are texts.

    Args:
        source: file with an ending in `FORMATS` or `READ_ONLY`, folder of `save_to_disk`, hub name,
            or "-": standard input, which holds CSV, JSONL or a JSON array.
        split: which split of a folder or hub data set, or sheet of an Excel file.
        folder: private to its owner: a large table's texts are kept on the disk there, in a file
            without a name; None: in memory.
        layout: encoding and delimiter, where they are not to be detected.

    Raises:
        InputError: the source is absent, unreadable, or not what its ending says.
    """
    if str(source) == STDIN:
        with spooled(folder) as (file, found):
            return _read(file, found, STDIN, split, folder, layout or Layout())
    path = Path(source)
    kind = format_of(path) if path.is_file() else None
    return _read(path, kind, str(source), split, folder, layout or Layout())


def _read(
    path: Path,
    kind: str | None,
    name: str,
    split: str | None,
    folder: Path | None,
    layout: Layout,
) -> pd.DataFrame:
    try:
        reading = _reading(path, kind, name, split, layout)
        frame = reading.whole() if folder is None else mapped(reading, folder)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path}: the gzip data is damaged or cut off; copy it again") from None
    except OSError as error:
        reason = error.strerror or "input/output error"
        raise InputError(f"{path}: cannot be read ({reason}); check path and rights") from None
    return _stating(frame, reading, kind)


def dataset_frame(data: Any) -> pd.DataFrame:
    """Return a `datasets.Dataset` as `read_frame` returns one that was saved."""
    reading = dataset(data, "table", "make the data set again")
    return _stating(reading.whole(), reading, None)


def _stating(frame: pd.DataFrame, reading: Reading, kind: str | None) -> pd.DataFrame:
    """Let a table say what its source states."""
    has_types = kind in (None, "parquet", "feather")
    frame.attrs[_STATED] = {
        "text": kind in _DELIMITERS,
        "names": kind not in ("jsonl", "json"),
        "types": dict(reading.declared) if has_types else None,
        "rows": reading.rows.to_plain(),
        "notes": list(reading.notes),
    }
    return frame


def reading_notes(frame: pd.DataFrame) -> list[str]:
    """Return how a table was read, for its owner."""
    return list(frame.attrs.get(_STATED, {}).get("notes", ()))


def row_name(table: pd.DataFrame | pd.Series, index: int) -> str:
    """Return what to call a row in messages: as a spreadsheet or an editor shows it.

    Args:
        table: or a column of it.
        index: of the row, from 0.

    >>> row_name(pd.DataFrame({"review": ["Good."]}), 0)
    'row 1'
    """
    return row_numbers(table).name(index)


def row_numbers(table: pd.DataFrame | pd.Series) -> RowNumbers:
    """Return what a table's rows are called; see `row_name`."""
    word, header, blank = table.attrs.get(_STATED, {}).get("rows", ("row", 0, ""))
    return RowNumbers(word, header, bytearray(blank.encode()))


def is_named_by_rows(frame: pd.DataFrame) -> bool:
    """Return whether column names stood in the rows (JSONL), and in no header that all rows share.

    Then names, their number and their order are as private as cells.
    """
    return not frame.attrs.get(_STATED, {}).get("names", True)


def is_of_text(table: pd.DataFrame | pd.Series) -> bool:
    """Return whether cells are of CSV or TSV, where a number is a text that is written as one."""
    return bool(table.attrs.get(_STATED, {}).get("text", False))


def states_types(frame: pd.DataFrame) -> bool:
    """Return whether a table's columns have types of their own: not those of CSV, TSV and JSONL."""
    return _STATED not in frame.attrs or frame.attrs[_STATED]["types"] is not None


def stated_dtype(frame: pd.DataFrame, name: str) -> str | None:
    """Return a column's dtype; None where it is nowhere stated (CSV, TSV, JSONL).

    There it follows from all cells, and tells of single ones: 1 and 2 are int64, and float64 where
    one row has a gap. A gap does the same to whole numbers of Parquet, whose file states them; to
    those of a table in memory, where nobody does; and a number makes objects of its texts.
    """
    if not states_types(frame):
        return None
    found = str(frame[name].dtype)
    if found not in ("float64", "object"):
        return found
    return frame.attrs[_STATED]["types"].get(name, found) if _STATED in frame.attrs else None


def write_frame(
    frame: pd.DataFrame,
    path: str | Path,
    format: str | None = None,
    guard_formulas: bool = True,
) -> int:
    """Write a table whole or not at all, and return how many cells were guarded.

    Args:
        frame: the table; its index is not written.
        path: the file, replaced where it exists; compressed where it ends in `.gz`.
        format: csv, tsv, jsonl or parquet; None takes it from the ending.
        guard_formulas: in CSV and TSV, put an apostrophe before every text cell that a spreadsheet
            would run as a formula (`FORMULA_STARTS`). Labels are cells too: a label "+" is guarded.
            So are column names, which are not counted: `written_names` tells them.

    Raises:
        InputError: unknown ending, or the file system refuses (rights, space, missing folder).
    """
    path = Path(path)
    kind = format if format is not None else format_of(path)
    if kind not in _WRITERS:
        raise InputError(
            f"{path}: unknown format; end the name in {_endings()}, or give `format` "
            f"{', '.join(_WRITERS)}"
        )
    guarded = 0
    if guard_formulas and kind in _DELIMITERS:
        frame, guarded = _guard(frame)
    _write_atomically(path, partial(_WRITERS[kind], frame), kind != "parquet")
    return guarded


def _endings() -> str:
    return ", ".join(FORMATS)


def _reading(path: Path, kind: str | None, name: str, split: str | None, layout: Layout) -> Reading:
    if layout.is_given and kind not in _OF_TEXT:
        raise InputError(f"{name}: `delimiter` and `encoding` are of files of text; leave them out")
    if path.is_dir():
        return saved(path, split)
    if not path.exists() and format_of(path) is None:
        return on_hub(name, split)
    if not path.exists():
        raise InputError(f"{path}: no such file; check the path")
    if kind is None:
        raise InputError(f"{path}: unknown ending; save it as one of {_readable()}")
    if kind == "xlsx":
        return excel(path, split)
    if split is not None:
        raise InputError(f"{path}: a file has no splits; leave `split` out or name a split's file")
    return _READERS[kind](path) if kind in _READERS else _of_text(path, kind, layout)


def _readable() -> str:
    return ", ".join((*FORMATS, *READ_ONLY))


_READERS: dict[str, Callable[[Path], Reading]] = {"parquet": parquet, "feather": feather}


def _of_text(path: Path, kind: str, layout: Layout) -> Reading:
    """Return the ways to read a file of text; raises InputError."""
    own = _DELIMITERS.get(kind)
    if own is None and layout.delimiter is not None:
        raise InputError(f"{path}: `delimiter` is of CSV; leave it out")
    found, notes = detected(path, layout, own)
    read = delimited if own is not None else jsonl if kind == "jsonl" else json_file
    return replace(read(path, found), notes=notes)


def _guard(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    guarded, columns = 0, {}
    names = _guarded_names(frame)
    for name in frame.columns:
        cells = frame[name].tolist()
        risky = [isinstance(cell, str) and cell.startswith(FORMULA_STARTS) for cell in cells]
        if any(risky):
            guarded += sum(risky)
            columns[name] = [f"'{c}" if r else c for c, r in zip(cells, risky, strict=True)]
    return frame.assign(**columns).set_axis(names, axis="columns"), guarded


def _guarded_names(frame: pd.DataFrame) -> list[str]:
    """Return column names that no spreadsheet runs, all different."""
    names = list(map(str, frame.columns))
    for place, name in enumerate(names):
        if name.startswith(FORMULA_STARTS):
            while name in names:
                name = f"'{name}"
            names[place] = name
    return names


def written_names(frame: pd.DataFrame, format: str) -> list[str]:
    """Return the column names that a guarded file of this format has.

    >>> written_names(pd.DataFrame({"=a": [1], "b": [2]}), "csv.gz")
    ["'=a", 'b']
    """
    if format.split(".")[0] in _DELIMITERS:
        return _guarded_names(frame)
    return list(map(str, frame.columns))


def _write_delimited(frame: pd.DataFrame, handle: IO[bytes], delimiter: str) -> None:
    # Every text is quoted: left to itself the writer leaves a lone carriage return unquoted, and
    # a reader then sees a new row.
    frame.to_csv(
        handle,
        sep=delimiter,
        index=False,
        mode="wb",
        encoding="utf-8",
        lineterminator="\n",
        quoting=csv.QUOTE_NONNUMERIC,
    )


def _write_jsonl(frame: pd.DataFrame, handle: IO[bytes]) -> None:
    # Not DataFrame.to_json: it rounds floats to at most 15 digits.
    for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        handle.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _write_parquet(frame: pd.DataFrame, handle: IO[bytes]) -> None:
    frame.to_parquet(handle, index=False)


_WRITERS: dict[str, Callable[[pd.DataFrame, IO[bytes]], None]] = {
    "csv": partial(_write_delimited, delimiter=","),
    "tsv": partial(_write_delimited, delimiter="\t"),
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}


def _write_atomically(path: Path, write: Callable[[IO[bytes]], None], may_gzip: bool) -> None:
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    compress = may_gzip and path.name.lower().endswith(".gz")
    try:
        try:
            with open(temporary, "wb") as raw:
                with _compressed(raw) if compress else nullcontext(raw) as handle:
                    write(handle)
                raw.flush()
                mode = os.fstat(raw.fileno()).st_mode & (path.parent.stat().st_mode | 0o600)
                os.fchmod(raw.fileno(), mode & 0o644)  # no more open than its folder
                os.fsync(raw.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or "input/output error"
        raise InputError(
            f"{path}: cannot be written ({reason}); choose a folder that exists, may be written "
            "to and has space"
        ) from None


def _compressed(raw: IO[bytes]) -> IO[bytes]:
    # no name, no time: the same rows make the same bytes
    return cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
