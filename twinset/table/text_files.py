"""Files of text: their encoding, what separates cells, and how CSV is read.

What is not given is detected, and said to the owner. The cells are private, and the messages of
libraries may quote them: none is passed on, and errors are raised `from None` so that no traceback
holds one either. Rows are counted as a spreadsheet or an editor shows them.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
from charset_normalizer import from_bytes

from twinset.errors import InputError
from twinset.files.limits import MOST_CELL, MOST_LINE, check_names, inflated
from twinset.table.arrow_columns import (
    Piece,
    RowNumbers,
    TableReader,
    collect_table,
    some_at_once,
    typed,
)

UTF8 = "utf-8-sig"
_DELIMITERS = ",;\t|"
_BLOCK = 2**20  # bytes
_SAMPLE = 2**16  # bytes of lines that are not ASCII, by which an encoding is told
_ROWS = 100  # by which a delimiter is told
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Of tables that people still have. The first one is taken where others fit no better.
_ENCODINGS = (
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "koi8_r"),
    *("cp932", "gb18030", "big5", "cp949", "mac_roman"),
)
_SURE = 0.2  # of what a language's letters are to be like, from 0 to 1
_HINT = re.compile("sep=(.)[\r\n]")  # Excel's own first line of a CSV


@dataclass(frozen=True)
class Layout:
    """What is given or found about a file of text.

    Args:
        encoding: as Python names it. None: to be detected.
        delimiter: a character. None: to be detected.
        strict: refuse NUL characters instead of removing them.
        nuls: how many the file has.
        skipped: lines before the header.

    Raises:
        InputError: unknown encoding, or a delimiter that cells are full of.
    """

    encoding: str | None = None
    delimiter: str | None = None
    strict: bool = False
    nuls: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be used, and write the rest in one way."""
        if self.encoding is not None:
            try:
                found = codecs.lookup(self.encoding).name
                "a".encode(self.encoding)  # a few are no encodings of texts
            except (LookupError, ValueError, AssertionError):
                raise InputError(
                    f"`encoding={self.encoding}`: unknown; give one such as utf-8, cp1252 or utf-16"
                ) from None
            object.__setattr__(self, "encoding", UTF8 if found == "utf-8" else found)
        if self.delimiter is not None:
            one = {"tab": "\t", "\\t": "\t"}.get(self.delimiter, self.delimiter)
            if len(one) != 1 or not one.isascii() or one.isalnum() or one in '"\r\n\0':
                raise InputError(
                    f"`delimiter={self.delimiter}`: must be one character, such as ; or , or | "
                    "(or tab)"
                )
            object.__setattr__(self, "delimiter", one)

    @property
    def is_given(self) -> bool:
        """Whether anything about a file of text was asked for."""
        return self.encoding is not None or self.delimiter is not None

    @property
    def name(self) -> str:
        """The encoding, as people name it."""
        return "UTF-8" if self.encoding == UTF8 else str(self.encoding).replace("utf-", "UTF-")

    def text(self, path: Path, newline: str = "", errors: str = "strict") -> io.TextIOWrapper:
        """Open a file as text. NUL characters are left out, unless they are to be refused."""
        keeps_all = self.strict or (self.encoding == UTF8 and not self.nuls)
        kind = io.TextIOWrapper if keeps_all else _WithoutNuls
        return kind(open_bytes(path), self.encoding, errors, newline)


class _WithoutNuls(io.TextIOWrapper):
    """A text without its NUL characters, in which C libraries see the end of a cell."""

    def read(self, size: int | None = -1, /) -> str:
        while (found := super().read(size)) and not (kept := found.replace("\0", "")):
            pass
        return kept if found else ""

    def __next__(self) -> str:  # type: ignore[override]  # as the class above has it
        return super().__next__().replace("\0", "")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, inflated where its name ends in `.gz`."""
    return inflated(path) if path.name.lower().endswith(".gz") else path.open("rb")


def detect_layout(path: Path, layout: Layout, own: str | None) -> tuple[Layout, list[str]]:
    """Return a layout with nothing left to detect, and what to tell the owner about it.

    Args:
        path: of the file.
        layout: as far as it is given.
        own: delimiter that the file's ending stands for. None: cells are not separated.

    Raises:
        InputError: the encoding cannot be told, or the file is no text.
    """
    bytes_ = _FileBytes.scan(path)
    encoding = layout.encoding or bytes_.encoding(path)
    nuls = bytes_.count_nuls(encoding, path)
    delimiter, skipped = layout.delimiter, 0
    if own is not None:
        with Layout(encoding, None, layout.strict, nuls).text(path, errors="replace") as text:
            start = text.read(_BLOCK)
        if hint := _HINT.match(start):
            start, skipped = start[hint.end() :], 1
        # that by which most rows are as wide as the header, the file's own where several are
        candidates = sorted(_DELIMITERS, key=lambda one: one != own)
        best = max(candidates, key=lambda one: _evenness(start, one))
        delimiter = delimiter or (hint[1] if hint else best)
    found, notes = Layout(encoding, delimiter, layout.strict, nuls, skipped), []
    cells = ", separated by " + ("tabs" if delimiter == "\t" else delimiter) if delimiter else ""
    guessed = [] if layout.encoding else ["`encoding`"]
    guessed += ["`delimiter`"] if cells and not layout.delimiter else []
    if guessed and (encoding != UTF8 or delimiter != own):
        names = " and ".join(guessed)
        notes.append(f"read as {found.name}{cells} (detected; {names} to change)")
    if nuls:
        notes.append(f"removed {nuls} NUL character{'s' * (nuls > 1)}")
    return found, notes


def _evenness(start: str, delimiter: str) -> float:
    """Return the share of rows that are as wide as the header. 0 where that is one cell."""
    limit = csv.field_size_limit(MOST_CELL)
    try:
        rows = csv.reader(io.StringIO(start, newline=""), delimiter=delimiter)
        widths = [len(row) for row in islice(rows, _ROWS) if row]
    except csv.Error:
        return 0.0
    finally:
        csv.field_size_limit(limit)
    if len(start) >= _BLOCK and 1 < len(widths) < _ROWS:  # the last row is cut off
        widths = widths[:-1]
    if not widths or widths[0] < 2:
        return 0.0
    return widths.count(widths[0]) / len(widths)


@dataclass
class _FileBytes:
    """What a file's bytes are like.

    Args:
        mark: encoding that its first bytes stand for.
        is_utf8: whether all of them are UTF-8.
        nuls: of the bytes, at even and at odd places.
        size: number of bytes.
        sample: lines that are not ASCII.
    """

    mark: str | None = None
    is_utf8: bool = True
    nuls: tuple[int, int] = (0, 0)
    size: int = 0
    sample: bytes = b""

    @classmethod
    def scan(cls, path: Path) -> _FileBytes:
        """Read a file once, block by block."""
        found, decoder = cls(), codecs.getincrementaldecoder("utf-8")()
        with open_bytes(path) as raw:
            block = raw.read(_BLOCK)
            found.mark = next((name for m, name in _MARKS.items() if block.startswith(m)), None)
            while True:
                even, odd = (block[parity::2].count(0) for parity in (0, 1))
                even, odd = (odd, even) if found.size % 2 else (even, odd)
                found.nuls = found.nuls[0] + even, found.nuls[1] + odd
                found.size += len(block)
                try:
                    if found.is_utf8:
                        decoder.decode(block, final=not block)
                except UnicodeDecodeError:
                    found.is_utf8 = False
                if len(found.sample) < _SAMPLE and not block.isascii():
                    lines = (line for line in block.splitlines(True) if not line.isascii())
                    found.sample = (found.sample + b"".join(lines))[:_SAMPLE]
                if not block:
                    return found
                block = raw.read(_BLOCK)

    def encoding(self, path: Path) -> str:
        """Return the encoding. Raises InputError where it cannot be told."""
        if self.mark is not None:
            return self.mark
        fewer, more = sorted(self.nuls)
        if 3 * more > self.size and 10 * fewer < more:  # Latin letters in UTF-16
            return "utf-16-le" if self.nuls[1] > self.nuls[0] else "utf-16-be"
        letters = [one for one in self.sample.decode("utf-8", "replace") if not one.isascii()]
        # most letters that are not ASCII are UTF-8: others are damage, and their row is named later
        if self.is_utf8 or 2 * letters.count("\ufffd") < len(letters):
            return UTF8
        self.count_nuls(UTF8, path)
        found = from_bytes(self.sample, cp_isolation=list(_ENCODINGS))
        best, usual = found.best(), _ENCODINGS[0]
        mine = [match for match in found if usual in match.could_be_from_charset]
        if best is not None and any(
            m.chaos <= best.chaos and m.coherence > best.coherence - 0.03 for m in mine
        ):
            return usual
        if best is not None and best.coherence >= _SURE:
            return best.encoding
        fitting = ", ".join(match.encoding for match in list(found)[:3])
        raise InputError(
            f"{path}: is not UTF-8, and its encoding cannot be told"
            f"{f' (it may be {fitting})' if fitting else ''}; name it with `encoding`"
        )

    def count_nuls(self, encoding: str, path: Path) -> int:
        """Return the number of NUL characters. Raises InputError for what cannot be a text."""
        if encoding.startswith(("utf-16", "utf-32", "utf_16", "utf_32")):
            return 0
        if 10 * sum(self.nuls) > self.size:
            raise InputError(f"{path}: is not text but some other kind of file; save it as CSV")
        return sum(self.nuls)


def text_lines(path: Path, layout: Layout, newline: str, rows: RowNumbers) -> Iterator[str]:
    """Yield the lines of a file. The first unreadable one is refused on its turn, by its row.

    Decoding goes by blocks, so a strict decoder would fail rows too early. Escaping the bad bytes
    and looking for the escapes names the right row.
    """
    with layout.text(path, newline, "surrogateescape") as text:
        try:
            for line in text:
                if "\0" in line:
                    raise InputError(
                        f"{path}: {rows.next} has a NUL character; remove it, or leave `strict` out"
                    )
                if len(line) > MOST_LINE:
                    raise _too_long(path)
                line.encode()
                yield line
        except UnicodeError:
            raise undecodable(path, layout, rows.next) from None


def _too_long(path: Path) -> InputError:
    return InputError(
        f"{path}: a line or a cell has more than {MOST_CELL} characters; look for a quoted cell "
        "that is never closed"
    )


def undecodable(path: Path, layout: Layout, row: str) -> InputError:
    """Return the error of bytes that are no text of the encoding, in a row that is named so."""
    return InputError(
        f"{path}: {row} is not {layout.name} text; save it as UTF-8, or name its `encoding`"
    )


def read_delimited(path: Path, delimiter: str) -> pd.DataFrame:
    """Read CSV or TSV as twinset writes it."""
    return collect_table(delimited(path, Layout(UTF8, delimiter))).apply(typed)


def delimited(path: Path, layout: Layout) -> TableReader:
    """Return a reader of CSV. Only an empty cell is missing, and all rows are equally wide.

    Cells are texts: else one of them would decide what all others of its column are.
    """
    rows = RowNumbers("row", header=1)

    def pieces() -> Iterator[Piece]:
        found = _csv_rows(path, layout, rows)
        if (header := next(found, None)) is None:
            raise InputError(f"{path}: the file is empty; give a table with a header row")
        names = [name or f"Unnamed: {place}" for place, name in enumerate(header)]
        check_names(header, path)
        given = [name for name in header if name]
        if len(set(given)) < len(given):
            raise InputError(f"{path}: two columns have the same name; rename one in the header")
        yield 0, {name: pa.array([], pa.large_string()) for name in names}
        for some in some_at_once(found):
            columns = zip(names, zip(*some, strict=True), strict=True)
            yield (
                len(some),
                {
                    n: pa.array([c or None for c in cells], pa.large_string())
                    for n, cells in columns
                },
            )

    return TableReader(pieces(), rows=rows)


def _csv_rows(path: Path, layout: Layout, rows: RowNumbers) -> Iterator[list[str]]:
    """Yield the header and all rows that are not blank, each as wide as the header."""
    has_ended = False

    def lines() -> Iterator[str]:
        nonlocal has_ended
        yield from islice(text_lines(path, layout, "", rows), layout.skipped, None)
        has_ended = True

    width, reader = 0, csv.reader(lines(), delimiter=str(layout.delimiter))
    while True:
        limit = csv.field_size_limit(MOST_CELL)  # of the process: put back before others may read
        try:
            cells = next(reader, None)
        except csv.Error:
            raise _too_long(path) from None
        finally:
            csv.field_size_limit(limit)
        if cells is None:
            return
        is_blank = len(cells) < 2 and not "".join(cells).strip()
        rows.count(is_blank)
        if has_ended:  # the reader wanted another line for this row
            raise InputError(
                f"{path}: {rows.last} cannot be parsed; look for a quoted cell that is never closed"
            )
        if is_blank:
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise InputError(
                f"{path}: {rows.last} has {len(cells)} cells where the header has {width}; "
                "put cells that hold the separator, a quote or a line break in double quotes, or "
                "name the separator with `delimiter`"
            )
        yield cells
