"""Tables in text files: how encoding and separator are found, and how CSV and JSON are read.

Missing settings are detected and reported to the owner. Every cell is read on its own: no record
decides how another is taken apart.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from twinset.errors import InputError
from twinset.files.limits import (
    MOST_CELL,
    MOST_ITEMS,
    MOST_LINE,
    MOST_REPEATED,
    check_inflated,
    check_names,
    most_items,
    open_bytes,
)
from twinset.table import columns
from twinset.table.columns import Piece, RowNumbers, parse_number, whole_characters
from twinset.table.schema import UNSEEN

UTF8 = "utf-8-sig"
OWN_DELIMITERS = {"csv": ",", "tsv": "\t"}
OF_TEXT = ("csv", "tsv", "jsonl", "json")
_DELIMITERS = ",;\t|"
_BLOCK = 2**20  # bytes or characters. Even, so that each block begins at an even place
_SAMPLE = 2**16  # bytes of lines beyond ASCII from which an encoding is detected
_ROWS = 100  # from which a delimiter is detected
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WIDE_UNITS = ("utf-16", "utf-32", "utf_16", "utf_32")
# gzip, Zstandard, bzip2, ZIP and Excel, Parquet, Feather
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"PK\3\4", b"PAR1", b"ARROW1")
_CONTROLS = bytes({*range(32)} - {*b"\t\n\f\r"})  # a tenth of no text
_LIMIT = Lock()
_TEXT = pa.large_string()
_DAMAGED = re.compile("[\udc80-\udcff]")  # bytes that are escaped
_HINT = re.compile("sep=(.)[\r\n]")  # Excel's own first line of a CSV
_LINE_END = re.compile(r"\r\n|\r|\n")
# a header that ends in a carriage return alone, as all rows do then
_MAC = re.compile(r'(?:"[^"]*"|[^"\r\n])*\r+(?![\r\n])')
_FEW_VALUES = 1000  # of a column of labels at most
_SEVERAL = 3  # lines in a quotation: one or two may look like rows by chance
_OVER_ROWS = (
    "has a quotation that runs over several rows. Close it in its row, write a quote that belongs "
    "to the text twice, or say with `multiline` that these lines are text."
)
# of an object with one key twice, a cell would be lost. A list is no row, and is never read.
_ONCE: Any = {"object_pairs_hook": lambda p: found if len(found := dict(p)) == len(p) else []}
_MOST_BLANKS = 1_000_000  # between two items, as they are matched again for each block
_BETWEEN = re.compile(r"\s*(,?)\s*")  # items of a JSON array
_AROUND = re.compile(r'\s*(\{\s*"(data|rows|records)"\s*:\s*)?\[')  # an array, or an object of it
_QUOTED = "Put the cell in double quotes, and write each quote inside it twice."
_TOO_LONG = f"a line or a cell has more than {MOST_CELL} characters. Is a quote never closed?"
_TOO_MANY = f" has more than {MOST_ITEMS} cells or items. Keep texts and labels."

_WESTERN = "cp1252"  # what Excel writes in most countries
_ASCII = "abcdefghijklmnopqrstuvwxyz"
# By page, the letters beyond ASCII of each language that is written with it.
_LANGUAGES = {
    # French, German, Spanish, Portuguese, Italian, Catalan, Dutch, Swedish, Danish, Estonian
    _WESTERN: "àâæçéèêëîïôœùûü äöüß áéíñóúü àáâãçéêíóôõú àèéìíîòóùú àçèéíïòóúü èéêëïöü åäöéü "
    "æøåéèêòóôü äöõü",
    # Polish, Czech, Slovak, Hungarian, Romanian, Croatian and Slovene
    "cp1250": "ąćęłńóśźż áčďéěíňóřšťúůýž áäčďéíĺľňóôŕšťúýž áéíóöőúüű ăâîşţ čćđšž",
    "cp1254": "âçğıîöşüû\u0307 çêîşû",  # Turkish, where the dot is a part of a small İ, Kurdish
    "cp1257": "ąčęėįšųūž āčēģīķļņšūž äöõüšž ąćęłńóśźż",  # Lithuanian, Latvian, Estonian, Polish
    # Russian and Bulgarian, Ukrainian, Belarusian, Serbian and Macedonian
    "cp1251": "абвгдежзийклмнопрстуфхцчшщъыьэюяё абвгґдеєжзиіїйклмнопрстуфхцчшщьюя "
    "абвгдеёжзійклмнопрстуўфхцчшыьэюя абвгдђежзијклљмнњопрстћуфхцчџшѓќѕ",
    "cp1253": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋ",
    "cp1255": "אבגדהוזחטיךכלםמןנסעףפץצקרשת",
    "cp1256": "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىيپچژگک",
}
_ALPHABETS = {
    page: [frozenset(one + _ASCII * (one < "α")) for one in some.split()]
    for page, some in _LANGUAGES.items()
}
_ICELANDIC = frozenset(f"áðéíóúýþæö{_ASCII}")  # Western too, but the same bytes are Turkish letters
# What parts words: signs, and a small letter before a capital. A sign may be a letter in another
# page (`by³` is był), so some part words only before ASCII or behind digits.
_SPLIT = re.compile(
    r"[\s\x00-@\[-`{-\x7f’‘«»‹›–—…°•·€®™©]+|[´×µ²\xad](?=[\x00-\x7f])|(?<=[0-9])[¹³ªº]|(?<=[a-zß-ÿ])(?=[A-Z])"
)
_BEFORE = "½¼¾¡¿„‚£¥§±"  # of a word
_NO_WORD = re.compile(r"[\x00-\x7f]*|[^\w\ufffd]*|[ckdm]?m³|[DMNn]?[ºª]")
# Pages with a sister of Unix: its name, what only it would write (5 €, cœur, Άριστη), and what only
# Windows would. Both are as Latin-1 shows them. What follows Ã may be a letter of UTF-8.
_SISTERS = {
    _WESTERN: (
        "iso8859-15",
        "(?<![À-ÿ])¤|(?<=[A-Za-z])[½¼¾¨¦¸](?=[A-Za-z])",
        "[\x80-\x9f]|(?<=[A-Za-z])´|[0-9][½¼¾]|[½¼¾](?![A-Za-z])",
    ),
    "cp1253": ("iso8859-7", "(?<![À-ÿ])¤|¶(?=[Ü-þ])", "[\x80-\x9f]|¢(?=[Ü-þ])"),
}
_MOST = 0.9  # of the words
_MANY = 6  # words or lines by which another page than the usual one is known


# -- the layout of a file of text ------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The given or detected settings of a text file. None: still to be detected."""

    encoding: str | None = None  # as Python names it
    delimiter: str | None = None  # a character
    strict: bool = False  # refuse NUL characters and damaged bytes instead of mending them
    skipped: int = 0  # lines before the header
    is_told: bool = False  # the encoding was detected
    multiline: bool = False  # lines within quotes are text, though they look like rows
    newline: str = "\n"  # ends a row of CSV, also behind carriage returns. Else "\r".

    def __post_init__(self) -> None:
        """Refuse unusable settings, and normalise the rest."""
        if self.encoding is not None:
            try:
                found = codecs.lookup(self.encoding).name
                "a".encode(self.encoding, "replace")  # a few are no encodings of texts
            except (LookupError, ValueError, AssertionError):
                raise InputError(
                    f"`encoding={self.encoding}`: unknown. Give one like utf-8, cp1252 or utf-16."
                ) from None
            object.__setattr__(self, "encoding", UTF8 if found == "utf-8" else found)
        if self.delimiter is not None:
            one = {"tab": "\t", "\\t": "\t"}.get(self.delimiter, self.delimiter)
            if len(one) != 1 or not one.isascii() or one.isalnum() or one in '"\r\n\0':
                raise InputError(
                    f"`delimiter={self.delimiter}`: must be one character, such as ; or | (or tab)"
                )
            object.__setattr__(self, "delimiter", one)

    @property
    def name(self) -> str:
        """The encoding's usual name."""
        return "UTF-8" if self.encoding == UTF8 else str(self.encoding).replace("utf-", "UTF-")


def detect_layout(path: Path, layout: Layout, own: str | None) -> tuple[Layout, list[str]]:
    """Return a complete layout, and notes about it for the owner.

    `own` is the delimiter that the file's ending implies, or None if cells are not separated.
    """
    encoding, nuls = _detect_encoding(path, layout.encoding)
    found, notes, cells = replace(layout, encoding=encoding, is_told=not layout.encoding), [], ""
    if own is not None:
        with io.TextIOWrapper(open_bytes(path), encoding, "replace", "") as text:
            start = text.read(_BLOCK).replace("\0", "")
        hint = _HINT.match(start)
        fits = {own: (-1.0, 1)}  # the share of rows that are as wide as the header, and its width
        for one in _DELIMITERS:
            with suppress(csv.Error), _long_cells():
                reader = csv.reader(io.StringIO(start, newline=""), delimiter=one)
                widths = [len(row) for row in islice(reader, _ROWS) if row]
                if len(start) >= _BLOCK and 1 < len(widths) < _ROWS:  # the last row is cut off
                    widths.pop()
                if widths and widths[0] > 1:
                    fits[one] = widths.count(widths[0]) / len(widths), widths[0]
        stated = layout.delimiter or (hint[1] if hint else "")
        top = max(fits.values())
        best, *equal = list(stated) or [one for one, fit in fits.items() if fit == top]
        if equal:
            raise InputError(f"{path}: `delimiter` may be {best!r} or {equal[0]!r}. Name it.")
        newline = "\r" if _MAC.match(start) else found.newline
        found = replace(found, delimiter=best, skipped=1 if hint else 0, newline=newline)
        cells = f", separated by {'tabs' if best == chr(9) else best}"
    guessed = [] if layout.encoding else ["`encoding`"]
    guessed += ["`delimiter`"] if cells and not layout.delimiter else []
    if guessed and (encoding != UTF8 or found.delimiter != own):
        names = " and ".join(guessed)
        notes.append(f"read as {found.name}{cells} (detected, {names} to change)")
    if nuls:
        notes.append(f"removed {nuls} NUL character{'s' * (nuls > 1)}")
    return found, notes


def _detect_encoding(path: Path, given: str | None) -> tuple[str, int]:
    """Return a file's encoding, given or detected, and the number of NULs in its text."""
    decoder, is_utf8, size, sample = codecs.getincrementaldecoder("utf-8")(), True, 0, b""
    # (2,) at even and at odd places: NUL bytes, line feeds, and line feeds of UTF-16
    nuls, feeds, wide = np.zeros((3, 2), int)
    controls, mark, is_packed = 0, None, False
    with open_bytes(path) as raw:
        for block in chain(iter(partial(raw.read, _BLOCK), b""), [b""]):
            if not size:
                mark = next((name for m, name in _MARKS.items() if block.startswith(m)), None)
                is_packed = block.startswith(_PACKED)
            if b"\0" in block:
                pairs = np.frombuffer(block + b" " * (len(block) % 2), np.uint8).reshape(-1, 2)
                is_nul, is_feed = pairs == 0, pairs == ord("\n")
                nuls, feeds = nuls + is_nul.sum(axis=0), feeds + is_feed.sum(axis=0)
                wide = wide + (is_feed & is_nul[:, ::-1]).sum(axis=0)
            size += len(block)
            controls += len(block) - len(block.translate(None, _CONTROLS))
            check_inflated(size, path)  # every block is read here before it is read for itself
            try:
                if is_utf8:
                    decoder.decode(block, final=not block)
            except UnicodeDecodeError:
                is_utf8 = False
            if len(sample) < _SAMPLE and not block.isascii():
                lines = (line for line in block.splitlines(True) if not line.isascii())
                sample = (sample + b"".join(lines))[:_SAMPLE]
    fewer, more = sorted(nuls.tolist())
    # In UTF-16 nearly all line feeds are at places of one kind, with a NUL next to it. One of few
    # lines shows by its other Latin letters. UTF-32 has NULs at all places, and it must be given.
    big = int(nuls[0] > nuls[1])
    is_wide = 10 * fewer < more and (3 * more > size or more > max(10, size / 50))
    for order in (0, 1):
        if wide[order] > max(10 * feeds[1 - order], feeds[order] / 10):
            big, is_wide = order, 8 * fewer < size
    if mark is not None and (given or mark).startswith(mark):
        given = mark  # "utf-16-le" would keep the mark as a character
    elif given in (None, *_MARKS.values()) and (is_wide or (given and 3 * more > size)):
        given = f"{given or 'utf-16'}-{'be' if big else 'le'}"
    elif given in _MARKS.values():
        raise InputError(f"{path}: has no byte order mark. Add -le or -be to `encoding={given}`.")
    if given is not None and given.startswith(_WIDE_UNITS):
        return given, 0
    if is_packed and (more or not is_utf8):  # a header may begin like that
        raise InputError(f"{path}: holds no text. Unpack it, or name the file by its kind.")
    if 10 * controls > size:
        raise InputError(f"{path}: is not text but some other kind of file. Save it as CSV.")
    letters = [one for one in sample.decode("utf-8", "replace") if not one.isascii()]
    # Most letters that are not ASCII are UTF-8: others are damage, and their row is named later.
    lost = letters.count("\ufffd")  # half of them may be a word of GBK that repeats
    if given is None and (is_utf8 or 2 * lost < len(letters) + (lost < 6)):
        given = UTF8
    if given is None and more:
        raise InputError(
            f"{path}: is not UTF-8, and has NULs. Save it as UTF-8, or name its `encoding`."
        )
    if given is None:
        given, found = _code_page(sample)
        if given is None:
            likely = f"unclear (it may be {' or '.join(found)})" if found else "unclear"
            raise InputError(
                f"{path}: is not UTF-8, and its encoding is {likely}. Name it with `encoding`."
            )
    return given, fewer + more


def _code_page(sample: bytes) -> tuple[str | None, list[str]]:
    """Return the code page of lines, None if it is unclear, and those that it may be.

    It is the Western one if nearly all distinct words fit Western languages, and another one if
    nearly all of several fit one language of it, and of no other. If both is true, words that the
    two read differently decide. The other page is taken if its language fits several more of them
    than the best Western language, and the Western page if it fits no more. Else it's unclear. A
    sister of Unix is taken if several more lines have what only it would write.

    >>> _code_page("żółta łódź, źle, ćma, dąb, był, też, śnieg".encode("cp1250"))[0]
    'cp1250'
    """
    lines = [line.decode("latin-1") for line in sample.splitlines()]
    names = {page: page for page in _ALPHABETS}
    for page, (sister, its, others) in _SISTERS.items():
        votes = sum(bool(re.search(its, line)) - bool(re.search(others, line)) for line in lines)
        names[page] = sister if votes >= _MANY else page
    words = dict[str, set[str]]()
    for page, name in names.items():  # words with letters beyond ASCII
        found = _SPLIT.split(sample.decode(name, "replace"))
        bare = {part.strip("“”").lstrip(_BEFORE) for part in found}
        words[page] = {word for word in bare if not _NO_WORD.fullmatch(word)}
    usual = words.pop(_WESTERN)
    *western, icelandic = [
        {word for word in usual if _fits(word, one)}
        for one in [*_ALPHABETS[_WESTERN], _ICELANDIC]  # its ð, þ and ý are letters of no other
    ]
    # The share that fits the best language of a page, and its lead in what is read differently.
    shares, leads = dict[str, float](), dict[str, int]()
    for page, own in words.items():
        new = own - usual
        fitting = [{word for word in own if _fits(word, one)} for one in _ALPHABETS[page]]
        parts = [own, new or own]
        shares[page], gain = max(
            (min(len(some & part) / max(1, len(part)) for part in parts), len(some & new))
            for some in fitting
        )
        leads[page] = gain - max((len(some), len(some - own)) for some in western)[1]
    near = [page for page, share in shares.items() if share >= _MOST]
    likely = {page for page in near if len(words[page]) >= _MANY}
    most, is_same = _MOST * len(usual), all(words[page] == usual for page in near)
    if len(set().union(*western)) >= most or (near and is_same):
        likely = {page for page in likely if leads[page] > 0}
        if not likely or min(leads[page] for page in likely) < _MANY:
            likely.add(_WESTERN)
    elif len(icelandic) >= max(most, _MANY):
        likely.add(_WESTERN)
    if len(likely) != 1:
        shares[_WESTERN] = len(set().union(*western, icelandic)) / max(1, len(usual))
        some = likely or {page for page, share in shares.items() if share > 0.5}
        return None, [names[p] for p in sorted(some, key=lambda p: (shares[p], p))[:-4:-1]]
    return names[likely.pop()], []


def _fits(word: str, alphabet: frozenset[str]) -> bool:
    """Return whether a language has a word's letters, and capitals where the word has them."""
    is_latin = "a" in alphabet
    is_cased = word[1:] == word[1:].lower() or (is_latin and word.replace("ß", "").isupper())
    is_mixed = not is_latin or len(word) < 2 or any(map(str.isascii, word))  # as Latin words are
    return is_cased and is_mixed and "ς" not in word[:-1] and alphabet.issuperset(word.lower())


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let cells be long. The limit is the process's, so one thread at a time changes it."""
    with _LIMIT:
        limit = csv.field_size_limit(MOST_CELL)
        try:
            yield
        finally:
            csv.field_size_limit(limit)


# -- CSV and JSON ----------------------------------------------------------------------------------


def _read_text(
    path: Path, layout: Layout, rows: RowNumbers, newline: str | None
) -> Generator[str, None, None]:
    """Yield a file's lines, as `newline` ends them for `open`. None: blocks of its text.

    Decoding works by blocks, so a strict decoder would report a row that is too early. Escaping
    the bad bytes and looking for the escapes finds the right row. With a detected encoding, each
    bad byte becomes � and damages only its own record. A header or a given encoding is refused.
    """
    ends, errors, mends = newline or "", "surrogateescape", layout.is_told and not layout.strict
    if mends and str(layout.encoding).startswith(_WIDE_UNITS):
        errors = "replace"  # of whole code units: a byte that is escaped would shift all others
    items, most = 0, most_items(path)
    with io.TextIOWrapper(open_bytes(path), layout.encoding, errors, ends) as text:
        try:
            for part in iter(partial(text.read, _BLOCK), "") if newline is None else text:
                if "\0" in part and layout.strict:
                    raise InputError(f"{path}: {rows.next} has a NUL. Remove it, or omit `strict`.")
                if len(part) > MOST_LINE:
                    raise InputError(f"{path}: {_TOO_LONG}")
                items += 1 + (found := _count_items(part, layout.delimiter))
                if found > MOST_ITEMS and newline is not None:
                    raise InputError(f"{path}: {rows.next}{_TOO_MANY}")
                if items > most:
                    raise InputError(
                        f"{path}: most of its cells are empty or the same. Keep the rows and "
                        "columns that you need."
                    )
                if mends and rows.next != "the header":
                    part = _DAMAGED.sub("\ufffd", part)
                part.encode()
                yield part.replace("\0", "")  # C libraries see the end of a cell in it
        except UnicodeError:
            fault = f"is not {layout.name} text. Save it as UTF-8, or name its `encoding`."
            raise InputError(f"{path}: {rows.next} {fault}") from None


def _count_items(text: str, delimiter: str | None) -> int:
    """Return what reading costs, in cells: those of CSV at least. An object of JSON costs ten."""
    if delimiter is not None:
        return text.count(delimiter)
    return text.count(",") + text.count("[") + 10 * text.count("{")


def read_csv(path: Path, layout: Layout, rows: RowNumbers) -> Iterator[Piece]:
    """Yield pieces of CSV. Only an empty cell is missing, and all rows are equally wide.

    Cells are texts, because an inferred type would let one cell decide for its whole column.
    Quotes and line ends are read strictly. A stray one would decide where later rows begin.
    """
    lines = _read_text(path, layout, rows, layout.newline)
    rest, delimiter = islice(lines, layout.skipped, None), str(layout.delimiter)
    raw: list[str] = []  # lines of the next row

    def kept(line: str) -> str:
        raw.append(line)
        return line

    reader = csv.reader(map(kept, rest), delimiter=delimiter, strict=True)
    names: list[str] = []
    some: list[list[str]] = []  # rows of the next piece
    known: list[set[str]] = []  # by column, its first distinct cells
    doubtful: list[tuple[str, list[dict[int, str]]]] = []  # rows whose lines may be rows
    while True:
        try:
            with _long_cells():
                cells = next(reader, None)
        except csv.Error as error:
            fault = f"{rows.next} has a quote without its counterpart"
            if "new-line" in str(error):
                fault = f"{rows.next} has a line break that is not the file's own"
            fault = _TOO_LONG if "field larger" in str(error) else f"{fault}. {_QUOTED}"
            raise InputError(f"{path}: {fault}") from None
        if some and (cells is None or len(some) == columns.ROWS_AT_ONCE):
            by_column = list(zip(*some, strict=True))
            for seen, own in zip(known, by_column, strict=True):
                seen.update(own if len(seen) <= _FEW_VALUES else ())
            pairs = zip(names, by_column, strict=True)
            yield len(some), {n: pa.array([c or None for c in cs], _TEXT) for n, cs in pairs}
            some = []
        if cells is None:
            break
        row, is_blank = rows.next, len(cells) < 2 and not "".join(cells).strip()
        rows.blank.append(b"01"[is_blank])
        written, at = "".join(raw), 0
        is_long = len(raw) > 1 or "\r" in written.rstrip()
        raw.clear()
        if is_blank:
            continue
        for cell in cells if '"' in "".join(cells) else ():
            if written.startswith('"', at):
                at += 2 + cell.count('"')
            elif '"' in cell and UNSEEN.sub("", cell).lstrip().startswith('"'):
                raise InputError(f"{path}: {row} has a blank before a quote. {_QUOTED}")
            at += len(cell) + 1
        parts = _lines_as_rows(cells, delimiter) if is_long and not layout.multiline else []
        if not names:
            names = [name or f"Unnamed: {place}" for place, name in enumerate(cells)]
            known = [set() for _ in names]
            check_names(names, path)
            if any(parts):
                raise InputError(f"{path}: the header {_OVER_ROWS}")
            yield 0, {name: pa.array([], _TEXT) for name in names}
        elif len(cells) != len(names):
            raise InputError(
                f"{path}: {row} has {len(cells)} cells where the header has {len(names)}. "
                "Put cells that hold the separator, a quote or a line break in double quotes, or "
                f"name the `delimiter`{', or remove lines above the header' * (len(names) < 2)}."
            )
        else:
            some.append(cells)
            if any(parts):
                doubtful.append((row, parts))
    few = [seen if len(seen) <= _FEW_VALUES else set() for seen in known]
    known = [seen - {""} for seen in known if doubtful]
    numbers = [bool(seen) and None not in map(parse_number, seen) for seen in known]
    for row, parts in doubtful:
        if _are_rows(parts, few, numbers):
            raise InputError(f"{path}: {row} {_OVER_ROWS}")


def _lines_as_rows(cells: Sequence[str], delimiter: str) -> list[dict[int, str]]:
    r"""Return the lines of a row's quoted cells, each as cells by column.

    A line that is not as wide as the row is empty here. Blank lines, and parts of the quoted cell
    itself, are left out.

    >>> _lines_as_rows(["long,good\nshort,bad\n\na, b, c\n5 feet", "bad"], ",")
    [{1: 'good'}, {0: 'short', 1: 'bad'}, {}]
    """
    found = []
    for place, cell in enumerate(cells):
        lines = [each.split(delimiter) for each in _LINE_END.split(cell) if each.strip()]
        if len(lines) < 2:
            continue
        # the cell's own parts end the first line's row and begin the last one's
        starts, behind = [place] + [0] * (len(lines) - 1), len(cells) - place - 1
        lines[0][0] = lines[-1][-1] = ""
        widths = [*map(len, lines[:-1]), len(lines[-1]) + behind]
        # the first line says nothing of a last column, and the last one nothing of a first
        for n in range(not behind, len(lines) - (not place)):
            is_row = starts[n] + widths[n] == len(cells)
            line = enumerate(lines[n] if is_row else (), start=starts[n])
            found.append({at: each for at, each in line if each})
    return found


def _are_rows(
    lines: Sequence[Mapping[int, str]], few: Sequence[set[str]], numbers: Sequence[bool]
) -> bool:
    """Return whether lines within a quotation are rows, which a lone quote took for one text.

    Most of them have a cell that other rows of the file have too, or a number where their column
    has numbers. Or there are many, and nearly all are as wide as a row. By column, `few` has the
    file's cells if they are few, and `numbers` says whether all that are known are numbers.
    """
    alike = sum(any(cell in few[at] for at, cell in line.items()) for line in lines)
    spelt = sum(
        any(numbers[at] and parse_number(cell) is not None for at, cell in line.items())
        for line in lines
    )
    wide = sum(map(bool, lines))
    are_most = 2 * alike > len(lines) or (spelt >= _SEVERAL and 2 * spelt > len(lines))
    return are_most or (wide >= 2 * _SEVERAL and 10 * wide >= 9 * len(lines))


def _json_items(
    path: Path, layout: Layout, rows: RowNumbers, may_be_array: bool
) -> Iterator[tuple[str, Any]]:
    """Yield the JSON of each item and its value, or None if it is not valid."""
    parts = _read_text(path, layout, rows, None)
    rest = next(parts, "") if may_be_array else ""
    array = _AROUND.match(rest)
    if array is None:
        for line in _read_text(path, layout, rows, "\n"):
            if not line.strip():
                rows.blank.append(ord("1"))
                continue
            try:
                yield line, json.loads(line, **_ONCE)
            except (ValueError, RecursionError):
                yield line, None
        return
    rows.word, at, decoder = "item", array.end(), json.JSONDecoder(**_ONCE)
    is_first = True
    while True:
        before, between = at, _BETWEEN.match(rest, at)
        at = between.end() if between else at
        if at - before > _MOST_BLANKS:
            raise InputError(f"{path}: more than 1 MB of blanks before {rows.next}. Remove them.")
        if rest.startswith("]", at):
            after = "".join([rest[at + 1 :], *parts]).strip()
            if between and between[1]:
                yield "", None
            if after != ("}" if array[1] else ""):
                raise InputError(
                    f"{path}: has more behind its array of rows. Write only [{{…}}, {{…}}]."
                )
            return
        # a comma is between two items, and nowhere else
        if at < len(rest) and (not between or bool(between[1]) == is_first):
            yield "", None
        try:
            found, end = decoder.raw_decode(rest, at)
        except RecursionError:
            yield "", None
        except ValueError:  # it may be longer than the text so far: read the same again
            more = "".join(islice(parts, 1 + (len(rest) - at) // _BLOCK))
            rest, at = rest[before:] + more, 0  # with the comma before it
            if len(rest) > MOST_ITEMS and _count_items(rest, None) > 2 * MOST_ITEMS:
                raise InputError(f"{path}: {rows.next}{_TOO_MANY}") from None
            if not more or len(rest) > MOST_LINE:
                yield "", None
        else:
            yield rest[at:end], found
            at, is_first = end, False


def read_json(path: Path, layout: Layout, rows: RowNumbers, may_be_array: bool) -> Iterator[Piece]:
    """Yield pieces of JSONL, or of an array of objects. A value keeps its type ("1" is a text)."""
    names: dict[str, None] = {}
    some: list[dict[str, Any]] = []  # objects of the next piece
    read, most = 0, most_items(path)
    for count, (text, found) in enumerate(_json_items(path, layout, rows, may_be_array), start=1):
        if "\\u" in text and isinstance(found, dict):
            try:
                whole = whole_characters(json.dumps(found, ensure_ascii=False))
                found = json.loads(whole, **_ONCE)
            except RecursionError:
                found = None
        if not isinstance(found, dict):
            form = {"item": "an array of objects, [{…}, {…}]"}.get(rows.word, "one object a line")
            fault = "is not valid JSON of an object, or has a key twice"
            raise InputError(f"{path}: {rows.next} {fault}. Write {form}.")
        rows.blank.append(ord("0"))
        read += len(text)
        if not found.keys() <= names.keys():
            names.update(dict.fromkeys(found))
            check_names(names, path)
        # gaps would fill all memory
        if count * len(names) > min(most, max(MOST_REPEATED, read)):
            raise InputError(
                f"{path}: most of its {len(names)} columns are missing in most rows. "
                "Keep the columns that you need."
            )
        some.append(found)
        if len(some) == columns.ROWS_AT_ONCE:
            yield len(some), {name: [each.get(name) for each in some] for name in names}
            some = []
    is_one = len(some) == 1 == rows.blank.count(b"0") and some[0]
    if is_one and all(isinstance(cell, dict | list) for cell in some[0].values()):
        raise InputError(
            f"{path}: is one object of columns or rows. Write an array of objects, [{{…}}, {{…}}], "
            "as `to_json(path, orient='records')` of pandas does."
        )
    if some:
        yield len(some), {name: [each.get(name) for each in some] for name in names}
