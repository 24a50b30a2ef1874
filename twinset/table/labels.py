"""The labels of a column as plain values, each once, and which of them each cell is.

Messages name columns and row numbers and never hold a cell.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.table.arrow_columns import AT_ONCE, RowNumbers, blocks, numbers_of, plain_cell
from twinset.table.read import is_of_text, row_name
from twinset.table.schema import CONTROL, LabelValue, Schema
from twinset.table.templates import PromptFile, plain, worded_values


@dataclass(frozen=True)
class LabelCodes:
    """The labels of a column, a number each.

    Args:
        numbers: (N,) places in `values`; -1 where there is no label.
        values: all different, in the order in which they occur.
    """

    numbers: np.ndarray
    values: list[LabelValue]

    @property
    def has_value(self) -> np.ndarray:
        """(N,) whether there is a label."""
        return self.numbers >= 0

    def of_rows(self, rows: np.ndarray) -> LabelCodes:
        """Return the labels of some rows, which all have one, as if there had been no others.

        Args:
            rows: (n,) numbers of rows, from 0.
        """
        used, numbers = np.unique(self.numbers[rows], return_inverse=True)
        values = [self.values[number] for number in used.tolist()]
        return LabelCodes(numbers.astype(np.int32), values)


def label_codes(column: pd.Series, place: str, as_written: bool = False) -> LabelCodes:
    """Return plain Python values of one type, each once, and which of them each cell is.

    Whole floats become ints (a column of ints with a gap reaches us as floats); the schema's dtype
    makes them floats again in the twin where that is what the column holds.

    Args:
        column: of labels.
        place: what to call it in messages.
        as_written: texts of a file that states no types stay as they are, if all of them are
            numbers too: where values are declared, none may decide what another is.

    Raises:
        InputError: the cells are no labels.
    """
    numbers = np.full(len(column), -1, np.int32)
    known: dict[tuple[type, Any], int] = {}  # by its type too: 1 and True are equal
    for start, cells in enumerate(blocks(column)):
        own, values = _factorized(cells)
        if not {type(value) for value in values if value is not None} <= {str, int, float, bool}:
            raise InputError(
                f"{place} holds neither text, numbers nor booleans; write them as text"
            )
        places = [
            -1 if value is None else known.setdefault((type(value), value), len(known))
            for value in values
        ]
        numbers[start * AT_ONCE :][: len(cells)] = np.array([*places, -1], np.int32)[own]
    kinds = {kind for kind, _ in known}
    if len(kinds) > 1 and kinds != {int, float}:
        raise InputError(f"{place} mixes text, numbers or booleans; make them of one kind")
    found = _merged(LabelCodes(numbers, [value for _, value in known]), column, place)
    return found if as_written or not is_of_text(column) else as_numbers(found)


def as_numbers(found: LabelCodes) -> LabelCodes:
    """Return labels as numbers or booleans where all of their values are written as such."""
    values = numbers_of(found.values)
    return found if values is None else _whole(LabelCodes(found.numbers, values))


def _factorized(cells: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Return which value each cell is, -1 for none, and the values, None where they are blank."""
    if cells.dtype == object:  # 1 and True are equal, and a list cannot be looked up
        gaps = cells.isna()
        return np.where(gaps, -1, np.arange(len(cells))), [
            None if gap else _plain(cell)
            for cell, gap in zip(cells.tolist(), gaps.tolist(), strict=True)
        ]
    numbers, values = pd.factorize(cells)
    return numbers, [_plain(value) for value in values.tolist()]


def _merged(found: LabelCodes, column: pd.Series, place: str) -> LabelCodes:
    """Return labels of which no two are equal, whole floats as ints."""
    if float not in set(map(type, found.values)):
        return found
    for number, value in enumerate(found.values):
        if isinstance(value, float) and not math.isfinite(value):
            row = row_name(column, int((found.numbers == number).argmax()))
            raise InputError(f"{place}, {row}: the number is infinite; correct it")
    return whole(found, column)


def whole(found: LabelCodes, column: pd.Series) -> LabelCodes:
    """Return labels as ints where all of them are whole numbers; categories stay as they are."""
    return _distinct(found) if isinstance(column.dtype, pd.CategoricalDtype) else _whole(found)


def _whole(found: LabelCodes) -> LabelCodes:
    values: list[Any] = found.values
    if all(map(_is_whole, values)):
        values = [int(value) for value in values]
    return _distinct(LabelCodes(found.numbers, values))


def _distinct(found: LabelCodes) -> LabelCodes:
    """Return labels of which no two are equal."""
    places: dict[LabelValue, int] = {}
    moved = [places.setdefault(value, len(places)) for value in found.values]
    return LabelCodes(np.array([*moved, -1], np.int32)[found.numbers], list(places))


def _is_whole(value: LabelValue) -> bool:
    return type(value) is int or (isinstance(value, float) and value.is_integer())


def label_cells(column: pd.Series, place: str) -> list[LabelValue | None]:
    """Return the labels, None where there is none; see `label_codes`."""
    found = label_codes(column, place)
    known: list[LabelValue | None] = [*found.values, None]
    return [known[number] for number in found.numbers.tolist()]


def _plain(cell: Any) -> Any:
    value = plain_cell(cell)
    return None if isinstance(value, str) and not value.strip() else value


MOST_VALUES = 100


@dataclass(frozen=True)
class LabelRules:
    """What the owner says of label values.

    Args:
        declared: by attribute, all values that are public. No others enter the twin, and these do
            even where no row has them.
        bins: by attribute, rising edges that cut numbers into labels: 0, 3, 5 make "0 to 3", which
            has both its ends, and "3 to 5", which begins above 3. They are public.
        merge: take values that differ from a public one by case, blanks or one letter for that.
            Where nothing is declared, one letter counts in rare values alone.
        drop: leave out rows whose value is not declared, instead of refusing them.
        prompt: its words for values declare them, where they fit the table's.
        whose: by attribute, who declared it, where that was not the owner.

    Raises:
        InputError: they contradict each other, or declare what no column can hold.
    """

    declared: Mapping[str, Sequence[LabelValue]] = field(default_factory=dict)
    bins: Mapping[str, Sequence[float]] = field(default_factory=dict)
    merge: bool = False
    drop: bool = False
    prompt: PromptFile | None = None
    whose: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what could not be meant."""
        for option, given in (("labels", self.declared), ("bins", self.bins)):
            _check_lists(option, given)
        for name, values in self.declared.items():
            _check_values(name, values)
        for name, edges in self.bins.items():
            _check_edges(name, edges)
        if twice := self.declared.keys() & self.bins.keys():
            raise InputError(f"{min(twice)!r} has `labels` and `bins`; its bins are its labels")
        if self.drop and not self.names:
            raise InputError("`drop_undeclared` does nothing without `labels` or `bins`; give them")

    @property
    def names(self) -> list[str]:
        """The attributes that something is declared of."""
        return [*self.declared, *self.bins]

    @property
    def changes_rows(self) -> bool:
        """Whether rows may be left out, or have other labels than in the table."""
        return bool(self.bins) or self.merge or self.drop

    def settled(self, schema: Schema, whose: Mapping[str, str]) -> LabelRules:
        """Return the rules by which other rows get labels of this schema and no others."""
        declared = {a.name: a.values for a in schema.attributes if a.name not in self.bins}
        return replace(self, declared=declared, prompt=None, whose=whose)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, of all that is not the prompt's."""
        plain_values = {name: list(values) for name, values in self.declared.items()}
        edges = {name: list(numbers) for name, numbers in self.bins.items()}
        return {"declared": plain_values, "bins": edges, "merge": self.merge, "drop": self.drop}

    def check_names(self, attributes: Sequence[str]) -> None:
        """Refuse a declaration that would do nothing."""
        for name in self.names:
            if name not in attributes:
                option = "labels" if name in self.declared else "bins"
                raise InputError(f"`{option}`: {name!r} is no label column; add it to `attributes`")


def _check_lists(option: str, given: object) -> None:
    values = given.values() if isinstance(given, Mapping) else (None,)
    if not all(isinstance(each, Collection) for each in values):
        raise InputError(f"`{option}`: give a list for each column, by its name")


def _check_values(name: str, values: Sequence[LabelValue]) -> None:
    if isinstance(values, str) or not all(map(_can_be_label, values)):
        raise InputError(f"`labels`: give a list of texts, numbers or booleans for {name!r}")
    texts = [plain(value) for value in values]
    if not all(text.strip() and not CONTROL.search(text) for text in texts):
        raise InputError(f"`labels`: a value of {name!r} is blank or has a control character")
    if len(set(texts)) < len(texts) or not 2 <= len(texts) <= MOST_VALUES:
        raise InputError(f"`labels`: give 2 to {MOST_VALUES} different values for {name!r}")


def _can_be_label(value: object) -> bool:
    largest = sys.float_info.max  # a whole number may be larger, and has no end
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= largest)


def _check_edges(name: str, edges: Sequence[float]) -> None:
    are_numbers = all(_can_be_label(e) and not isinstance(e, str | bool) for e in edges)
    are_rising = are_numbers and all(a < b for a, b in pairwise(edges))
    if not are_rising or not 3 <= len(edges) <= MOST_VALUES + 1:
        raise InputError(
            f"`bins`: give 3 to {MOST_VALUES + 1} rising numbers for {name!r}, such as 0, 3, 5"
        )


# A value that fewer records hold than these is rare: to publish it tells that such a record is in
# the table. Statistical offices publish no cell of fewer than ten; below a thousand records one in
# a hundred is enough, so that the least class of a small table passes. What one record alone holds
# is rare in any table: without that record the value would not be there.
FEW, FEW_SHARE = 10, 0.01
MOST_SHOWN = 5  # row numbers
LONGEST_PROPOSAL, LONGEST_SHOWN = 200, 60  # characters of all values, and of one


@dataclass(frozen=True)
class LabelColumn:
    """A label column as it was read, of the rows that have text and labels.

    Args:
        name: of the attribute.
        shown: what to call it in messages.
        place: the same with its table.
        codes: (n,) its values, all of which occur.
        rows: (n,) their rows in the table, from 0.
        owners: (n,) number of each row's owner; None: each row is its own.
        is_typed: whether its source states types, and not the cells alone.
        is_of_text: whether numbers are texts that are written as such (CSV).
        row_numbers: what messages call rows.
    """

    name: str
    shown: str
    place: str
    codes: LabelCodes
    rows: np.ndarray
    owners: np.ndarray | None = None
    is_typed: bool = True
    is_of_text: bool = False
    row_numbers: RowNumbers = field(default_factory=RowNumbers)

    @property
    def holders(self) -> np.ndarray:
        """(K,) how many records, or owners, hold each value."""
        values, numbers = len(self.codes.values), self.codes.numbers
        if self.owners is None:
            return np.bincount(numbers, minlength=values)
        many = int(self.owners.max()) + 1
        pairs = np.unique(numbers.astype(np.int64) * many + self.owners)
        return np.bincount(pairs // many, minlength=values)

    @property
    def is_rare(self) -> np.ndarray:
        """(K,) whether so few hold a value that it would tell of them."""
        units = len(self.rows) if self.owners is None else len(np.unique(self.owners))
        rare: np.ndarray = self.holders < max(2.0, min(FEW, FEW_SHARE * units))
        return rare

    def named(self, rows: np.ndarray) -> str:
        """Name some rows of the table, from 0, as they are counted in messages."""
        names = [self.row_numbers.name(row).rpartition(" ") for row in rows[:MOST_SHOWN].tolist()]
        several = f"{names[0][0]}{'s' if len(rows) > 1 else ''}"
        more = f" and {len(rows) - MOST_SHOWN} more" if len(rows) > MOST_SHOWN else ""
        return f"{several} {', '.join(number for *_, number in names)}{more}"

    def of_rows(self, places: np.ndarray) -> LabelColumn:
        """Return the column as if it had no other rows."""
        owners = None if self.owners is None else self.owners[places]
        codes, rows = self.codes.of_rows(places), self.rows[places]
        return replace(self, codes=codes, rows=rows, owners=owners)


def check_number_of_values(codes: LabelCodes, place: str, name: str) -> None:
    """Refuse a column of one value, or of so many that they are no labels.

    Raises:
        InputError: the message holds none of them.
    """
    rows, distinct = len(codes.numbers), len(codes.values)
    if distinct == 1:
        raise InputError(
            f"{place} has one value only; an attribute needs two or more, leave it out"
        )
    if distinct > MOST_VALUES or (distinct > 2 and distinct > rows / 2):
        is_number = not isinstance(codes.values[0], str | bool)
        bins = f"cut them with {proposal('bins', name, [0, 3, 5])}" if is_number else "group them"
        raise InputError(
            f"{place} has {distinct} distinct values in {rows} rows; an attribute needs few, "
            f"repeated values, {MOST_VALUES} at most: {bins}, or choose another column with "
            "`attributes`"
        )


def proposal(option: str, name: str, values: Sequence[LabelValue]) -> str:
    """Return an option that declares values, unless there are few or it would be long.

    >>> proposal("labels", "stars", [1, 2]), proposal("labels", "stars", [])
    ("`labels={'stars': [1, 2]}`", '`labels`')
    """
    text = f"{option}={ {name: list(values)} }"
    is_fit = len(values) > 1 and len(text) <= LONGEST_PROPOSAL and "`" not in text
    return f"`{text}`" if is_fit else f"`{option}`"


def listed_values(values: Sequence[LabelValue]) -> str:
    """Name values that are public."""
    return ", ".join(repr(value)[:LONGEST_SHOWN] for value in values)


FEWER_BY = 4  # a variant has at most one record where the value that it varies has so many
SHORTEST = 4  # letters of values that one letter may tell apart: "b" and "c" are grades


def nearest(value: str, among: Sequence[str]) -> str | None:
    """Return the one value that differs by case and blanks alone, else by one letter.

    >>> nearest(" Postive", ["positive", "negative"]), nearest("1 star", ["2 stars", "3 stars"])
    ('positive', None)
    """
    own = _folded(value)
    for alike in (str.__eq__, _one_letter_apart):
        found = [other for other in among if alike(own, _folded(other))]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _folded(value: str) -> str:
    return " ".join(value.split()).casefold()


def _one_letter_apart(one: str, other: str) -> bool:
    """Return whether one letter is missing, added or another; digits tell values apart."""
    short, long = sorted((one, other), key=len)
    if len(short) < SHORTEST or len(long) - len(short) > 1:
        return False
    at = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    replaced = len(short) == len(long)
    changed = short[at : at + replaced] + long[at : at + 1]
    return changed.isalpha() and short[at + replaced :] == long[at + 1 :]


def variants(column: LabelColumn) -> dict[int, int]:
    """Return which value another is a variant of, by their places: the more frequent one."""
    values, held = column.codes.values, column.holders
    place = {value: n for n, value in enumerate(values)}
    kept: list[str] = []
    found: dict[int, int] = {}
    order = sorted(range(len(values)), key=lambda n: (-held[n], plain(values[n])))
    for n, value in ((n, values[n]) for n in order):
        if not isinstance(value, str):
            continue
        near = nearest(value, kept)
        if near is not None and (
            _folded(near) == _folded(value) or is_few(held[n], held[place[near]])
        ):
            found[n] = place[near]
        else:
            kept.append(value)
    return found


def is_few(count: int, other: int) -> bool:
    """Return whether so few records have a value that it may be a slip for another."""
    return bool(count < FEW and count * FEWER_BY <= other)


# who says what values there are; where the table does, its variants may be merged by their numbers
OWNER, PROMPT, TABLE, MERGED = "owner", "prompt", "table", "table, merged"

MANY_NUMBERS = 12  # from so many different ones on bins are offered
_DROP = "`drop_undeclared=True`"
_MERGE = "merge what differs by case, blanks or a letter with `merge_labels=True`, "


@dataclass(frozen=True)
class PublicLabels:
    """The labels of a column once it is settled which are public.

    Args:
        codes: (n,) their values are all that are public; -1: the row is left out.
        whose: who says what values there are.
    """

    codes: LabelCodes
    whose: str

    def of_rows(self, places: np.ndarray) -> PublicLabels:
        """Return the same of some rows; all values stay."""
        return replace(self, codes=LabelCodes(self.codes.numbers[places], self.codes.values))


def public_labels(column: LabelColumn, rules: LabelRules, notes: list[str]) -> PublicLabels:
    """Settle which values of a column are public, and which of them each row has.

    Args:
        column: as it was read.
        rules: of the owner.
        notes: for the owner; the values that become public are among them, and no others.

    Raises:
        InputError: a row's value is not declared, or nothing is and a value is rare.
    """
    name, found = column.name, column.codes.values
    if name in rules.bins:
        edges = rules.bins[name]
        places = [_bin_of(value, edges) for value in found]
        return PublicLabels(_as(column, bin_names(edges), places, "bins", rules, notes), OWNER)
    if name in rules.declared:
        values = _typed(rules.declared[name], column)
        codes = _as(column, values, _places(found, values, rules.merge), "labels", rules, notes)
        return PublicLabels(codes, rules.whose.get(name, OWNER))
    if worded := _worded(column, rules.prompt):
        values = _typed(worded, column)
        codes = _as(column, values, _places(found, values, False), "prompt", rules, notes)
        return PublicLabels(codes, PROMPT)
    return _from_table(column, rules.merge, notes)


def bin_names(edges: Sequence[float]) -> list[LabelValue]:
    """Return what the bins between edges are called: spreadsheets take "3-5" for a date.

    >>> bin_names([0, 2.5, 5])
    ['0 to 2.5', '2.5 to 5']
    """
    return [f"{plain(a)} to {plain(b)}" for a, b in pairwise(edges)]


def _bin_of(value: LabelValue, edges: Sequence[float]) -> int:
    number = _number(plain(value))
    if number is None or not edges[0] <= number <= edges[-1]:
        return -1
    return max(0, bisect_left(edges, number) - 1)


def _worded(column: LabelColumn, prompt: PromptFile | None) -> tuple[str, ...] | None:
    """Return the values that the prompt's words declare, if they fit the column's."""
    if prompt is None:
        return None
    pairs = zip(column.codes.values, column.is_rare, strict=True)
    return worded_values(prompt, column.name, {plain(value) for value, rare in pairs if not rare})


def _as(
    column: LabelColumn,
    values: Sequence[LabelValue],
    places: Sequence[int],
    declared_by: str,
    rules: LabelRules,
    notes: list[str],
) -> LabelCodes:
    """Return the labels as places of public values.

    Args:
        column: as it was read.
        values: all that are public.
        places: of `values`, for each value that the column has; -1: none of them.
        declared_by: the option that says so.
        rules: of the owner.
        notes: for the owner.
    """
    numbers = np.array(places, np.int32)[column.codes.numbers]
    out = numbers < 0
    # which words are meant follows from the table: where they left rows out, so would a record
    drops = rules.drop and declared_by != "prompt"
    if out.any() and (not drops or out.all()):
        raise InputError(_undeclared(column, out, declared_by, rules))
    if out.any():
        notes.append(
            f"leaving out {out.sum()} of {len(out)} rows, whose {column.shown} has no value that "
            f"`{declared_by}` declares"
        )
    if declared_by == "labels" and rules.merge:
        _note_merged(column, [values[place] if place >= 0 else None for place in places], notes)
    used = set(np.unique(numbers).tolist())
    if unused := [value for number, value in enumerate(values) if number not in used]:
        notes.append(
            f"no row has {listed_values(unused)} of {column.shown}, which `{declared_by}` "
            "declares: the twin may have rows of it, as how many there are is counted with noise"
        )
    return LabelCodes(numbers, list(values))


def _undeclared(column: LabelColumn, out: np.ndarray, declared_by: str, rules: LabelRules) -> str:
    found = (
        f"{column.place} has a value that `{declared_by}` does not declare in {out.sum()} of "
        f"{len(out)} rows ({column.named(column.rows[out])}); correct these cells, "
    )
    if declared_by == "prompt":
        return f"{found}or declare with `labels` what is public and leave others out with {_DROP}"
    merge = "" if rules.merge or declared_by == "bins" else _MERGE
    return f"{found}declare what is public, {merge}or leave these rows out with {_DROP}"


def _typed(values: Sequence[LabelValue], column: LabelColumn) -> list[LabelValue]:
    """Return declared values in the type that the column's values have.

    Where no source states it, it follows from the declared values alone.
    """
    kind = _kind(column)
    if kind is None:
        kind = next(k for k in (bool, float, str) if all(_read(v, k) is not None for v in values))
    made = [_read(value, kind) for value in values]
    known = [value for value in made if value is not None]
    if len(set(known)) < len(made):
        what = {bool: "booleans", float: "numbers", str: "texts"}[kind]
        raise InputError(f"`labels`: {column.shown} holds {what}; declare different {what} for it")
    if kind is not float:
        return known
    is_whole = all(float(value).is_integer() for value in known)
    return [int(value) if is_whole else float(value) for value in known]


def _kind(column: LabelColumn) -> type | None:
    if not column.is_typed:
        return None
    found = type(column.codes.values[0])
    return found if found in (bool, str) else float


def _read(value: LabelValue, kind: type) -> LabelValue | None:
    """Return a value as one of a kind; None where it is none."""
    text = plain(value)
    if kind is float:
        return _number(text)
    return text if kind is str else {"true": True, "false": False}.get(text.lower())


def _number(text: str) -> float | None:
    """Return a finite number; a whole one in all its digits, which may be more than a float has."""
    with suppress(ValueError):
        number = float(text)
        with suppress(ValueError):
            return int(text) if math.isfinite(number) else None
        return number
    return None


def _places(found: Sequence[LabelValue], values: Sequence[LabelValue], merge: bool) -> list[int]:
    """Return which of the public values each found one is, record by record alike; -1: none."""
    place = {value: number for number, value in enumerate(values)}
    kind = next((type(value) for value in values if type(value) in (bool, str)), float)
    texts = [value for value in values if isinstance(value, str)]
    places = []
    for value in found:
        read = _read(value, kind)
        near = nearest(plain(value), texts) if merge and read not in place else None
        places.append(place.get(read if near is None else near, -1))  # type: ignore[arg-type]
    return places


def _from_table(column: LabelColumn, merge: bool, notes: list[str]) -> PublicLabels:
    """Return all values as public, unless one is rare; what kind they are follows from them all."""
    if column.is_of_text:
        column = replace(column, codes=as_numbers(column.codes))
    check_number_of_values(column.codes, column.place, column.name)
    spellings, whose = variants(column), MERGED if merge else TABLE
    if merge and spellings:
        into = [spellings.get(n, n) for n in range(len(column.codes.values))]
        _note_merged(column, [column.codes.values[n] for n in into], notes)
        numbers = np.array(into, np.int32)[column.codes.numbers]
        merged = LabelCodes(numbers, column.codes.values).of_rows(np.arange(len(numbers)))
        column = replace(column, codes=merged)
        spellings = {}
    held = column.holders
    rare = set(np.flatnonzero(column.is_rare).tolist())
    rare |= {n for n, other in spellings.items() if is_few(held[n], held[other])}
    if rare:
        raise InputError(_too_rare(column, rare, bool(spellings)))
    notes.append(
        f"the values of {column.shown} become public as the table has them: "
        f"{listed_values(sorted(column.codes.values))}; `labels` declares them instead"
        f"{_or_bins(column)}"
    )
    return PublicLabels(column.codes, whose)


def _or_bins(column: LabelColumn) -> str:
    """Offer to cut many numbers into a few labels, by the list that is public anyway."""
    values = sorted(column.codes.values)
    if len(values) < MANY_NUMBERS or isinstance(values[0], str | bool):
        return ""
    edges = [values[0], values[len(values) // 2], values[-1]]
    return f", and {proposal('bins', column.name, edges)} would cut these numbers into two labels"


def _too_rare(column: LabelColumn, rare: set[int], has_variants: bool) -> str:
    """Say that values are rare, where they are, and what to do; none of them is shown."""
    values = column.codes.values
    common = sorted(value for n, value in enumerate(values) if n not in rare)
    rows = column.rows[np.isin(column.codes.numbers, list(rare))]
    who = "records" if column.owners is None else "owners"
    several = "values that too few" if len(rare) > 1 else "a value that too few"
    return (
        f"{column.place} has {several} {who} hold to become public ({column.named(rows)}); correct "
        f"these cells, {_MERGE if has_variants else ''}or declare all that is public with "
        f"{proposal('labels', column.name, common)} and leave other rows out with "
        "`drop_undeclared=True`"
    )


def _note_merged(column: LabelColumn, into: Sequence[LabelValue | None], notes: list[str]) -> None:
    """Note in which rows another value is taken for a public one."""
    codes = column.codes
    moved = [
        n
        for n, (value, other) in enumerate(zip(codes.values, into, strict=True))
        if isinstance(other, str) and value != other
    ]
    if moved:
        rows = column.rows[np.isin(codes.numbers, moved)]
        targets = sorted({str(into[n]) for n in moved})
        notes.append(
            f"merging {len(moved)} value{'s' if len(moved) > 1 else ''} of {column.shown}, in "
            f"{column.named(rows)}, into {listed_values(targets)}"
        )
