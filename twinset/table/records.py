"""A private table as records: texts, label combinations and the schema.

Everything wrong with a table is found here, before any model is loaded, and said in one line that
names file, column and row but holds no cell. Knows nothing of tokens, prompts or privacy budgets.

Nothing of the schema may depend on a single record: dtypes are stated by the table, or follow from
the public values alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.privacy.mechanism.units import Units
from twinset.table.arrow_columns import Labels, Texts, some_at_once
from twinset.table.columns import (
    ChosenColumns,
    check_table,
    choose_columns,
    show,
    with_joined_text,
)
from twinset.table.labels import (
    OWNER,
    PROMPT,
    LabelCodes,
    LabelColumn,
    LabelRules,
    PublicLabels,
    check_number_of_values,
    label_codes,
    public_labels,
    whole_numbers,
)
from twinset.table.read import (
    is_named_by_rows,
    is_of_text,
    read_frame,
    reading_notes,
    row_numbers,
    stated_dtype,
    states_types,
)
from twinset.table.schema import ORDERED, Attribute, Combination, LabelValue, Schema
from twinset.table.text_files import Layout

FEW = 20  # one row in this many may lack something, and is left out
_CONVERTED = ("date", "time", "period", "decimal", "duration")  # dtypes whose values are changed


@dataclass(frozen=True)
class Records:
    """Texts and their labels, row by row.

    Args:
        texts: one a row.
        labels: one a row; a tuple is in the order of `schema.attributes`.
        schema: of the table.
        owners: (N,) number of each row's owner. None: each row is its own.
        whose: by attribute, who says what values it has; else the table does.
    """

    texts: Sequence[str]
    labels: Sequence[Combination]
    schema: Schema
    owners: np.ndarray | None = None
    whose: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    def units(self, config: Any) -> Units:
        """Return whose records are protected together; by the `RunConfig` of a run."""
        return Units(len(self), self.owners, config.privacy.max_records_per_owner)

    @property
    def rows(self) -> np.ndarray:
        """(N,) their rows in the table, rising from 0."""
        assert isinstance(self.texts, Texts)
        return self.texts.rows

    def rows_of(self, units: np.ndarray) -> list[int]:
        """Return the table's rows, from 0, that have some units, by the numbers of these."""
        chosen = units if self.owners is None else np.flatnonzero(np.isin(self.owners, units))
        rows: list[int] = self.rows[chosen].tolist()
        return rows

    def split(self, rows: Sequence[int]) -> tuple[Records, Records | None]:
        """Return what is in other rows of the table than these, and what is in these. None: none.

        Both parts keep the schema of all records.

        Raises:
            InputError: no other row is left.
        """
        if not rows:
            return self, None
        is_held = np.isin(self.rows, rows)
        if is_held.all():
            raise InputError("`hold_out` leaves no row to train on; make it smaller, or 0")
        assert isinstance(self.texts, Texts) and isinstance(self.labels, Labels)
        parts = []
        for places in (np.flatnonzero(~is_held), np.flatnonzero(is_held)):
            owners = None if self.owners is None else self.owners[places]
            part = replace(
                self,
                texts=self.texts.at(places),
                labels=Labels(self.labels.numbers[places], self.labels.known),
                owners=None if owners is None else np.unique(owners, return_inverse=True)[1],
            )
            parts.append(part)
        return parts[0], parts[1]

    def fingerprint(self) -> str:
        """Return a hash of all cells: as private as they are."""
        found = hashlib.sha256(json.dumps([len(self), self.schema.to_dict()]).encode())
        for some in some_at_once(self.texts):
            # with the lengths, no two tables have the same letters one after the other
            found.update(json.dumps(list(map(len, some))).encode())
            found.update("".join(some).encode(errors="surrogatepass"))
        for labels in some_at_once(self.labels):
            found.update(json.dumps(labels).encode())
        if self.owners is not None:
            found.update(self.owners.astype("<i8").tobytes())
        return found.hexdigest()


def read_records(
    path: str | Path,
    text: str | None,
    attributes: Sequence[str],
    split: str | None = None,
    drop_empty: bool = False,
    reserved: Sequence[str] = (),
    rules: LabelRules | None = None,
    layout: Layout | None = None,
) -> tuple[Records, list[str]]:
    """Read a table from a file, folder or hub name: `read_frame`, then `records_from_frame`."""
    frame = read_frame(path, split, layout=layout)
    options = {"drop_empty": drop_empty, "reserved": reserved, "rules": rules}
    return records_from_frame(frame, text, attributes, source=str(path), **options)  # type: ignore[arg-type]


def records_from_frame(
    frame: pd.DataFrame,
    text: str | None,
    attributes: Sequence[str],
    *,
    source: str = "table",
    drop_empty: bool = False,
    reserved: Sequence[str] = (),
    owner: str | None = None,
    rules: LabelRules | None = None,
    strict: bool = False,
    folder: Path | None = None,
) -> tuple[Records, list[str]]:
    """Take texts and labels from a table, or refuse it.

    Args:
        frame: the private table.
        text: its text column, or a template that joins several. None guesses.
        attributes: its label columns. Empty guesses one.
        source: what to call the table in messages.
        drop_empty: leave out rows whose text or label is missing, blank or (text) not a string,
            however many; else one row in `FEW`.
        reserved: special tokens of the tokenizer, which no text or label may contain.
        owner: column that says whose a record is. The twin does not have it.
        rules: which label values are public. None: all, for rows of which nothing is published.
        strict: refuse such rows, and control characters in texts, which are removed else.
        folder: private to its owner: joined texts of a large table are kept on the disk there.

    Returns:
        The records, and notes for the table's owner (guesses, columns and rows left out,
        duplicates). The notes hold counts of private rows: they are not for the sharing side.

    Raises:
        InputError: the table cannot be used; the message holds no cell.
    """
    check_table(frame, source)
    notes = reading_notes(frame)
    frame, text, joined = with_joined_text(frame, text, attributes, source, folder)
    notes += joined
    attributes = list(attributes) or (rules.names if rules else [])
    chosen = ChosenColumns(frame, *choose_columns(frame, text, attributes, source, notes), source)
    codes = {
        name: label_codes(frame[name], chosen.places[name], as_written=rules is not None)
        for name in chosen.attributes
    }
    may_lack = len(frame) if drop_empty else 0 if strict else len(frame) // FEW
    rows = chosen.complete_rows(codes, may_lack, notes)
    owners = None if owner is None else chosen.owners(owner, rows)
    labels = {n: whole_numbers(found.of_rows(rows), frame[n]) for n, found in codes.items()}
    public: dict[str, PublicLabels] = {}
    if rules is not None:
        public, kept = _settle_labels(chosen, labels, rows, owners, rules, notes)
        labels = {name: found.codes for name, found in public.items()}
        rows, owners = rows[kept], None if owners is None else owners[kept]
    texts = Texts(frame[chosen.text], rows)
    texts = chosen.check_characters(texts, labels, strict, notes)
    chosen.check_no_token(texts, labels, reserved)
    notes += chosen.left_out()
    if repeats := texts.repeats():
        remedy = "" if owner is not None else "; `group_size=M` states it for M rows together"
        notes.append(
            f"{repeats} rows repeat the text of an earlier row: the guarantee is for one "
            f"{'row' if owner is None else 'owner'}, and is weaker for what several say{remedy}"
        )
    schema = _schema_of(chosen, labels, public, rules)
    numbers = np.zeros(1, np.int32)  # (N,) of each row's combination in `schema.combinations`
    for attribute in schema.attributes:
        found = labels[attribute.name]
        place = {value: number for number, value in enumerate(attribute.values)}
        moved = np.array([place.get(value, 0) for value in found.values], np.int32)
        numbers = numbers * len(place) + moved[found.numbers]
    whose = {name: found.whose for name, found in public.items()}
    return Records(texts, Labels(numbers, schema.combinations), schema, owners, whose), notes


def check_reserved(
    records: Records, frame: pd.DataFrame, reserved: Sequence[str], source: str = "table"
) -> None:
    """Refuse special tokens of a tokenizer, as `records_from_frame` does where it is passed them.

    Args:
        records: of `records_from_frame`.
        frame: the same table.
        reserved: the tokens.
        source: what to call the table in messages.

    Raises:
        InputError: a text or a label holds one; the message holds no cell.
    """
    schema, texts, labels = records.schema, records.texts, records.labels
    assert isinstance(texts, Texts) and isinstance(labels, Labels)
    found = {
        attribute.name: LabelCodes(labels.numbers, [known[place] for known in labels.known])
        for place, attribute in enumerate(schema.attributes)
    }
    ChosenColumns(frame, schema.text, list(found), source).check_no_token(texts, found, reserved)


def _settle_labels(
    chosen: ChosenColumns,
    labels: Mapping[str, LabelCodes],
    rows: np.ndarray,
    owners: np.ndarray | None,
    rules: LabelRules,
    notes: list[str],
) -> tuple[dict[str, PublicLabels], np.ndarray]:
    """Return each column's public labels, of rows that have one, and (n,) which rows these are.

    What is not declared is looked at in the rows that are left, as if there were no others: a value
    may be rare in them alone, and all of theirs may be whole numbers.
    """
    for name in rules.names:  # a declaration that would do nothing
        if name not in labels:
            option = "labels" if name in rules.declared else "bins"
            raise InputError(f"`{option}`: {name!r} is no label column; add it to `attributes`")
    frame, places = chosen.frame, chosen.places
    is_typed = states_types(frame) or is_named_by_rows(frame)  # JSON has types of its own
    source = is_typed, is_of_text(frame), row_numbers(frame)
    columns = [
        LabelColumn(name, show([name], frame), places[name], codes, rows, owners, *source)
        for name, codes in labels.items()
    ]
    of_owner = [column for column in columns if column.name in rules.names]
    declared = {column.name: public_labels(column, rules, notes) for column in of_owner}
    has_all = [found.codes.numbers >= 0 for found in declared.values()]
    kept = np.flatnonzero(np.logical_and.reduce([np.ones(len(rows), bool), *has_all]))
    if not len(kept):
        raise InputError(
            f"{chosen.source}: no row has declared values of all its labels; check `labels`"
        )
    public = {
        name: replace(found, codes=replace(found.codes, numbers=found.codes.numbers[kept]))
        for name, found in declared.items()  # all declared values stay
    }
    for column in columns:
        if column.name not in rules.names:
            column = column.of_rows(kept)
            codes = whole_numbers(column.codes, chosen.frame[column.name])
            public[column.name] = public_labels(replace(column, codes=codes), rules, notes)
    return public, kept


def _schema_of(
    chosen: ChosenColumns,
    labels: Mapping[str, LabelCodes],
    public: Mapping[str, PublicLabels],
    rules: LabelRules | None,
) -> Schema:
    """Return the schema of records: what of a private table's shape is released.

    Args:
        chosen: their columns.
        labels: of each attribute, row by row.
        public: the same with what is declared. Empty: nothing of these rows is published.
        rules: which values are public.

    Raises:
        InputError: a column has one value, or too many.
    """
    frame, attributes = chosen.frame, []
    for name in chosen.attributes:
        found = labels[name]
        if name in public and public[name].whose in (OWNER, PROMPT):
            values = tuple(found.values)
            is_binned = rules is not None and name in rules.bins
            plain = str(pd.Series(values).dtype)
            dtype = plain if is_binned else _dtype_name(frame, name, values)
        else:
            every = np.arange(len(found.numbers))
            check_number_of_values(found.of_rows(every), chosen.places[name], name)
            distinct = {found.values[number] for number in np.unique(found.numbers).tolist()}
            is_ordered = _is_ordered(frame[name])
            order = frame[name].cat.categories.tolist() if is_ordered else sorted(distinct)
            values = tuple(value for value in order if value in distinct)
            dtype = _dtype_name(frame, name, values)
        attributes.append(Attribute(name, dtype, values))
    names = chosen.names  # in JSONL single rows decide the order of the table's columns
    if not is_named_by_rows(frame):
        names = [str(name) for name in frame.columns if name in chosen.names]
    text_dtype = _dtype_name(frame, chosen.text, [""])
    return Schema(chosen.text, text_dtype, tuple(attributes), tuple(names))


def _dtype_name(frame: pd.DataFrame, name: str, values: Sequence[LabelValue]) -> str:
    """Return the dtype of a twin's column: as stated, or what the public values alone have."""
    if _is_ordered(frame[name]):
        return ORDERED
    stated, plain = stated_dtype(frame, name), str(pd.Series(list(values)).dtype)
    if stated is None or stated.startswith(_CONVERTED) or (stated == "object" and plain != "str"):
        return plain
    return stated


def _is_ordered(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype) and bool(column.dtype.ordered)
