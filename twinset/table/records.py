"""A private table as records: texts, label combinations and the schema.

Everything wrong with a table is found here, before any model is loaded, and said in one line that
names file, column and row but holds no cell. Knows nothing of tokens, prompts or privacy budgets.

Nothing of the schema may depend on a single record: dtypes are stated by the table, or follow from
the public values alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.privacy.mechanism.units import Units
from twinset.table.arrow_columns import Labels, Texts, some_at_once
from twinset.table.columns import (
    check_table,
    choose_columns,
    has_text,
    is_partial,
    show,
    show_unchosen,
    with_joined_text,
)
from twinset.table.labels import (
    OWNER,
    PROMPT,
    LabelCodes,
    LabelColumn,
    LabelRules,
    check_number_of_values,
    label_codes,
    public_labels,
)
from twinset.table.read import facts_of, read_frame, reading_notes, row_name
from twinset.table.schema import CONTROL, ORDERED, Attribute, Combination, LabelValue, Schema
from twinset.table.text_files import Layout

FEW = 20  # one row in this many may lack something, and is left out
LOST = "\ufffd"  # the character that stands for one
_LOST = f"{LOST} for characters that were lost"
_HARMLESS = bytes(byte for byte in range(256) if not CONTROL.search(chr(byte)))
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

    def rows_of(self, units: np.ndarray) -> list[int]:
        """Return the table's rows, from 0, that have some units, by the numbers of these."""
        assert isinstance(self.texts, Texts)
        chosen = units if self.owners is None else np.flatnonzero(np.isin(self.owners, units))
        rows: list[int] = self.texts.rows[chosen].tolist()
        return rows

    def split(self, rows: Sequence[int]) -> tuple[Records, Records | None]:
        """Return what is in other rows of the table than these, and what is in these. None: none.

        Both parts keep the schema of all records.

        Raises:
            InputError: no other row is left.
        """
        if not rows:
            return self, None
        texts, labels = self.texts, self.labels
        assert isinstance(texts, Texts) and isinstance(labels, Labels)
        is_held = np.isin(texts.rows, rows)
        if is_held.all():
            raise InputError("`hold_out` leaves no row to train on; make it smaller, or 0")
        parts = []
        for places in (np.flatnonzero(~is_held), np.flatnonzero(is_held)):
            owners = None if self.owners is None else self.owners[places]
            part = replace(
                self,
                texts=Texts(texts.column, texts.rows[places], texts.mend),
                labels=Labels(labels.numbers[places], labels.known),
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
    text, attributes = choose_columns(frame, text, attributes, source, notes)
    names = [text, *attributes]
    places = {name: f"{source}: {show([name], frame)}" for name in names}  # in messages
    codes = {
        name: label_codes(frame[name], places[name], as_written=rules is not None)
        for name in attributes
    }

    # the rows that have a text and all labels
    filled = {text: has_text(frame[text], places[text])}  # (N,) each
    filled |= {name: found.numbers >= 0 for name, found in codes.items()}
    rows = np.flatnonzero(np.logical_and.reduce(list(filled.values())))
    total, empty = len(frame), len(frame) - len(rows)
    if empty > (total if drop_empty else 0 if strict else total // FEW):
        name = next(name for name, has_cell in filled.items() if not has_cell.all())
        gaps = np.flatnonzero(~filled[name])
        raise InputError(
            f"{places[name]} is missing, blank or not text in {len(gaps)} of {total} rows, first "
            f"in {row_name(frame, gaps[0])}; fill them in, or leave these rows out with "
            "`drop_empty`"
        )
    if empty:
        notes.append(f"leaving out {empty} of {total} rows: text or label missing or blank")
    if not len(rows):
        raise InputError(f"{source}: no row has both a text and its labels; fill them in")

    owners = None if owner is None else _number_owners(frame, owner, names, rows, source)
    columns = [
        LabelColumn(
            name,
            show([name], frame),
            places[name],
            codes[name].of_rows(rows).as_whole_numbers(frame[name]),
            rows,
            owners,
            facts_of(frame),
        )
        for name in attributes
    ]
    if rules is not None:
        columns, kept = _settle_labels(columns, frame, rules, source, notes)
        rows, owners = rows[kept], None if owners is None else owners[kept]

    # characters and tokens that no model may see
    texts, labels = Texts(frame[text], rows), {column.name: column.codes for column in columns}
    if not strict and (bad := len(texts.rows_where(_has_control))):
        notes.append(
            f"removed control characters from {bad} text{'s' * (bad > 1)} (`strict` refuses them)"
        )
        texts = Texts(frame[text], rows, lambda cell: CONTROL.sub("", cell))
    _refuse_where(frame, texts, labels, places, _has_control, "a control character")
    if strict:
        _refuse_where(frame, texts, labels, places, lambda cell: LOST in cell, _LOST)
    elif lost := len(texts.rows_where(lambda cell: LOST in cell)):
        hold = f"{lost} texts hold" if lost > 1 else "1 text holds"
        notes.append(f"{hold} {_LOST}, and the twin may too (`strict` refuses them)")
    _refuse_tokens(frame, texts, labels, places, reserved)

    if dropped := [str(name) for name in frame.columns if name not in names]:
        them = "them" if len(dropped) > 1 else "it"
        notes.append(f"leaving out {show_unchosen(dropped, frame)}: the twin will not have {them}")
    if partial := [name for name in names if is_partial(name, frame)]:
        notes.append(f"not every row has {show(partial, frame)}: to name it makes its name public")
    if repeats := texts.repeats():
        remedy = "" if owner is not None else "; `group_size=M` states it for M rows together"
        notes.append(
            f"{repeats} rows repeat the text of an earlier row: the guarantee is for one "
            f"{'row' if owner is None else 'owner'}, and is weaker for what several say{remedy}"
        )

    if not facts_of(frame).is_named_by_rows:  # in JSONL single rows decide the order of columns
        names = [str(name) for name in frame.columns if name in names]
    released = tuple(_attribute_of(column, frame[column.name], rules) for column in columns)
    # the text's dtype follows from no text: one cell that is a number must not decide it
    schema = Schema(text, _dtype_name(frame[text], [""]), released, tuple(names))
    numbers = np.zeros(1, np.int32)  # (N,) of each row's combination in `schema.combinations`
    for attribute, column in zip(released, columns, strict=True):
        place = {value: number for number, value in enumerate(attribute.values)}
        moved = np.array([place.get(value, 0) for value in column.codes.values], np.int32)
        numbers = numbers * len(place) + moved[column.codes.numbers]
    # who declared each column's values, for the ledger
    whose = {column.name: column.whose for column in columns if column.whose is not None}
    return Records(texts, Labels(numbers, schema.combinations), schema, owners, whose), notes


def _number_owners(
    frame: pd.DataFrame, owner: str, names: Sequence[str], rows: np.ndarray, source: str
) -> np.ndarray:
    """Return (n,) the number of each row's owner. `names` are those of text and labels."""
    if owner not in frame.columns:
        raise InputError(f"{source}: has no column {owner!r}; check `owner`")
    if owner in names:
        raise InputError(
            f"{source}: `owner={owner!r}` is the text or a label already; name another"
        )
    cells = frame[owner] if len(rows) == len(frame) else frame[owner].iloc[rows]
    blank = [isinstance(cell, str) and not cell.strip() for cell in cells]
    missing = rows[cells.isna().to_numpy(bool) | np.array(blank, bool)]
    if len(missing):
        raise InputError(
            f"{source}: {show([owner], frame)} is missing in {len(missing)} rows, "
            f"first in {row_name(frame, missing[0])}; every record needs an owner"
        )
    return pd.factorize(cells)[0]


def _settle_labels(
    columns: Sequence[LabelColumn],
    frame: pd.DataFrame,
    rules: LabelRules,
    source: str,
    notes: list[str],
) -> tuple[list[LabelColumn], np.ndarray]:
    """Return each column with its public labels, of rows that have one, and (n,) which these are.

    What is not declared is looked at in the rows that are left, as if there were no others: a value
    may be rare in them alone, and all of theirs may be whole numbers.
    """
    for name in rules.names:  # a declaration that would do nothing
        if name not in [column.name for column in columns]:
            option = "labels" if name in rules.declared else "bins"
            raise InputError(f"`{option}`: {name!r} is no label column; add it to `attributes`")
    declared = {c.name: public_labels(c, rules, notes) for c in columns if c.name in rules.names}
    has_all = np.ones(len(columns[0].rows), bool)
    for column in declared.values():
        has_all &= column.codes.numbers >= 0
    kept, settled = np.flatnonzero(has_all), []
    if not len(kept):
        raise InputError(f"{source}: no row has declared values of all its labels; check `labels`")
    for column in columns:
        if column.name in declared:  # all declared values stay
            found = declared[column.name]
            settled.append(
                replace(found, codes=replace(found.codes, numbers=found.codes.numbers[kept]))
            )
        else:
            column = column.of_rows(kept)
            codes = column.codes.as_whole_numbers(frame[column.name])
            settled.append(public_labels(replace(column, codes=codes), rules, notes))
    return settled, kept


def check_reserved(
    records: Records, frame: pd.DataFrame, reserved: Sequence[str], source: str = "table"
) -> None:
    """Refuse special tokens of a tokenizer, as `records_from_frame` does if it is given them."""
    schema, texts, labels = records.schema, records.texts, records.labels
    assert isinstance(texts, Texts) and isinstance(labels, Labels)
    found = {
        attribute.name: LabelCodes(labels.numbers, [known[place] for known in labels.known])
        for place, attribute in enumerate(schema.attributes)
    }
    places = {name: f"{source}: {show([name], frame)}" for name in (schema.text, *found)}
    _refuse_tokens(frame, texts, found, places, reserved)


def _refuse_tokens(
    frame: pd.DataFrame,
    texts: Texts,
    labels: Mapping[str, LabelCodes],
    places: Mapping[str, str],
    tokens: Sequence[str],
) -> None:
    """Refuse what a model takes for the end of a text."""
    if filled := [token for token in tokens if token.strip()]:
        what = "a special token of the base model"
        _refuse_where(frame, texts, labels, places, lambda c: any(t in c for t in filled), what)


def _refuse_where(
    frame: pd.DataFrame,
    texts: Texts,
    labels: Mapping[str, LabelCodes],
    places: Mapping[str, str],
    is_bad: Callable[[str], bool],
    what: str,
) -> None:
    """Refuse texts and labels with something that is said to be `what`."""
    for name, place in places.items():
        if name in labels:
            pairs = enumerate(labels[name].values)
            numbers = [n for n, value in pairs if isinstance(value, str) and is_bad(value)]
            bad = texts.rows[np.isin(labels[name].numbers, numbers)].tolist()
        else:
            bad = texts.rows_where(is_bad)
        if bad:
            raise InputError(
                f"{place}, {row_name(frame, bad[0])}: contains {what}, as do "
                f"{len(bad) - 1} more rows; remove it from these cells"
            )


def _has_control(text: str) -> bool:
    """Return whether a text has a character of `CONTROL`, at the speed of memory."""
    try:
        return bool(text.encode().translate(None, _HARMLESS))
    except UnicodeEncodeError:  # half of a surrogate pair
        return True


def _attribute_of(column: LabelColumn, cells: pd.Series, rules: LabelRules | None) -> Attribute:
    """Return what of a label column is released: its values, their order and its dtype.

    `column` has the rows that are taken, `cells` are all of the table's.
    """
    values = tuple(column.codes.values)
    if column.whose not in (OWNER, PROMPT):
        found = column.codes.of_rows(np.arange(len(column.codes.numbers)))
        check_number_of_values(found, column.place, column.name)
        is_ordered = _is_ordered(cells)
        order = cells.cat.categories.tolist() if is_ordered else sorted(found.values)
        values = tuple(value for value in order if value in set(found.values))
    elif rules is not None and column.name in rules.bins:
        return Attribute(column.name, str(pd.Series(values).dtype), values)
    return Attribute(column.name, _dtype_name(cells, values), values)


def _dtype_name(column: pd.Series, values: Sequence[LabelValue]) -> str:
    """Return the dtype of a twin's column: as stated, or what the public values alone have."""
    if _is_ordered(column):
        return ORDERED
    stated, plain = facts_of(column).dtype(column), str(pd.Series(list(values)).dtype)
    if stated is None or stated.startswith(_CONVERTED) or (stated == "object" and plain != "str"):
        return plain
    return stated


def _is_ordered(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype) and bool(column.dtype.ordered)
