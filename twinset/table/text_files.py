"""Files of text: their encoding, what separates cells, and how CSV and JSON are read.

What is not given is detected, and said to the owner. The cells are private, and the messages of
libraries may quote them: none is passed on, and errors are raised `from None` so that no traceback
holds one either. Rows are counted as a spreadsheet or an editor shows them.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from charset_normalizer import from_bytes

from twinset.errors import InputError
from twinset.files.limits import MOST_CELL, MOST_LINE, MOST_REPEATED, check_names, inflated
from twinset.table.arrow_columns import Piece, RowNumbers, TableReader, some_at_once

UTF8 = "utf-8-sig"
_DELIMITERS = ",;\t|"
_BLOCK = 2**20  # bytes or characters. Even, so that each block begins at an even place
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
_BETWEEN = re.compile(r"[\s,]*")  # items of a JSON array
_NO_LINE = "not valid JSON of an object; write one object a line"
_NO_ITEM = "not valid JSON of an object; write an array of objects, [{…}, {…}]"


@dataclass(frozen=True)
class Layout:
    """What is given or found about a file of text.

    Args:
        encoding: as Python names it. None: to be detected.
        delimiter: a character. None: to be detected.
        strict: refuse NUL characters instead of removing them.
        skipped: lines before the header.

    Raises:
        InputError: unknown encoding, or a delimiter that cells are full of.
    """

    encoding: str | None = None
    delimiter: str | None = None
    strict: bool = False
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
    def name(self) -> str:
        """The encoding, as people name it."""
        return "UTF-8" if self.encoding == UTF8 else str(self.encoding).replace("utf-", "UTF-")

    def open(self, path: Path, newline: str = "", errors: str = "strict") -> io.TextIOWrapper:
        """Open a file as text, inflated where its name ends in `.gz`."""
        return io.TextIOWrapper(_open_bytes(path), self.encoding, errors, newline)

    def undecodable(self, path: Path, row: str) -> InputError:
        """Return the error of a row that is no text of the encoding."""
        return InputError(
            f"{path}: {row} is not {self.name} text; save it as UTF-8, or name its `encoding`"
        )


def _open_bytes(path: Path) -> IO[bytes]:
    return inflated(path) if path.name.lower().endswith(".gz") else path.open("rb")


def detect_layout(path: Path, layout: Layout, own: str | None) -> tuple[Layout, list[str]]:
    """Return a layout with nothing left to detect, and what to tell the owner about it.

    `own` is the delimiter that the file's ending stands for. None: cells are not separated.

    Raises:
        InputError: the encoding cannot be told, or the file is no text.
    """
    encoding, nuls = _detect_encoding(path, layout.encoding)
    found = replace(layout, encoding=encoding)
    if own is not None:
        with found.open(path, errors="replace") as text:
            start = text.read(_BLOCK).replace("\0", "")
        if hint := _HINT.match(start):
            start = start[hint.end() :]
        # that by which most rows are as wide as the header, the file's own where several are
        candidates = sorted(_DELIMITERS, key=lambda one: one != own)
        best = hint[1] if hint else max(candidates, key=lambda one: _evenness(start, one))
        found = replace(found, delimiter=layout.delimiter or best, skipped=1 if hint else 0)
    notes, cells = [], ""
    if found.delimiter:
        cells = f", separated by {'tabs' if found.delimiter == chr(9) else found.delimiter}"
    guessed = [] if layout.encoding else ["`encoding`"]
    guessed += ["`delimiter`"] if cells and not layout.delimiter else []
    if guessed and (encoding != UTF8 or found.delimiter != own):
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


def _detect_encoding(path: Path, given: str | None) -> tuple[str, int]:
    """Return a file's encoding, given or told by its bytes, and how many NULs its text has."""
    decoder, is_utf8, size, sample = codecs.getincrementaldecoder("utf-8")(), True, 0, b""
    even, odd = 0, 0  # NUL bytes at even and at odd places: every second one in UTF-16
    mark: str | None = None
    with _open_bytes(path) as raw:
        while True:
            block = raw.read(_BLOCK)
            if not size:
                mark = next((name for m, name in _MARKS.items() if block.startswith(m)), None)
            even, odd = even + block[0::2].count(0), odd + block[1::2].count(0)
            size += len(block)
            try:
                if is_utf8:
                    decoder.decode(block, final=not block)
            except UnicodeDecodeError:
                is_utf8 = False
            if len(sample) < _SAMPLE and not block.isascii():
                lines = (line for line in block.splitlines(True) if not line.isascii())
                sample = (sample + b"".join(lines))[:_SAMPLE]
            if not block:
                break
    fewer, more = sorted((even, odd))
    if given is None and mark is not None:
        given = mark
    elif given is None and 3 * more > size and 10 * fewer < more:  # Latin letters in UTF-16
        given = "utf-16-le" if odd > even else "utf-16-be"
    if given is not None and given.startswith(("utf-16", "utf-32", "utf_16", "utf_32")):
        return given, 0
    if 10 * (even + odd) > size:
        raise InputError(f"{path}: is not text but some other kind of file; save it as CSV")
    letters = [one for one in sample.decode("utf-8", "replace") if not one.isascii()]
    # most letters that are not ASCII are UTF-8: others are damage, and their row is named later
    if given is None and (is_utf8 or 2 * letters.count("\ufffd") < len(letters)):
        given = UTF8
    if given is None:
        fits = from_bytes(sample, cp_isolation=list(_ENCODINGS))
        best, usual = fits.best(), _ENCODINGS[0]
        mine = [match for match in fits if usual in match.could_be_from_charset]
        if best is not None and any(
            m.chaos <= best.chaos and m.coherence > best.coherence - 0.03 for m in mine
        ):
            given = usual
        elif best is not None and best.coherence >= _SURE:
            given = best.encoding
        else:
            likely = ", ".join(match.encoding for match in list(fits)[:3])
            raise InputError(
                f"{path}: is not UTF-8, and its encoding cannot be told"
                f"{f' (it may be {likely})' if likely else ''}; name it with `encoding`"
            )
    return given, even + odd


def _text_lines(path: Path, layout: Layout, newline: str, rows: RowNumbers) -> Iterator[str]:
    """Yield the lines of a file. The first unreadable one is refused on its turn, by its row.

    Decoding goes by blocks, so a strict decoder would fail rows too early. Escaping the bad bytes
    and looking for the escapes names the right row.
    """
    with layout.open(path, newline, "surrogateescape") as text:
        try:
            for line in text:
                if "\0" in line and layout.strict:
                    raise InputError(
                        f"{path}: {rows.next} has a NUL character; remove it, or leave `strict` out"
                    )
                if len(line) > MOST_LINE:
                    raise _too_long(path)
                line.encode()
                yield line.replace("\0", "")  # C libraries see the end of a cell in it
        except UnicodeError:
            raise layout.undecodable(path, rows.next) from None


def _too_long(path: Path) -> InputError:
    return InputError(
        f"{path}: a line or a cell has more than {MOST_CELL} characters; look for a quoted cell "
        "that is never closed"
    )


def read_delimited(path: Path, layout: Layout) -> TableReader:
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
            texts = {n: pa.array([c or None for c in cs], pa.large_string()) for n, cs in columns}
            yield len(some), texts

    return TableReader(pieces(), rows=rows)


def _csv_rows(path: Path, layout: Layout, rows: RowNumbers) -> Iterator[list[str]]:
    """Yield the header and all rows that are not blank, each as wide as the header."""
    has_ended = False

    def lines() -> Iterator[str]:
        nonlocal has_ended
        yield from islice(_text_lines(path, layout, "", rows), layout.skipped, None)
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
        rows.blank.append(b"01"[is_blank])
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


def read_jsonl(path: Path, layout: Layout) -> TableReader:
    """Return a reader of JSONL. A value keeps its JSON type ("1" stays a text)."""
    rows = RowNumbers("line")

    def objects() -> Iterator[tuple[str, Any]]:
        for line in _text_lines(path, layout, "\n", rows):
            rows.blank.append(b"01"[not line.strip()])
            if line.strip():
                try:
                    yield line, json.loads(line)
                except (ValueError, RecursionError):
                    raise InputError(f"{path}: {rows.last} is {_NO_LINE}") from None

    return TableReader(_json_pieces(objects(), path, rows, _NO_LINE), rows=rows)


def read_json(path: Path, layout: Layout) -> TableReader:
    """Return a reader of an array of JSON objects. Many call JSONL so too."""
    try:
        with layout.open(path) as text:
            is_array = text.read(_BLOCK).replace("\0", "").lstrip().startswith("[")
    except UnicodeError:
        raise layout.undecodable(path, "the file") from None
    if not is_array:
        return read_jsonl(path, layout)
    rows, decoder = RowNumbers("item"), json.JSONDecoder()

    def objects() -> Iterator[tuple[str, Any]]:
        """Yield the items of the array, of which few are in memory at once."""
        try:
            with layout.open(path) as text:
                rest = text.read(_BLOCK).replace("\0", "")
                at = rest.index("[") + 1
                while True:
                    between = _BETWEEN.match(rest, at)
                    at = at if between is None else between.end()
                    if at < len(rest) and rest[at] == "]":
                        return
                    try:
                        found, end = decoder.raw_decode(rest, at)
                    except ValueError:  # it may be longer than what was read
                        more = text.read(max(_BLOCK, len(rest) - at)).replace("\0", "")
                        rest, at = rest[at:] + more, 0
                        if not more or len(rest) > MOST_LINE:
                            raise InputError(f"{path}: {rows.next} is {_NO_ITEM}") from None
                        continue
                    rows.blank.append(ord("0"))
                    yield rest[at:end], found
                    at = end
        except UnicodeError:
            raise layout.undecodable(path, rows.next) from None
        except RecursionError:
            raise InputError(f"{path}: {rows.next} is {_NO_ITEM}") from None

    return TableReader(_json_pieces(objects(), path, rows, _NO_ITEM), rows=rows)


def _json_pieces(
    objects: Iterator[tuple[str, Any]], path: Path, rows: RowNumbers, wrong: str
) -> Iterator[Piece]:
    """Yield pieces of objects, each of which comes with its JSON.

    Raises:
        InputError: an item is no object, or an escaped half of a surrogate pair, which is no text.
            Or few bytes would fill all memory with gaps.
    """

    def checked() -> Iterator[dict[str, Any]]:
        read = count = 0
        for text, found in objects:
            try:
                if "\\u" in text:
                    json.dumps(found, ensure_ascii=False).encode()
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise InputError(f"{path}: {rows.last} is {wrong}")
            read, count = read + len(text), count + 1
            if not found.keys() <= names.keys():
                names.update(dict.fromkeys(found))
                check_names(names, path)
            if count * len(names) > max(MOST_REPEATED, read):
                raise InputError(
                    f"{path}: most of its {len(names)} columns are missing in most rows; "
                    "keep the columns that you need"
                )
            yield found

    names: dict[str, None] = {}
    for some in some_at_once(checked()):
        yield len(some), {name: [found.get(name) for found in some] for name in names}
