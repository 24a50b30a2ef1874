"""Which columns of a private table hold texts and labels, and their cells as plain values.

Messages name columns and row numbers and never hold a cell. Knows nothing of files or models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.schema import LabelValue

_GUESS_LABELS = 50
_GUESS_WORDS = 4


def check_table(frame: pd.DataFrame, source: str) -> None:
    """Refuse a table without rows, or whose columns cannot be named."""
    if frame.empty:
        raise InputError(f"{source}: the table has no rows; give a table with records")
    if not all(isinstance(name, str) for name in frame.columns):
        raise InputError(f"{source}: column names must be text; rename the columns")
    if frame.columns.has_duplicates:
        raise InputError(f"{source}: two columns have the same name; rename one")


def show(names: Sequence[str], frame: pd.DataFrame) -> str:
    """Quote column names. Long ones become numbers: without a header row, the names are cells."""
    shown = [
        repr(name)
        if len(name) <= 40 and name.isprintable()
        else f"number {frame.columns.get_loc(name) + 1} (is the header row missing?)"
        for name in names[:30]
    ]
    plural = "columns" if len(names) > 1 else "column"
    return f"{plural} {', '.join(shown)}" + (", …" if len(names) > 30 else "")


def choose_columns(
    frame: pd.DataFrame, text: str | None, attributes: list[str], source: str, notes: list[str]
) -> tuple[str, list[str]]:
    """Return the text column and the label columns: as given, or guessed and noted."""
    for name in ([] if text is None else [text]) + attributes:
        if name not in frame.columns:
            raise InputError(_no_column(frame, name, source))
    if len(set(attributes)) < len(attributes):
        raise InputError(f"{source}: an attribute is given twice; give each --attribute once")
    if text in attributes:
        raise InputError(f"{source}: {text!r} is both --text and --attribute; choose one of them")
    if text is None:
        rest = [name for name in frame.columns if name not in attributes]
        text = _guess(frame, rest, _looks_like_text, "a column of texts", "--text", source)
        notes.append(f"reading texts from {show([text], frame)} (guessed; --text to change)")
    if not attributes:
        rest = [name for name in frame.columns if name != text]
        label = _guess(frame, rest, _looks_like_label, "a column of labels", "--attribute", source)
        _check_header(frame, label, source)
        attributes = [label]
        notes.append(f"reading labels from {show([label], frame)} (guessed; --attribute to change)")
    return text, attributes


def _check_header(frame: pd.DataFrame, label: str, source: str) -> None:
    """Refuse to guess where row 1 seems to be the header: the twin would carry it as its own."""
    if label in {str(cell) for cell in frame[label].tolist()}:
        place = frame.columns.get_loc(label) + 1
        raise InputError(
            f"{source}: the name of column number {place} is also one of its values: is the header "
            "row missing? Add one, or name the column with --attribute"
        )


def _no_column(frame: pd.DataFrame, name: str, source: str) -> str:
    folded = {column.casefold(): column for column in frame.columns}
    close = [folded[match] for match in get_close_matches(name.casefold(), folded, n=2)]
    hint = f"did you mean {show(close, frame)}? " if close else ""
    return f"{source}: no column {name!r}; {hint}It has {show(list(frame.columns), frame)}"


def _guess(
    frame: pd.DataFrame,
    names: list[str],
    fits: Callable[[pd.Series], bool],
    what: str,
    flag: str,
    source: str,
) -> str:
    found = [name for name in names if fits(frame[name])]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{source}: {show(found, frame)} may each be {what}; choose with {flag}")
    choice = show(names, frame) if names else "no other column"
    raise InputError(f"{source}: nothing looks like {what}; choose with {flag}. It has {choice}")


def _looks_like_text(column: pd.Series) -> bool:
    """Say whether most cells are strings, mostly distinct, of several words."""
    texts = [cell for cell in column.tolist() if isinstance(cell, str)]
    words = sum(len(text.split()) for text in texts)
    return (
        len(texts) > len(column) / 2
        and len(set(texts)) > len(texts) / 2
        and words >= _GUESS_WORDS * len(texts)
    )


def _looks_like_label(column: pd.Series) -> bool:
    """Say whether there are 2 to 50 plain values, each of them repeated."""
    try:
        counts = Counter(value for value in label_cells(column, "") if value is not None)
    except InputError:
        return False
    return 2 <= len(counts) <= _GUESS_LABELS and min(counts.values()) > 1


def text_cells(column: pd.Series, place: str) -> list[str | None]:
    """Return the texts, None where there is none."""
    cells = column.tolist()
    if not any(isinstance(cell, str) for cell in cells):
        raise InputError(
            f"{place} holds no text (it is {column.dtype}); choose another with --text"
        )
    return [cell if isinstance(cell, str) and cell.strip() else None for cell in cells]


def label_cells(column: pd.Series, place: str) -> list[LabelValue | None]:
    """Return plain Python values of one type, None where there is none.

    Whole floats become ints (a column of ints with a gap reaches us as floats); the dtype, kept in
    the schema, makes them floats again in the twin.
    """
    gaps = column.isna().tolist()
    cells = [None if gap else _plain(cell) for cell, gap in zip(column.tolist(), gaps, strict=True)]
    kinds = {type(cell) for cell in cells if cell is not None}
    if not kinds <= {str, int, float, bool}:
        raise InputError(f"{place} holds neither text, numbers nor booleans; write them as text")
    if len(kinds) > 1 and kinds != {int, float}:
        raise InputError(f"{place} mixes text, numbers or booleans; make them of one kind")
    if float not in kinds:
        return cells
    for row, cell in enumerate(cells, start=1):
        if isinstance(cell, float) and not math.isfinite(cell):
            raise InputError(f"{place}, row {row}: the number is infinite; correct it")
    whole = all(not isinstance(cell, float) or cell.is_integer() for cell in cells)
    if whole and not isinstance(column.dtype, pd.CategoricalDtype):
        return [None if cell is None else int(cell) for cell in cells]
    return cells


def _plain(cell: Any) -> Any:
    value = cell.item() if isinstance(cell, np.generic) else cell
    return None if isinstance(value, str) and not value.strip() else value
