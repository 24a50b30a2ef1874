"""A private table as records: texts, label combinations and the schema; and a twin's table again.

Everything wrong with a table is found here, before any model is loaded, and said in one line that
names file, column and row but holds no cell. Knows nothing of tokens, prompts or privacy budgets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from twinset.config import RunConfig
from twinset.data.columns import (
    LabelCodes,
    check_table,
    choose_columns,
    has_text,
    is_partial,
    label_codes,
    show,
    show_unchosen,
    whole,
    with_joined_text,
)
from twinset.data.formats import (
    is_named_by_rows,
    is_of_text,
    read_frame,
    reading_notes,
    row_name,
    row_numbers,
    stated_dtype,
    states_types,
)
from twinset.data.label_column import LabelColumn, check_number_of_values
from twinset.data.label_rules import LabelRules
from twinset.data.label_values import OWNER, PROMPT, PublicLabels, public_labels
from twinset.data.lazy_columns import Labels, Texts, some_at_once
from twinset.data.schema import CONTROL, ORDERED, Attribute, Combination, LabelValue, Schema
from twinset.data.text_files import Layout
from twinset.errors import InputError
from twinset.privacy.mechanism.units import Units

LOST = "\ufffd"  # the character that stands for one
_LOST = f"{LOST} for characters that were lost"
FEW = 20  # one row in so many may lack something, and is left out

_CONVERTED = ("date", "time", "period", "decimal", "duration")  # dtypes whose values are changed
_HARMLESS = bytes(byte for byte in range(256) if not CONTROL.search(chr(byte)))


@dataclass(frozen=True)
class Records:
    """Texts and their labels, row by row.

    Args:
        texts: one a row.
        labels: one a row; a tuple is in the order of `schema.attributes`.
        schema: of the table.
        owners: (N,) number of each row's owner; None: each row is its own.
        whose: by attribute, who says what values it has; else the table does.
    """

    texts: Sequence[str]
    labels: Sequence[Combination]
    schema: Schema
    owners: np.ndarray | None = None
    whose: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    def units(self, config: RunConfig) -> Units:
        """Return whose records are protected together."""
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
        """Return what is in other rows of the table than these, and what is in these; None: none.

        Raises:
            InputError: no other row is left.
        """
        if not rows:
            return self, None
        is_held = np.isin(self.rows, rows)
        if is_held.all():
            raise InputError("`hold_out` leaves no row to train on; make it smaller, or 0")
        return self._some(~is_held), self._some(is_held)

    def _some(self, chosen: np.ndarray) -> Records:
        """Return some of the records, under the schema of all."""
        places, owners = np.flatnonzero(chosen), self.owners
        assert isinstance(self.texts, Texts) and isinstance(self.labels, Labels)
        return replace(
            self,
            texts=self.texts.some(places),
            labels=Labels(self.labels.numbers[places], self.labels.known),
            owners=None if owners is None else np.unique(owners[places], return_inverse=True)[1],
        )

    def fingerprint(self) -> str:
        """Return a hash of all cells: as private as they are."""
        found = hashlib.sha256(json.dumps([len(self), self.schema.to_dict()]).encode())
        for some in some_at_once(self.texts):
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
    """Read a table from a file, folder or hub name; see `read_frame` and `records_from_frame`."""
    frame = read_frame(path, split, layout=layout)
    return records_from_frame(
        frame,
        text,
        attributes,
        source=str(path),
        drop_empty=drop_empty,
        reserved=reserved,
        rules=rules,
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
    rules: LabelRules | None = None,
    strict: bool = False,
    folder: Path | None = None,
) -> tuple[Records, list[str]]:
    """Take texts and labels from a table, or refuse it.

    Args:
        frame: the private table.
        text: its text column, or a template that joins several; None guesses.
        attributes: its label columns; empty guesses one.
        source: what to call the table in messages.
        drop_empty: leave out rows whose text or label is missing, blank or (text) not a string,
            however many; else one row in `FEW`.
        reserved: special tokens of the tokenizer, which no text or label may contain.
        owner: column that says whose a record is; the twin does not have it.
        rules: which label values are public; None: all, for rows of which nothing is published.
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
    places = _places(frame, (text, *attributes), source)
    there = {text: has_text(frame[text], places[text])}
    as_written = rules is not None
    codes = {name: label_codes(frame[name], places[name], as_written) for name in attributes}
    there |= {name: found.has_value for name, found in codes.items()}
    most = len(frame) if drop_empty else 0 if strict else len(frame) // FEW
    rows = _kept_rows(there, frame, places, most, notes)
    if not len(rows):
        raise InputError(f"{source}: no row has both a text and its labels; fill them in")
    labels = {name: whole(found.of_rows(rows), frame[name]) for name, found in codes.items()}
    owners = None if owner is None else _owners(frame, owner, (text, *attributes), rows, source)
    public: dict[str, PublicLabels] = {}
    if rules is not None:
        columns = [_label_column(frame, n, labels[n], places[n], rows, owners) for n in attributes]
        public, kept = _settled(columns, rules, source, notes, frame)
        labels = {name: found.codes for name, found in public.items()}
        rows, owners = rows[kept], None if owners is None else owners[kept]
    texts = Texts(frame[text], None if len(rows) == len(frame) else rows)
    texts = texts if strict else _mended(texts, notes)
    _check_characters(frame, texts, labels, places, _has_control, "a control character")
    if strict:
        _check_characters(frame, texts, labels, places, _has_lost, _LOST)
    elif lost := len(texts.rows_where(_has_lost)):
        hold = f"{lost} texts hold" if lost > 1 else "1 text holds"
        notes.append(f"{hold} {_LOST}, and the twin may too (`strict` refuses them)")
    _check_reserved(frame, texts, labels, places, reserved)
    if dropped := [str(name) for name in frame.columns if name not in places]:
        them = "them" if len(dropped) > 1 else "it"
        notes.append(f"leaving out {show_unchosen(dropped, frame)}: the twin will not have {them}")
    if partial := [name for name in (text, *attributes) if is_partial(name, frame)]:
        notes.append(f"not every row has {show(partial, frame)}: to name it makes its name public")
    schema = Schema(
        text=text,
        text_dtype=_dtype_name(frame, text, [""]),
        attributes=tuple(
            _attribute(frame, n, labels[n], places[n], public.get(n), rules) for n in attributes
        ),
        columns=_order(frame, (text, *attributes)),
    )
    _note_duplicates(texts, owner, notes)
    whose = {name: found.whose for name, found in public.items()}
    return Records(texts, _combined(labels, schema), schema, owners, whose), notes


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
    _check_reserved(frame, texts, found, _places(frame, (schema.text, *found), source), reserved)


def _places(frame: pd.DataFrame, names: Sequence[str], source: str) -> dict[str, str]:
    """Return what to call columns in messages."""
    return {name: f"{source}: {show([name], frame)}" for name in names}


def _label_column(
    frame: pd.DataFrame,
    name: str,
    codes: LabelCodes,
    place: str,
    rows: np.ndarray,
    owners: np.ndarray | None,
) -> LabelColumn:
    is_typed = states_types(frame) or is_named_by_rows(frame)
    source = is_typed, is_of_text(frame), row_numbers(frame)
    return LabelColumn(name, show([name], frame), place, codes, rows, owners, *source)


def _settled(
    columns: Sequence[LabelColumn],
    rules: LabelRules,
    source: str,
    notes: list[str],
    frame: pd.DataFrame,
) -> tuple[dict[str, PublicLabels], np.ndarray]:
    """Return each column's public labels, of rows that have one, and (n,) which rows these are.

    What is not declared is looked at in the rows that are left, as if there were no others: a value
    may be rare in them alone, and all of theirs may be whole numbers.
    """
    rules.check_names([column.name for column in columns])
    of_owner = [column for column in columns if column.name in rules.names]
    declared = {column.name: public_labels(column, rules, notes) for column in of_owner}
    has_all = [found.codes.has_value for found in declared.values()]
    kept = np.flatnonzero(np.logical_and.reduce([np.ones(len(columns[0].rows), bool), *has_all]))
    if not len(kept):
        raise InputError(f"{source}: no row has declared values of all its labels; check `labels`")
    rest = [column.of_rows(kept) for column in columns if column.name not in rules.names]
    rest = [replace(column, codes=whole(column.codes, frame[column.name])) for column in rest]
    return {name: found.of_rows(kept) for name, found in declared.items()} | {
        column.name: public_labels(column, rules, notes) for column in rest
    }, kept


def _combined(labels: dict[str, LabelCodes], schema: Schema) -> Labels:
    """Return each row's number of `schema.combinations`."""
    numbers = np.zeros(1, np.int32)
    for attribute in schema.attributes:
        found = labels[attribute.name]
        place = {value: number for number, value in enumerate(attribute.values)}
        moved = np.array([place.get(value, 0) for value in found.values], np.int32)
        numbers = numbers * len(place) + moved[found.numbers]
    return Labels(numbers, schema.combinations)


def _owners(
    frame: pd.DataFrame, owner: str, used: Sequence[str], rows: np.ndarray, source: str
) -> np.ndarray:
    """Return (N,) the number of each kept row's owner."""
    if owner not in frame.columns:
        raise InputError(f"{source}: has no column {owner!r}; check `owner`")
    if owner in used:
        raise InputError(
            f"{source}: `owner={owner!r}` is the text or a label already; name another"
        )
    cells = frame[owner] if len(rows) == len(frame) else frame[owner].iloc[rows]
    blank = [isinstance(cell, str) and not cell.strip() for cell in cells]
    missing = rows[cells.isna().to_numpy(bool) | np.array(blank, bool)]
    if len(missing):
        raise InputError(
            f"{source}: {show([owner], frame)} is missing in {len(missing)} rows, first in "
            f"{row_name(frame, missing[0])}; every record needs an owner"
        )
    return pd.factorize(cells)[0]


def _order(frame: pd.DataFrame, names: Sequence[str]) -> tuple[str, ...]:
    """Return the order of the twin's columns: the table's, unless single rows decide that."""
    if is_named_by_rows(frame):
        return tuple(names)
    return tuple(str(name) for name in frame.columns if name in names)


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


def _kept_rows(
    there: dict[str, np.ndarray],
    frame: pd.DataFrame,
    places: dict[str, str],
    most: int,
    notes: list[str],
) -> np.ndarray:
    """Return the positions of the rows that have everything; refuse if more than `most` do not."""
    total, rows = len(frame), np.flatnonzero(np.logical_and.reduce(list(there.values())))
    empty = total - len(rows)
    if empty > most:
        name = next(name for name, has_cell in there.items() if not has_cell.all())
        gaps = np.flatnonzero(~there[name])
        raise InputError(
            f"{places[name]} is missing, blank or not text in {len(gaps)} of {total} rows, first "
            f"in {row_name(frame, gaps[0])}; fill them in, or leave these rows out with "
            "`drop_empty`"
        )
    if empty:
        notes.append(f"leaving out {empty} of {total} rows: text or label missing or blank")
    return rows


def _mended(texts: Texts, notes: list[str]) -> Texts:
    """Return texts without control characters."""
    if bad := len(texts.rows_where(_has_control)):
        notes.append(
            f"removed control characters from {bad} text{'s' * (bad > 1)} (`strict` refuses them)"
        )
        return texts.mended(lambda text: CONTROL.sub("", text))
    return texts


def _check_characters(
    frame: pd.DataFrame,
    texts: Texts,
    labels: dict[str, LabelCodes],
    places: dict[str, str],
    is_bad: Callable[[str], bool],
    what: str,
) -> None:
    """Refuse texts and labels with something that is said to be `what`."""
    for name, place in places.items():
        found = labels.get(name)
        bad = texts.rows_where(is_bad) if found is None else _rows_of(found, texts.rows, is_bad)
        if len(bad):
            raise InputError(
                f"{place}, {row_name(frame, bad[0])}: contains {what}, as do {len(bad) - 1} more "
                "rows; remove it from these cells"
            )


def _check_reserved(
    frame: pd.DataFrame,
    texts: Texts,
    labels: dict[str, LabelCodes],
    places: dict[str, str],
    tokens: Sequence[str],
) -> None:
    """Refuse what a model takes for the end of a text."""
    shown = [token for token in tokens if token.strip()]

    def is_bad(cell: str) -> bool:
        return any(token in cell for token in shown)

    if shown:
        what = "a special token of the base model"
        _check_characters(frame, texts, labels, places, is_bad, what)


def _rows_of(found: LabelCodes, rows: np.ndarray, is_bad: Callable[[str], bool]) -> np.ndarray:
    """Return those of the table's rows that have a bad label."""
    bad = [n for n, value in enumerate(found.values) if isinstance(value, str) and is_bad(value)]
    return rows[np.isin(found.numbers, bad)]


def _has_lost(text: str) -> bool:
    return LOST in text


def _has_control(text: str) -> bool:
    """Return whether a text has a character of `CONTROL`, at the speed of memory."""
    try:
        return bool(text.encode().translate(None, _HARMLESS))
    except UnicodeEncodeError:  # half of a surrogate pair
        return True


def _attribute(
    frame: pd.DataFrame,
    name: str,
    found: LabelCodes,
    place: str,
    public: PublicLabels | None,
    rules: LabelRules | None,
) -> Attribute:
    """Return a label column with its public values: as declared, or those that rows have."""
    column = frame[name]
    if public is not None and public.whose in (OWNER, PROMPT):
        values = tuple(public.codes.values)
        is_binned = rules is not None and name in rules.bins
        dtype = str(pd.Series(values).dtype) if is_binned else _dtype_name(frame, name, values)
        return Attribute(name, dtype, values)
    check_number_of_values(found.of_rows(np.arange(len(found.numbers))), place, name)
    distinct = {found.values[number] for number in np.unique(found.numbers).tolist()}
    order = column.cat.categories.tolist() if _is_ordered(column) else sorted(distinct)
    values = tuple(v for v in order if v in distinct)
    return Attribute(name, _dtype_name(frame, name, values), values)


def _note_duplicates(texts: Texts, owner: str | None, notes: list[str]) -> None:
    repeats = texts.repeats()
    if repeats:
        remedy = "" if owner is not None else "; `group_size=M` states it for M rows together"
        notes.append(
            f"{repeats} rows repeat the text of an earlier row: the guarantee is for one "
            f"{'row' if owner is None else 'owner'}, and is weaker for what several say{remedy}"
        )
