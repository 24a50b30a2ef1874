"""A private table as records: texts, label combinations and the schema; and a twin's table again.

Everything wrong with a table is found here, before any model is loaded, and told in one line that
names file, column and row but holds no cell. Knows nothing of tokens, prompts or privacy budgets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.columns import check_table, choose_columns, label_cells, show, text_cells
from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.formats import read_frame
from twinset.privacy.units import Units
from twinset.schema import Attribute, Combination, LabelValue, Schema

MAX_LABELS = 100
ORDERED = "category (ordered)"  # pandas writes "category" for both kinds

# C0, DEL and lone surrogates. C1 (U+0080-U+009F) stays: it is what curly quotes become when
# Windows-1252 text is read as Latin-1, and real reviews are full of it.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Records:
    """Texts and their labels, row by row.

    Args:
        texts: one a row.
        labels: one a row; a tuple is in the order of `schema.attributes`.
        schema: of the table.
        owners: (N,) number of each row's owner; None: each row is its own.
    """

    texts: list[str]
    labels: list[Combination]
    schema: Schema
    owners: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def units(self, config: RunConfig) -> Units:
        """Return whose records are protected together."""
        return Units(len(self), self.owners, config.privacy.max_records_per_owner)

    def fingerprint(self) -> str:
        """Return a hash of all cells: as private as they are."""
        found, cells = hashlib.sha256(), [self.texts, self.labels, self.schema.to_dict()]
        if self.owners is not None:
            cells.append(self.owners.tolist())
        for part in json.JSONEncoder().iterencode(cells):
            found.update(part.encode())
        return found.hexdigest()


def read_records(
    path: str | Path,
    text: str | None,
    attributes: Sequence[str],
    split: str | None = None,
    drop_empty: bool = False,
    reserved: Sequence[str] = (),
) -> tuple[Records, list[str]]:
    """Read a table from a file, folder or hub name; see `read_frame` and `records_from_frame`."""
    frame = read_frame(path, split)
    return records_from_frame(
        frame, text, attributes, source=str(path), drop_empty=drop_empty, reserved=reserved
    )


def records_from_frame(
    frame: pd.DataFrame,
    text: str | None,
    attributes: Sequence[str],
    *,
    source: str = "table",
    drop_empty: bool = False,
    reserved: Sequence[str] = (),
    owner: str | None = None,
) -> tuple[Records, list[str]]:
    """Take texts and labels from a table, or refuse it.

    Args:
        frame: the private table.
        text: its text column; None guesses.
        attributes: its label columns; empty guesses one.
        source: what to call the table in messages.
        drop_empty: leave out rows whose text or label is missing, blank or (text) not a string.
        reserved: special tokens of the tokenizer, which no text or label may contain.
        owner: column that says whose a record is; the twin does not have it.

    Returns:
        The records, and notes for the table's owner (guesses, columns and rows left out,
        duplicates). The notes hold counts of private rows: they are not for the sharing side.

    Raises:
        InputError: the table cannot be used; the message holds no cell.
    """
    check_table(frame, source)
    notes: list[str] = []
    text, attributes = choose_columns(frame, text, list(attributes), source, notes)
    places = {name: f"{source}: {show([name], frame)}" for name in (text, *attributes)}
    columns: dict[str, list[Any]] = {text: text_cells(frame[text], places[text])}
    columns |= {name: label_cells(frame[name], places[name]) for name in attributes}
    rows = _kept_rows(columns, source, places, drop_empty, notes)
    for name, cells in columns.items():
        columns[name] = [cells[row] for row in rows]
        _check_characters(columns[name], rows, places[name], reserved)
    kept = tuple(str(name) for name in frame.columns if name in columns)
    dropped = tuple(str(name) for name in frame.columns if name not in columns)
    if dropped:
        notes.append(f"leaving out {show(dropped, frame)}: the twin will not have them")
    schema = Schema(
        text=text,
        text_dtype=str(frame[text].dtype),
        attributes=tuple(_attribute(frame[n], columns[n], places[n]) for n in attributes),
        columns=kept,
        dropped=dropped,
    )
    _note_duplicates(columns[text], notes)
    labels: list[Combination] = list(zip(*(columns[n] for n in attributes), strict=True))
    owners = None if owner is None else _owners(frame, owner, (text, *attributes), rows, source)
    return Records(columns[text], labels, schema, owners), notes


def _owners(
    frame: pd.DataFrame, owner: str, used: Sequence[str], rows: list[int], source: str
) -> np.ndarray:
    """Return (N,) the number of each kept row's owner."""
    if owner not in frame.columns:
        raise InputError(f"{source}: has no column {owner!r}; check --owner")
    if owner in used:
        raise InputError(
            f"{source}: --owner {owner!r} is the text or a label already; name another"
        )
    cells = frame[owner].iloc[rows]
    if missing := [row for row, gone in zip(rows, cells.isna(), strict=True) if gone]:
        raise InputError(
            f"{source}: {show([owner], frame)} is missing in {len(missing)} rows, first in row "
            f"{missing[0] + 1}; every record needs an owner"
        )
    return pd.factorize(cells)[0]


def twin_frame(schema: Schema, texts: Sequence[str], labels: Sequence[Combination]) -> pd.DataFrame:
    """Build a table with the private table's columns, order, dtypes and categories.

    >>> stars = Attribute("stars", "int64", (1, 5))
    >>> schema = Schema("review", "str", (stars,), columns=("stars", "review"))
    >>> twin_frame(schema, ["Bad.", "Good."], [(1,), (5,)]).to_dict("list")
    {'stars': [1, 5], 'review': ['Bad.', 'Good.']}
    """
    columns = {schema.text: pd.Series(list(texts), dtype=schema.text_dtype)}
    for position, attribute in enumerate(schema.attributes):
        cells = [combination[position] for combination in labels]
        columns[attribute.name] = pd.Series(cells, dtype=_dtype(attribute))
    return pd.DataFrame({name: columns[name] for name in schema.columns})


def _dtype_name(column: pd.Series) -> str:
    ordered = isinstance(column.dtype, pd.CategoricalDtype) and column.dtype.ordered
    return ORDERED if ordered else str(column.dtype)


def _dtype(attribute: Attribute) -> Any:
    if attribute.dtype in ("category", ORDERED):
        return pd.CategoricalDtype(list(attribute.values), ordered=attribute.dtype == ORDERED)
    return attribute.dtype


def _kept_rows(
    columns: dict[str, list[Any]],
    source: str,
    places: dict[str, str],
    drop_empty: bool,
    notes: list[str],
) -> list[int]:
    """Return the positions of the rows that have everything; refuse others unless told to drop."""
    total = len(next(iter(columns.values())))
    empty: set[int] = set()
    for name, cells in columns.items():
        gaps = [row for row, cell in enumerate(cells) if cell is None]
        empty.update(gaps)
        if gaps and not drop_empty:
            raise InputError(
                f"{places[name]} is missing, blank or not text in {len(gaps)} of "
                f"{total} rows, first in row {gaps[0] + 1}; fill them in, or leave these rows out "
                "with --drop-empty"
            )
    if len(empty) == total:
        raise InputError(f"{source}: no row has both a text and its labels; fill them in")
    if empty:
        notes.append(f"leaving out {len(empty)} of {total} rows: text or label missing or blank")
    return [row for row in range(total) if row not in empty]


def _check_characters(
    cells: list[Any], rows: list[int], place: str, reserved: Sequence[str]
) -> None:
    """Refuse what a model would take for the end of a text, or could not have written."""
    tokens = "|".join(re.escape(token) for token in reserved if token.strip())
    for pattern, what in (
        (CONTROL, "a control character"),
        (re.compile(tokens) if tokens else None, "a special token of the base model"),
    ):
        if pattern is None:
            continue
        bad = [
            row
            for cell, row in zip(cells, rows, strict=True)
            if isinstance(cell, str) and pattern.search(cell)
        ]
        if bad:
            raise InputError(
                f"{place}, row {bad[0] + 1}: contains {what}, as do {len(bad) - 1} more rows; "
                "remove it from these cells"
            )


def _attribute(column: pd.Series, values: list[LabelValue], place: str) -> Attribute:
    distinct = set(values)
    if len(distinct) == 1:
        raise InputError(
            f"{place} has one value only; an attribute needs two or more, leave it out"
        )
    if len(distinct) > MAX_LABELS or (len(distinct) > 2 and len(distinct) > len(values) / 2):
        raise InputError(
            f"{place} has {len(distinct)} distinct values in {len(values)} rows; "
            "an attribute needs few, repeated values: bin it first"
        )
    dtype = _dtype_name(column)
    order = column.cat.categories.tolist() if dtype == ORDERED else sorted(distinct)
    return Attribute(str(column.name), dtype, tuple(v for v in order if v in distinct))


def _note_duplicates(texts: list[str], notes: list[str]) -> None:
    repeats = len(texts) - len(set(texts))
    if repeats:
        notes.append(
            f"{repeats} rows repeat the text of an earlier row: the guarantee is for one row, and "
            "is weaker for what several rows say"
        )
