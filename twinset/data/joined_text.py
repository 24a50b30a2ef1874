"""Several columns as one text, as `{title}: {body}` says, where no column has that very name."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from decimal import Decimal
from numbers import Number
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd

from twinset.data.columns import check_named, plain_cell, show
from twinset.data.lazy_columns import ROWS_AT_ONCE, Reading, let_go, mapped
from twinset.errors import InputError

NAME = "text"  # of the twin's column
_WRITABLE = (str, Number, Decimal, np.bool_, datetime.date, datetime.time, datetime.timedelta)
_ESCAPES = {"\\n": "\n", "\\t": "\t"}  # as a shell leaves them


def with_joined_text(
    frame: pd.DataFrame,
    text: str | None,
    keep: Sequence[str] = (),
    source: str = "table",
    folder: Path | None = None,
) -> tuple[pd.DataFrame, str | None, list[str]]:
    """Return a table with the text column that is asked for, its name, and notes for the owner.

    Args:
        frame: the table.
        text: a column, or a template of columns between braces; None: to be guessed later.
        keep: joined columns that are needed for themselves.
        source: what to call the table in messages.
        folder: private to its owner: texts of a large table are kept on the disk there.

    Raises:
        InputError: the template names no column of the table, or one that is not of plain values.
    """
    if text is None or text in frame.columns or "{" not in text:
        return frame, text, []
    parts = _parts(text)
    used = list(dict.fromkeys(name for _, name in parts if name is not None))
    check_named(frame, used, source)
    name = NAME if NAME in used or NAME not in frame.columns else f"joined_{NAME}"
    column = _joined(frame[used], parts, source, folder)
    rest = frame.drop(columns=[n for n in used if n not in keep or n == name])
    notes = [f"joining {show(used, frame)} into one, which the twin calls {name!r}"]
    return rest.assign(**{name: column}), name, notes


def _parts(template: str) -> list[tuple[str, str | None]]:
    for escape, character in _ESCAPES.items():
        template = template.replace(escape, character)
    try:
        found = list(Formatter().parse(template))
    except ValueError:
        found = []
    if not any(name for _, name, _, _ in found) or any(n == "" or s or c for _, n, s, c in found):
        raise InputError(
            "`text`: a template has columns between braces and nothing else there, as in "
            "{title}: {body}; or name one column"
        )
    return [(literal, name) for literal, name, _, _ in found]


def _joined(
    frame: pd.DataFrame, parts: list[tuple[str, str | None]], source: str, folder: Path | None
) -> pd.Series:
    """Return a row's text for each row; an empty one where all its parts are blank."""

    def pieces() -> Iterator[pd.DataFrame]:
        for start in range(0, len(frame), ROWS_AT_ONCE):
            some = frame.iloc[start : start + ROWS_AT_ONCE]
            cells = {name: _written(some[name], source, frame) for name in some.columns}
            rows = [
                _filled(parts, dict(zip(cells, row, strict=True)))
                for row in zip(*cells.values(), strict=True)
            ]
            yield pd.DataFrame({NAME: pd.Series(rows, dtype="str")})
            let_go()

    def whole() -> pd.DataFrame:
        return pd.concat(pieces(), ignore_index=True)

    reading = Reading(whole, pieces, lambda _, name: whole()[name])
    found = whole() if folder is None else mapped(reading, folder)
    return found[NAME].set_axis(frame.index)


def _filled(parts: list[tuple[str, str | None]], cells: dict[str, str]) -> str:
    if not any(map(str.strip, cells.values())):
        return ""
    return "".join(f"{literal}{cells[name] if name else ''}" for literal, name in parts).strip()


def _written(column: pd.Series, source: str, frame: pd.DataFrame) -> list[str]:
    gaps = column.isna().tolist()
    cells = [None if gap else cell for cell, gap in zip(column.tolist(), gaps, strict=True)]
    if not all(cell is None or isinstance(cell, _WRITABLE) for cell in cells):
        raise InputError(
            f"{source}: {show([str(column.name)], frame)} holds lists or objects, which cannot be "
            "joined into a text; leave it out of `text`"
        )
    return ["" if cell is None else _shown(cell) for cell in cells]


def _shown(cell: Any) -> str:
    value = plain_cell(cell)
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
