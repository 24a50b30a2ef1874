"""Files of text: their encoding, what separates cells, and how CSV is read.

What is not given is detected, and said to the owner. The cells are private, and the messages of
pandas may quote them: none is passed on, and errors are raised `from None` so that no traceback
holds one either. Rows are counted as a spreadsheet or an editor shows them.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pandas as pd
from charset_normalizer import CharsetMatches, from_bytes

from twinset.errors import InputError
from twinset.files.limits import MOST_CELL, MOST_LINE, check_names, inflated
from twinset.table.arrow_columns import ROWS_AT_ONCE, Reading, RowNumbers, typed

UTF8 = "utf-8-sig"
_DELIMITERS = ",;\t|"
_BLOCK = 2**20  # bytes
_SAMPLE = 2**16  # bytes of lines that are not ASCII, by which an encoding is told
_ROWS = 100  # by which a delimiter is told
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
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
    """What is given or found.

    Args:
        encoding: as Python names it; None: to be detected.
        delimiter: a character; None: to be detected.
        strict: refuse NUL characters instead of removing them.
        nuls: how many the file has.
        skipped: lines before the header.
    """

    encoding: str | None = None
    delimiter: str | None = None
    strict: bool = False
    nuls: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        """Refuse an unknown encoding, and a delimiter that cells are full of."""
        if self.encoding is not None:
            object.__setattr__(self, "encoding", _known(self.encoding))
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", _separator(self.delimiter))

    @property
    def is_given(self) -> bool:
        """Whether anything about a file of text was asked for."""
        return self.encoding is not None or self.delimiter is not None

    @property
    def is_plain(self) -> bool:
        """Whether a file's bytes are its text in UTF-8, as they stand."""
        return self.encoding == UTF8 and not self.nuls

    @property
    def name(self) -> str:
        """The encoding, as people name it."""
        return "UTF-8" if self.encoding == UTF8 else str(self.encoding).replace("utf-", "UTF-")

    def text(self, path: Path, newline: str = "", errors: str = "strict") -> io.TextIOWrapper:
        """Open a file as text. NUL characters are left out, unless they are to be refused."""
        kind = io.TextIOWrapper if self.strict or self.is_plain else _WithoutNuls
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


def detected(path: Path, layout: Layout, own: str | None) -> tuple[Layout, list[str]]:
    """Return a layout with nothing left to detect, and what to tell the owner about it.

    Args:
        path: of the file.
        layout: as far as it is given.
        own: delimiter that the file's ending stands for; None: cells are not separated.

    Raises:
        InputError: the encoding cannot be told.
    """
    bytes_ = _Bytes.of(path)
    encoding = layout.encoding or bytes_.encoding(path)
    found = Layout(encoding, None, layout.strict, bytes_.nuls_in(encoding, path))
    delimiter, skipped = layout.delimiter, 0
    if own is not None:
        with found.text(path, errors="replace") as text:
            start = text.read(_BLOCK)
        if hint := _HINT.match(start):
            start, skipped = start[hint.end() :], 1
        delimiter = delimiter or (hint[1] if hint else _delimiter(start, own))
    found = Layout(encoding, delimiter, layout.strict, found.nuls, skipped)
    return found, list(_notes(found, layout, own))


def _notes(found: Layout, given: Layout, own: str | None) -> Iterator[str]:
    guessed = [n for n in ("encoding", "delimiter") if getattr(given, n) is None]
    is_usual = found.encoding == UTF8 and found.delimiter == own
    if not is_usual and guessed:
        cells = f", separated by {_shown(found.delimiter)}" if found.delimiter else ""
        names = " and ".join(f"`{name}`" for name in guessed if cells or name == "encoding")
        yield f"read as {found.name}{cells} (detected; {names} to change)"
    if found.nuls:
        yield f"removed {found.nuls} NUL character{'s' * (found.nuls > 1)}"


def _shown(delimiter: str | None) -> str:
    return "tabs" if delimiter == "\t" else str(delimiter)


@dataclass
class _Bytes:
    """What a file's bytes are like.

    Args:
        mark: encoding that its first bytes stand for.
        is_utf8: whether all of them are UTF-8.
        nuls: of the bytes, at even and at odd places.
        size: number of bytes.
        sample: lines that are not ASCII.
    """

    mark: str | None
    is_utf8: bool
    nuls: tuple[int, int]
    size: int
    sample: bytes

    @classmethod
    def of(cls, path: Path) -> _Bytes:
        decoder = codecs.getincrementaldecoder("utf-8")()
        found = cls(None, True, (0, 0), 0, b"")
        with open_bytes(path) as raw:
            while block := raw.read(_BLOCK):
                found.add(block, decoder)
        found.is_utf8 = found.is_utf8 and _decodes(decoder, b"", final=True)
        return found

    def add(self, block: bytes, decoder: codecs.IncrementalDecoder) -> None:
        if not self.size:
            self.mark = next(
                (name for mark, name in _MARKS.items() if block.startswith(mark)), None
            )
        even, odd = (block[parity::2].count(0) for parity in (0, 1))
        if self.size % 2:
            even, odd = odd, even
        self.nuls = (self.nuls[0] + even, self.nuls[1] + odd)
        self.size += len(block)
        self.is_utf8 = self.is_utf8 and _decodes(decoder, block)
        if len(self.sample) < _SAMPLE and not block.isascii():
            lines = (line for line in block.splitlines(True) if not line.isascii())
            self.sample = (self.sample + b"".join(lines))[:_SAMPLE]

    def encoding(self, path: Path) -> str:
        """Return the encoding."""
        if self.mark is not None:
            return self.mark
        fewer, more = sorted(self.nuls)
        if 3 * more > self.size and 10 * fewer < more:  # Latin letters in UTF-16
            return "utf-16-le" if self.nuls[1] > self.nuls[0] else "utf-16-be"
        if self.is_utf8 or _is_damaged_utf8(self.sample):
            return UTF8
        self.nuls_in(UTF8, path)
        return _legacy(self.sample, path)

    def nuls_in(self, encoding: str, path: Path) -> int:
        """Return the number of NUL characters; refuse what cannot be a text."""
        if encoding.startswith(("utf-16", "utf-32", "utf_16", "utf_32")):
            return 0
        if 10 * sum(self.nuls) > self.size:
            raise InputError(f"{path}: is not text but some other kind of file; save it as CSV")
        return sum(self.nuls)


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes, final: bool = False) -> bool:
    try:
        decoder.decode(block, final)
    except UnicodeDecodeError:
        return False
    return True


def _is_damaged_utf8(sample: bytes) -> bool:
    """Return whether most characters that are not ASCII are UTF-8, so that others are damage."""
    found = [letter for letter in sample.decode("utf-8", "replace") if not letter.isascii()]
    return 2 * found.count("\ufffd") < len(found)


def _legacy(sample: bytes, path: Path) -> str:
    """Return the encoding of a sample that is not UTF-8."""
    found = from_bytes(sample, cp_isolation=list(_ENCODINGS))
    best, usual = found.best(), _ENCODINGS[0]
    if _fits_as_well(found, usual):
        return usual
    if best is not None and best.coherence >= _SURE:
        return best.encoding
    fitting = ", ".join(match.encoding for match in list(found)[:3])
    raise InputError(
        f"{path}: is not UTF-8, and its encoding cannot be told"
        f"{f' (it may be {fitting})' if fitting else ''}; name it with `encoding`"
    )


def _fits_as_well(found: CharsetMatches, encoding: str) -> bool:
    best = found.best()
    if best is None:
        return False
    mine = [match for match in found if encoding in match.could_be_from_charset]
    return any(m.chaos <= best.chaos and m.coherence > best.coherence - 0.03 for m in mine)


def _delimiter(start: str, own: str) -> str:
    """Return what separates cells: that by which most rows are as wide as the header."""
    return max(
        sorted(_DELIMITERS, key=lambda one: one != own), key=lambda one: _evenness(start, one)
    )


def _evenness(start: str, delimiter: str) -> float:
    """Return the share of rows that are as wide as the header; 0 where that is one cell."""
    lines = io.StringIO(start, newline="")
    limit = csv.field_size_limit(MOST_CELL)
    try:
        widths = [len(row) for row in islice(csv.reader(lines, delimiter=delimiter), _ROWS) if row]
    except csv.Error:
        return 0.0
    finally:
        csv.field_size_limit(limit)
    is_cut = len(start) >= _BLOCK and len(widths) < _ROWS and len(widths) > 1
    widths = widths[:-1] if is_cut else widths
    if not widths or widths[0] < 2:
        return 0.0
    return widths.count(widths[0]) / len(widths)


def _known(encoding: str) -> str:
    try:
        found = codecs.lookup(encoding)
        "a".encode(encoding)  # a few are no encodings of texts
    except (LookupError, ValueError, AssertionError):
        raise InputError(
            f"`encoding={encoding}`: unknown; give one such as utf-8, cp1252 or utf-16"
        ) from None
    return UTF8 if found.name == "utf-8" else found.name


def _separator(delimiter: str) -> str:
    given = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
    if len(given) != 1 or not given.isascii() or given.isalnum() or given in '"\r\n\0':
        raise InputError(
            f"`delimiter={delimiter}`: must be one character, such as ; or , or | (or tab)"
        )
    return given


def text_lines(path: Path, layout: Layout, newline: str, rows: RowNumbers) -> Iterator[str]:
    """Yield the lines of a file; the first unreadable one raises UnicodeError on its turn.

    Decoding goes by blocks, so a strict decoder would fail rows too early; escaping the bad bytes
    and looking for the escapes names the right row.
    """
    with layout.text(path, newline, "surrogateescape") as text:
        for line in text:
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


def undecodable(path: Path, layout: Layout, row: str) -> InputError:
    """Return the error of bytes that are no text of the encoding, in a row that is named so."""
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
            return _typed(pd.read_csv(raw, **options))

    def pieces() -> Iterator[pd.DataFrame]:
        with _delimited(path, layout, _check_rows(path, layout, rows)) as raw:
            yield from map(_typed, pd.read_csv(raw, chunksize=ROWS_AT_ONCE, **options))

    def column(place: int, name: str) -> pd.Series:
        with _delimited(path, layout, "the header") as raw:
            return typed(pd.read_csv(raw, usecols=[place], **options)[name])

    return Reading(whole, pieces, column, rows=rows)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.apply(typed) if len(frame.columns) else frame


def _delimited_options(layout: Layout) -> dict[str, Any]:
    return {
        "sep": layout.delimiter,
        "encoding": UTF8 if layout.is_plain else None,  # of what is decoded already
        "skiprows": layout.skipped,
        "keep_default_na": False,
        "na_values": [""],
        "dtype": "str",  # else one cell would decide what all others of its column are
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
        raise undecodable(path, layout, rows.next) from None
    except csv.Error:
        raise _too_long(path) from None
    finally:
        csv.field_size_limit(limit)
    return rows.last


def _check_widths(path: Path, layout: Layout, rows: RowNumbers) -> None:
    rows.begin()
    lines = islice(text_lines(path, layout, "", rows), layout.skipped, None)
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
