"""Files of JSON objects, one a line or in an array → tables, or one line that says what is wrong.

The cells are private, and the messages of pandas may quote them: none is passed on, and errors are
raised `from None` so that no traceback holds one either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from twinset.errors import InputError
from twinset.files.limits import MOST_LINE, MOST_REPEATED, check_names
from twinset.table.cells import exact
from twinset.table.lazy_columns import ROWS_AT_ONCE, Reading, RowNumbers
from twinset.table.text_files import UTF8, Layout, text_lines, undecodable

_CHUNK = 2**20  # characters
_BETWEEN = re.compile(r"[\s,]*")  # items of an array
_NO_LINE = "not valid JSON of an object; write one object a line"
_NO_ITEM = "not valid JSON of an object; write an array of objects, [{…}, {…}]"
_Sized = tuple[dict[str, Any], int]


def read_jsonl(path: Path) -> pd.DataFrame:
    """Read one JSON object a line; a value keeps its JSON type ("1" stays a text)."""
    return jsonl(path, Layout(UTF8)).whole()


def jsonl(path: Path, layout: Layout) -> Reading:
    """Return the ways to read JSONL."""
    rows = RowNumbers("line")
    return _objects(lambda: _json_lines(path, layout, rows), path, rows)


def json_file(path: Path, layout: Layout) -> Reading:
    """Return the ways to read an array of JSON objects; many call JSONL so too."""
    try:
        with layout.text(path) as text:
            is_array = text.read(_CHUNK).lstrip().startswith("[")
    except UnicodeError:
        raise undecodable(path, layout, "the file") from None
    if not is_array:
        return jsonl(path, layout)
    rows = RowNumbers("item")
    return _objects(lambda: _json_items(path, layout, rows), path, rows)


def _objects(found: Callable[[], Iterator[_Sized]], path: Path, rows: RowNumbers) -> Reading:
    """Return the ways to read objects, each with the number of characters that it takes."""

    def pieces() -> Iterator[pd.DataFrame]:
        objects = _checked(found(), path)
        while some := list(islice(objects, ROWS_AT_ONCE)):
            yield _table(some)

    def column(place: int, name: str) -> pd.Series:
        objects = _checked(found(), path)
        return _table([{name: o[name]} if name in o else {} for o in objects])[name]

    return Reading(lambda: _table(list(_checked(found(), path))), pieces, column, rows=rows)


def _table(objects: list[dict[str, Any]]) -> pd.DataFrame:
    return exact(pd.DataFrame(objects), lambda name: [each.get(name) for each in objects])


def _checked(objects: Iterator[_Sized], path: Path) -> Iterator[dict[str, Any]]:
    read, names = 0, set[str]()
    for row, (found, size) in enumerate(objects, start=1):
        read += size
        if not found.keys() <= names:
            names |= found.keys()
            check_names(names, path)
        if row * len(names) > max(MOST_REPEATED, read):
            raise InputError(
                f"{path}: most of its {len(names)} columns are missing in most rows; "
                "keep the columns that you need"
            )
        yield found


def _json_lines(path: Path, layout: Layout, rows: RowNumbers) -> Iterator[_Sized]:
    rows.begin()
    try:
        for line in text_lines(path, layout, "\n", rows):
            rows.count(is_blank=not line.strip())
            if line.strip():
                yield _json_row(line, f"{path}: {rows.last}"), len(line)
    except UnicodeError:
        raise undecodable(path, layout, rows.next) from None


def _json_items(path: Path, layout: Layout, rows: RowNumbers) -> Iterator[_Sized]:
    """Yield the objects of an array, of which few are in memory at once."""
    rows.begin()
    decoder = json.JSONDecoder()
    try:
        with layout.text(path) as text:
            rest = text.read(_CHUNK)
            at = rest.index("[") + 1
            while (at := _end(_BETWEEN, rest, at)) == len(rest) or rest[at] != "]":
                try:
                    found, end = decoder.raw_decode(rest, at)
                except ValueError:  # it may go on
                    more = text.read(max(_CHUNK, len(rest) - at))
                    rest, at = rest[at:] + more, 0
                    if not more or len(rest) > MOST_LINE:
                        raise InputError(f"{path}: {rows.next} is {_NO_ITEM}") from None
                    continue
                rows.count()
                yield _object(found, rest[at:end], f"{path}: {rows.last}", _NO_ITEM), end - at
                at = end
    except UnicodeError:
        raise undecodable(path, layout, rows.next) from None
    except RecursionError:
        raise InputError(f"{path}: {rows.next} is {_NO_ITEM}") from None


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()


def _json_row(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place} is {_NO_LINE}") from None
    return _object(found, line, place, _NO_LINE)


def _object(found: Any, text: str, place: str, wrong: str) -> dict[str, Any]:
    """Return an object; refuse what is none, and an escaped half of a surrogate pair: no text."""
    try:
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InputError(f"{place} is {wrong}") from None
    if not isinstance(found, dict):
        raise InputError(f"{place} is {wrong}")
    return found
