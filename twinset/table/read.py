"""Tables in files: which ending means which format, and how each of them is read and written.

Knows nothing of texts, labels or privacy budgets, nor how a format is parsed. A table is a pandas
table on Arrow's columns. What its source states (row numbers, types) is kept in its `attrs`.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Any, cast

import pandas as pd
import pyarrow as pa

from twinset.errors import InputError
from twinset.files.atomic import whole_file
from twinset.table import other_formats as formats
from twinset.table.arrow_columns import RowNumbers, TableReader, collect_table, typed
from twinset.table.text_files import (
    UTF8,
    Layout,
    detect_layout,
    read_delimited,
    read_json,
    read_jsonl,
)

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
# As OWASP's "CSV injection" lists them. The last four are = + - @ in full width.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
STDIN = "-"
UNNAMED = "FILE"  # in commands to paste, which cannot read standard input again

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_OF_TEXT = {"csv": read_delimited, "tsv": read_delimited, "jsonl": read_jsonl, "json": read_json}
_STATED = "twinset: stated by the source"  # key of a table's `attrs`, which hold plain values
_OPEN_FILES = Path("/proc/self/fd")


@dataclass(frozen=True)
class TableFacts:
    """What the source of a table states of it. Cells say nothing here.

    Args:
        kind: format of its file. None: a data set, or a table that somebody made in memory.
        types: by column, its whole numbers and truths in a source that states types. pandas makes
            other dtypes of these where cells are missing. None: a table that was made in memory.
        rows: what rows are called in messages.
        notes: how the table was read, for its owner.
    """

    kind: str | None = None
    types: dict[str, str] | None = None
    rows: RowNumbers = field(default_factory=RowNumbers)
    notes: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether cells are of CSV or TSV, where a number is a text that is written as one."""
        return self.kind in _DELIMITERS

    @property
    def is_named_by_rows(self) -> bool:
        """Whether column names stood in the rows (JSONL), and in no header that all rows share.

        Then names, their number and their order are as private as cells.
        """
        return self.kind in ("jsonl", "json")

    @property
    def states_types(self) -> bool:
        """Whether columns have types of their own: not those of CSV, TSV, Excel and JSONL."""
        return self.kind not in (*_OF_TEXT, "xlsx")

    def dtype(self, column: pd.Series) -> str | None:
        """Return a column's dtype. None where it is nowhere stated (CSV, TSV, Excel, JSONL).

        There it follows from all cells, and tells of single ones: 1 and 2 are int64, and float64
        where one row has a gap. A gap does the same to whole numbers of Parquet, whose file states
        them, and to those of a table in memory, where nothing does. A number makes objects of its
        texts.
        """
        found = str(column.dtype)
        if not self.states_types:
            return None
        if found not in ("float64", "object"):
            return found
        return None if self.types is None else self.types.get(str(column.name), found)


def facts_of(table: pd.DataFrame | pd.Series) -> TableFacts:
    """Return what the source of a table, or of a column of it, states."""
    if _STATED not in table.attrs:
        return TableFacts()
    kind, types, (word, header, blank), notes = table.attrs[_STATED]
    return TableFacts(kind, types, RowNumbers(word, header, bytearray(blank.encode())), notes)


def row_name(table: pd.DataFrame | pd.Series, index: int) -> str:
    """Return what to call a row in messages: as a spreadsheet or an editor shows it.

    >>> row_name(pd.DataFrame({"review": ["Good."]}), 0)
    'row 1'
    """
    return facts_of(table).rows.name(index)


def reading_notes(frame: pd.DataFrame) -> list[str]:
    """Return how a table was read, for its owner."""
    return list(facts_of(frame).notes)


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
            without a name. None: in memory.
        layout: encoding and delimiter, where they are not to be detected.

    Raises:
        InputError: the source is absent, unreadable, or not what its ending says.
    """
    layout = layout or Layout()
    if str(source) == STDIN:
        with _spooled(folder) as (file, found):
            return _read(file, found, STDIN, split, folder, layout)
    path = Path(source)
    kind = format_of(path) if path.is_file() else None
    return _read(path, kind, str(source), split, folder, layout)


@contextmanager
def _spooled(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield a file that holds standard input, which can be read once only, and its format.

    The file has no name where the system allows that, and is gone with the process.
    """
    has_descriptors = _OPEN_FILES.is_dir()
    make: Any = TemporaryFile if has_descriptors else NamedTemporaryFile
    with make(dir=folder) as file:
        path = _OPEN_FILES / str(file.fileno()) if has_descriptors else Path(file.name)
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


def _read(
    path: Path, kind: str | None, name: str, split: str | None, folder: Path | None, layout: Layout
) -> pd.DataFrame:
    """Return a table of a file of some format. None: a folder, or a name of the hub."""
    is_given = layout.encoding is not None or layout.delimiter is not None
    if is_given and kind not in _OF_TEXT:
        raise InputError(f"{name}: `delimiter` and `encoding` are of files of text; leave them out")
    try:
        if path.is_dir():
            reader = formats.read_saved_dataset(path, split)
        elif not path.exists() and format_of(path) is None:
            reader = formats.read_hub_dataset(name, split)
        elif not path.exists():
            raise InputError(f"{path}: no such file; check the path")
        elif kind is None:
            readable = ", ".join((*FORMATS, *READ_ONLY))
            raise InputError(f"{path}: unknown ending; save it as one of {readable}")
        elif kind == "xlsx":
            reader = formats.read_excel(path, split)
        elif split is not None:
            raise InputError(
                f"{path}: a file has no splits; leave `split` out or name a split's file"
            )
        elif kind in ("parquet", "feather"):
            read = formats.read_parquet if kind == "parquet" else formats.read_feather
            reader = read(path)
        else:
            own = _DELIMITERS.get(kind)
            if own is None and layout.delimiter is not None:
                raise InputError(f"{path}: `delimiter` is of CSV; leave it out")
            found, notes = detect_layout(path, layout, own)
            reader = replace(_OF_TEXT[kind](path, found), notes=notes)
        frame = collect_table(reader, folder)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path}: the gzip data is damaged or cut off; copy it again") from None
    except OSError as error:
        reason = error.strerror or "input/output error"
        raise InputError(f"{path}: cannot be read ({reason}); check path and rights") from None
    return _with_facts(frame, reader, kind)


def read_twin(path: Path, format: str) -> pd.DataFrame:
    """Read a file as `write_frame` writes it. Nothing about it is detected.

    Args:
        path: of the file.
        format: an ending of `FORMATS`, without its point.
    """
    kind = FORMATS[f".{format}"]
    given = Layout(UTF8, _DELIMITERS.get(kind)) if kind in _OF_TEXT else Layout()
    return _read(path, kind, str(path), None, None, given)


def dataset_frame(data: Any) -> pd.DataFrame:
    """Return a `datasets.Dataset` as `read_frame` returns one that was saved."""
    reader = formats.read_dataset(data, "table", "make the data set again")
    return _with_facts(collect_table(reader), reader, None)


def _with_facts(frame: pd.DataFrame, reader: TableReader, kind: str | None) -> pd.DataFrame:
    """Type the cells of CSV, and let a table say what its source states, in plain values."""
    if kind in _DELIMITERS and len(frame.columns):
        frame = frame.apply(typed)
    types, rows = None, reader.rows
    if reader.schema is not None:
        plain = [f for f in reader.schema if pa.types.is_integer(f.type) or f.type == pa.bool_()]
        types = {f.name: str(f.type) for f in plain}
    blank = rows.blank.decode() if b"1" in rows.blank else ""
    frame.attrs[_STATED] = [kind, types, [rows.word, rows.header, blank], list(reader.notes)]
    return frame


def write_frame(
    frame: pd.DataFrame,
    path: str | Path,
    format: str | None = None,
    guard_formulas: bool = True,
) -> int:
    """Write a table whole or not at all, and return how many cells were guarded.

    Args:
        frame: the table. Its index is not written.
        path: the file, replaced where it exists and compressed where it ends in `.gz`.
        format: csv, tsv, jsonl or parquet. None takes it from the ending.
        guard_formulas: in CSV and TSV, put an apostrophe before every text cell that a spreadsheet
            would run as a formula (`FORMULA_STARTS`). Labels are cells too: a label "+" is guarded.
            So are column names, which are not counted: `written_names` returns them.

    Raises:
        InputError: unknown ending, or the file system refuses (rights, space, missing folder).
    """
    path = Path(path)
    kind = format if format is not None else format_of(path)
    if kind is None or kind not in FORMATS.values():
        raise InputError(
            f"{path}: unknown format; end the name in {', '.join(FORMATS)}, or give `format` "
            f"{', '.join(dict.fromkeys(FORMATS.values()))}"
        )
    guarded = 0
    if guard_formulas and kind in _DELIMITERS:
        columns, names = {}, written_names(frame, kind)
        for name in frame.columns:
            cells = frame[name].tolist()
            risky = [isinstance(cell, str) and cell.startswith(FORMULA_STARTS) for cell in cells]
            if any(risky):
                guarded += sum(risky)
                columns[name] = [f"'{c}" if r else c for c, r in zip(cells, risky, strict=True)]
        frame = frame.assign(**columns).set_axis(names, axis="columns")
    # Parquet compresses its own pages
    is_zipped = kind != "parquet" and path.name.lower().endswith(".gz")
    with whole_file(path) as file:
        raw: IO[bytes] = cast(Any, file).buffer
        # no name, no time: the same rows make the same bytes
        with (
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
            if is_zipped
            else nullcontext(raw) as handle
        ):
            if kind == "parquet":
                frame.to_parquet(handle, index=False)
            elif kind == "jsonl":
                # not DataFrame.to_json: it rounds floats to at most 15 digits
                for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
                    handle.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            else:
                # Every text is quoted: left to itself the writer leaves a lone carriage return
                # unquoted, and a reader then sees a new row.
                frame.to_csv(
                    handle,
                    sep=_DELIMITERS[kind],
                    index=False,
                    mode="wb",
                    encoding="utf-8",
                    lineterminator="\n",
                    quoting=csv.QUOTE_NONNUMERIC,
                )
    return guarded


def written_names(frame: pd.DataFrame, format: str) -> list[str]:
    """Return the column names that a guarded file of this format has, all different.

    >>> written_names(pd.DataFrame({"=a": [1], "b": [2]}), "csv.gz")
    ["'=a", 'b']
    """
    names = list(map(str, frame.columns))
    if format.split(".")[0] in _DELIMITERS:
        for place, name in enumerate(names):
            if name.startswith(FORMULA_STARTS):
                while name in names:
                    name = f"'{name}"
                names[place] = name
    return names
