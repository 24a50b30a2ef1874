"""Tables in files: which ending means which format, and how a table is read and written.

The cells are private, and messages of libraries may quote them. So these are never passed on, and
errors are raised `from None` to keep them out of tracebacks. Knows nothing of texts, labels or
privacy budgets. A table is a pandas table on Arrow's columns, with facts from its source (row
numbers, types) in its `attrs`.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Any, cast

import pandas as pd
import pyarrow as pa

from twinset.errors import InputError
from twinset.files.atomic import whole_file
from twinset.table import columns
from twinset.table import other_formats as formats
from twinset.table.columns import RowNumbers, TableFacts, typed, widened
from twinset.table.text_formats import (
    OF_TEXT,
    OWN_DELIMITERS,
    UTF8,
    Layout,
    detect_layout,
    read_csv,
    read_json,
)

_PLAIN = {f".{kind}{end}": kind for kind in ("csv", "tsv", "jsonl") for end in ("", ".gz")}
FORMATS: dict[str, str] = _PLAIN | {".parquet": "parquet"}
# a twin is written in none of these
READ_ONLY = {".json": "json", ".json.gz": "json", ".xlsx": "xlsx"}
READ_ONLY |= {".feather": "feather", ".arrow": "feather"}
READ_ONLY |= {f".ndjson{end}": "jsonl" for end in ("", ".gz")}
READ_ONLY |= {f".{kind}{end}": kind for kind in ("csv", "tsv", "jsonl") for end in (".bz2", ".zst")}
_REMEDIES = dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".xz"), "Unpack it. Name the file inside")
_REMEDIES[".txt"] = "Rename it to .csv, .tsv or .jsonl, by what it holds"
# As OWASP's "CSV injection" lists them. The last four are = + - @ in full width.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
STDIN = "-"
_JSON = re.compile(rb"""\{\s*(["}]|\Z)|\[\s*([][{]|\Z)""")  # a table of CSV may begin with [ or {
UNNAMED = "FILE"  # in commands to paste, which cannot read standard input again


# -- any table -------------------------------------------------------------------------------------


def format_of(path: str | Path) -> str | None:
    """Return the format that a file name's ending means, or None if it means none.

    >>> format_of("reviews.csv.gz"), format_of("Twin.PARQUET"), format_of("notes.docx")
    ('csv', 'parquet', None)
    """
    name = Path(path).name.lower()
    known = (FORMATS | READ_ONLY).items()
    return next((kind for ending, kind in known if name.endswith(ending)), None)


def read_frame(
    source: Any,
    split: str | None = None,
    folder: Path | None = None,
    layout: Layout | None = None,
    written_as: str | None = None,
) -> pd.DataFrame:
    """Read a file, standard input, a folder saved by `datasets`, or a data set.

    In CSV and TSV only an empty cell is missing: "NA", "None" and "null" are texts.

    Args:
        source: file with an ending in `FORMATS` or `READ_ONLY`, folder of `save_to_disk`, hub name,
            "-" (standard input with CSV, JSONL or a JSON array), a `datasets.Dataset`, or a table
            that Arrow knows.
        split: split of a folder or hub data set, or sheet of an Excel file.
        folder: private to its owner. Texts of a large table are kept there. None: in memory.
        layout: encoding and delimiter, if they should not be detected.
        written_as: an ending of `FORMATS` without its dot. The file is read as `write_frame`
            writes it, and nothing is detected.
    """
    is_path = isinstance(source, str | Path)
    name = str(source) if is_path else "table"
    path, kind, layout = Path(name), None, layout or Layout()
    rows, notes, schema = RowNumbers(), list[str](), None
    with ExitStack() as stack:
        if name == STDIN:
            path, kind = stack.enter_context(_spooled(folder))
        elif written_as is not None:
            kind = FORMATS[f".{written_as}"]
            if kind in OF_TEXT:
                layout = Layout(UTF8, OWN_DELIMITERS.get(kind), multiline=True)
        elif is_path and path.is_file():
            kind = format_of(path)
        own = OWN_DELIMITERS.get(kind or "")
        if (layout.encoding and kind not in OF_TEXT) or (layout.delimiter and own is None):
            raise InputError(
                f"{name}: `encoding` and `delimiter` are for text files, and JSON has no "
                "delimiter. Leave them out."
            )
        try:
            if not is_path:
                pieces, schema = formats.read_dataset(source, name)
            elif path.is_dir() or (not path.exists() and format_of(path) is None):
                pieces, schema = formats.load_dataset(name, split)
            elif not path.is_file():
                is_there = "is no file. Pipe it in with `-`" if path.exists() else "no such file"
                raise InputError(f"{path}: {is_there}. Check the path.")
            elif kind is None:
                readable = ", ".join((*FORMATS, *READ_ONLY))
                remedy = _REMEDIES.get(path.suffix.lower(), f"Save it as one of {readable}")
                raise InputError(f"{path}: unknown ending. {remedy}.")
            elif kind == "xlsx":
                rows = RowNumbers("row", header=1)
                pieces = formats.read_excel(path, split, rows, notes)
            elif split is not None:
                raise InputError(
                    f"{path}: a file has no splits. Leave `split` out or name a split's file."
                )
            elif kind == "parquet":
                pieces, schema = formats.read_parquet(path)
            elif kind == "feather":
                pieces, schema = formats.read_feather(path)
            else:
                layout, notes = detect_layout(path, layout, own)
                if own is None:
                    rows = RowNumbers("line")
                    pieces = read_json(path, layout, rows, may_be_array=kind == "json")
                else:
                    rows = RowNumbers("row", header=1)
                    pieces = read_csv(path, layout, rows)
            damaged = f"{name}: is not a readable table. Write it again."
            with formats.one_line(damaged) if schema is not None else nullcontext():
                frame = columns.collect_table(pieces, schema, folder)
        except (EOFError, zlib.error, OSError) as error:
            fault = "its data are damaged or cut off. Copy it again"
            if reason := getattr(error, "strerror", None):  # Arrow and gzip give none
                fault = f"cannot be read ({reason}). Check path and rights"
            raise InputError(f"{path}: {fault}.") from None
    if own and len(frame.columns):
        frame = frame.apply(typed)
    is_made = schema is None or not (is_path or hasattr(source, "with_format"))
    stated = [f for f in schema or () if pa.types.is_integer(f.type) or f.type == pa.bool_()]
    facts = TableFacts(
        is_text=own is not None,
        is_named_by_rows=kind in ("jsonl", "json"),
        states_types=kind not in (*OF_TEXT, "xlsx"),
        types=None if is_made else {f.name: str(f.type) for f in stated},
        # without blank rows they are not kept: pandas copies what a table states all the time
        rows=rows if b"1" in rows.blank else replace(rows, blank=bytearray()),
        notes=notes,
    )
    frame.attrs[columns.STATED] = facts
    return frame


@contextmanager
def _spooled(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield a file with the contents of standard input, unnamed if the system allows it."""
    open_files = Path("/proc/self/fd")
    make: Any = TemporaryFile if open_files.is_dir() else NamedTemporaryFile
    with make(dir=folder) as file:
        path = open_files / str(file.fileno()) if open_files.is_dir() else Path(file.name)
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("-: nothing comes by standard input. Pipe a table in, or name a file.")
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        file.seek(0)
        start = b""
        for block in iter(partial(file.read, 1000), b""):
            if start := block.lstrip(b"\xef\xbb\xbf \r\n\t\0\xff\xfe"):
                break
        try:
            yield path, "json" if _JSON.match(start.replace(b"\0", b"")) else "csv"
        except InputError as error:
            raise InputError(str(error).replace(str(path), "standard input")) from None


def write_frame(
    frame: pd.DataFrame,
    path: str | Path,
    format: str | None = None,
    guard_formulas: bool = True,
    as_they_are: Collection[str] = (),
    decimals: Mapping[str, int] | None = None,
) -> int:
    """Write a table whole or not at all, and return how many cells were guarded.

    An existing file is replaced. A file that ends in `.gz` is compressed. `format` is csv, tsv,
    jsonl or parquet, by default that of the ending. `guard_formulas` puts an apostrophe before
    every text cell of CSV and TSV that a spreadsheet would run (`FORMULA_STARTS`). Column names are
    guarded too but not counted, see `written_names`. Label columns are listed in `as_they_are` and
    stay unchanged: their few values are public, and a label is what its owner calls it. `decimals`
    has the decimals of columns of numbers, with which CSV and TSV write them: 5.00.
    """
    path = Path(path)
    kind = format if format is not None else format_of(path)
    if kind is None or kind not in FORMATS.values():
        raise InputError(
            f"{path}: unknown format. End the name in {', '.join(FORMATS)}, or give `format` "
            f"{', '.join(dict.fromkeys(FORMATS.values()))}."
        )
    guarded = 0
    if kind in OWN_DELIMITERS:  # a number is spelt as everywhere: 5 for 5.0
        # and so is one that is a category
        kinds = {n: getattr(frame[n].dtype, "categories", frame[n]).dtype.kind for n in frame}
        cells = {name: widened(frame[name]) for name in frame if kinds[name] == "f"}
        spelt = {
            n: [int(c) if isinstance(c, float) and c.is_integer() else c for c in column.tolist()]
            for n, column in cells.items()
        }
        for name, places in (decimals or {}).items():
            if places and name in spelt:
                # a number that is a text would be quoted
                filled = [None if c is None or c != c else c for c in spelt[name]]
                spelt[name] = [c if c is None else Decimal(f"{c:.{places}f}") for c in filled]
        frame = frame.assign(**{n: pd.Series(c, frame.index, object) for n, c in spelt.items()})
    if guard_formulas and kind in OWN_DELIMITERS:
        others, names = {}, written_names(frame, kind)
        for name in frame.columns.difference(list(as_they_are), sort=False):
            cells = frame[name].tolist()
            risky = [isinstance(cell, str) and cell.startswith(FORMULA_STARTS) for cell in cells]
            if any(risky):
                guarded += sum(risky)
                others[name] = [f"'{c}" if r else c for c, r in zip(cells, risky, strict=True)]
        frame = frame.assign(**others).set_axis(names, axis="columns")
    # Parquet compresses its own pages
    is_zipped = kind != "parquet" and path.name.lower().endswith(".gz")
    with whole_file(path) as file:
        raw: IO[bytes] = cast(Any, file).buffer
        # no name, no time: the same rows make the same bytes
        zipped = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if is_zipped else nullcontext(raw)
        with zipped as handle:
            if kind == "parquet":
                frame = frame.copy(deep=False)
                frame.attrs = {}  # which would be written, too
                try:
                    frame.to_parquet(handle, index=False)
                except (pa.ArrowInvalid, pa.ArrowTypeError):  # their messages quote cells
                    raise InputError(
                        f"{path}: Parquet holds no column of several types. Take CSV instead."
                    ) from None
            elif kind == "jsonl":
                # not DataFrame.to_json: it rounds floats to at most 15 digits
                frame = frame.assign(**{name: widened(frame[name]) for name in frame})
                for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
                    line = json.dumps(row, ensure_ascii=False, default=str)  # a date is its text
                    handle.write(line.encode() + b"\n")
            else:
                # Every text is quoted: left to itself the writer leaves a lone carriage return
                # unquoted, and a reader then sees a new row.
                quoting = {"quoting": csv.QUOTE_NONNUMERIC, "lineterminator": "\n"}
                sep = OWN_DELIMITERS[kind]
                frame.to_csv(handle, sep=sep, index=False, mode="wb", encoding="utf-8", **quoting)
    return guarded


def written_names(frame: pd.DataFrame, format: str) -> list[str]:
    """Return the column names in a guarded file of this format, all different.

    >>> written_names(pd.DataFrame({"=a": [1], "b": [2]}), "csv.gz")
    ["'=a", 'b']
    """
    names = list(map(str, frame.columns))
    if format.split(".")[0] in OWN_DELIMITERS:
        for place, name in enumerate(names):
            if name.startswith(FORMULA_STARTS):
                while name in names:
                    name = f"'{name}"
                names[place] = name
    return names
