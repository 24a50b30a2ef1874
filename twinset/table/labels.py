"""Label columns: the label of each cell, which values are public, and what becomes of other rows.

A value that a message shows here becomes public with the twin. Others are known by their rows
alone. What is declared is compared record by record, so that no record decides for another. What
is not declared follows from the table, and the ledger says so. Knows no text and no file.
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
from twinset.table.arrow_columns import blocks, numbers_of, plain_cell
from twinset.table.read import TableFacts, facts_of, row_name
from twinset.table.schema import CONTROL, LabelValue, Schema
from twinset.table.templates import PromptFile, plain, worded_values

# who says what values there are; where the table does, its variants may be merged by their numbers
OWNER, PROMPT, TABLE, MERGED = "owner", "prompt", "table", "table, merged"

# A value that fewer records hold than these is rare: to publish it tells that such a record is in
# the table. Statistical offices publish no cell of fewer than ten. Below a thousand records one in
# a hundred is enough, so that the least class of a small table passes. What one record alone holds
# is rare in any table: without that record the value would not be there.
FEW, FEW_SHARE = 10, 0.01
FEWER_BY = 4  # a variant has at most one record where the value that it varies has this many
SHORTEST = 4  # letters of values that one letter may tell apart: "b" and "c" are grades
MOST_VALUES = 100
MANY_NUMBERS = 12  # different ones, from which on bins are offered
MOST_SHOWN = 5  # row numbers
LONGEST_PROPOSAL, LONGEST_SHOWN = 200, 60  # characters of all values, and of one
_DROP = "`drop_undeclared=True`"
_MERGE = "merge what differs by case, blanks or a letter with `merge_labels=True`, "


@dataclass(frozen=True)
class LabelCodes:
    """The labels of a column, a number each.

    Args:
        numbers: (N,) places in `values`; -1 where there is no label.
        values: all different, in the order in which they occur.
    """

    numbers: np.ndarray
    values: list[LabelValue]

    def of_rows(self, rows: np.ndarray) -> LabelCodes:
        """Return the labels of rows (n,), which all have one, as if there had been no others."""
        used, numbers = np.unique(self.numbers[rows], return_inverse=True)
        values = [self.values[number] for number in used.tolist()]
        return LabelCodes(numbers.astype(np.int32), values)

    def as_numbers(self) -> LabelCodes:
        """Return numbers or booleans where all values are texts that are written as such."""
        values = numbers_of(self.values)
        return self if values is None else LabelCodes(self.numbers, values).as_whole_numbers()

    def as_whole_numbers(self, column: pd.Series | None = None) -> LabelCodes:
        """Return ints where all values are whole numbers, no two of them equal.

        Categories of a column stay as they are.
        """
        values: list[Any] = self.values
        is_category = column is not None and isinstance(column.dtype, pd.CategoricalDtype)
        if not is_category and all(
            type(v) is int or (isinstance(v, float) and v.is_integer()) for v in values
        ):
            values = [int(value) for value in values]
        places: dict[LabelValue, int] = {}
        moved = [places.setdefault(value, len(places)) for value in values]
        return LabelCodes(np.array([*moved, -1], np.int32)[self.numbers], list(places))


def label_codes(column: pd.Series, place: str, as_written: bool = False) -> LabelCodes:
    """Return plain Python values of one type, each once, and which of them each cell is.

    Whole floats become ints (a column of ints with a gap reaches us as floats). The schema's dtype
    makes them floats again in the twin where that is what the column holds.

    `as_written`, texts of a file that states no types stay as they are, if all of them are numbers
    too: where values are declared, none may decide what another is.

    Raises:
        InputError: the cells are no labels.
    """
    parts, known = [np.zeros(0, np.int32)], dict[tuple[type, Any], int]()
    for cells in blocks(column):
        if cells.dtype == object:  # 1 and True are equal, and a list cannot be looked up
            own, found = np.arange(len(cells)), cells.where(cells.notna(), None).tolist()
        else:
            own, distinct = pd.factorize(cells)
            found = distinct.tolist()
        places = []
        for value in map(plain_cell, found):
            if value is None or (isinstance(value, str) and not value.strip()):
                places.append(-1)
                continue
            if type(value) not in (str, int, float, bool):
                raise InputError(
                    f"{place} holds neither text, numbers nor booleans; write them as text"
                )
            places.append(known.setdefault((type(value), value), len(known)))  # by its type too
        parts.append(np.array([*places, -1], np.int32)[own])
    kinds = {kind for kind, _ in known}
    if len(kinds) > 1 and kinds != {int, float}:
        raise InputError(f"{place} mixes text, numbers or booleans; make them of one kind")
    codes = LabelCodes(np.concatenate(parts), [value for _, value in known])
    if float in kinds:
        for number, value in enumerate(codes.values):
            if isinstance(value, float) and not math.isfinite(value):
                row = row_name(column, int((codes.numbers == number).argmax()))
                raise InputError(f"{place}, {row}: the number is infinite; correct it")
        codes = codes.as_whole_numbers(column)
    return codes if as_written or not facts_of(column).is_text else codes.as_numbers()


def label_cells(column: pd.Series, place: str) -> list[LabelValue | None]:
    """Return the labels, None where there is none. See `label_codes`."""
    found = label_codes(column, place)
    known: list[LabelValue | None] = [*found.values, None]
    return [known[number] for number in found.numbers.tolist()]


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
        largest = sys.float_info.max  # a whole number may be larger, and has no end

        def is_number(value: object) -> bool:
            return isinstance(value, int | float) and abs(value) <= largest

        for option, given in (("labels", self.declared), ("bins", self.bins)):
            lists = given.values() if isinstance(given, Mapping) else (None,)
            if not all(isinstance(each, Collection) for each in lists):
                raise InputError(f"`{option}`: give a list for each column, by its name")
        for name, values in self.declared.items():
            if isinstance(values, str) or not all(
                isinstance(v, str) or is_number(v) for v in values
            ):
                raise InputError(
                    f"`labels`: give a list of texts, numbers or booleans for {name!r}"
                )
            texts = [plain(value) for value in values]
            if not all(text.strip() and not CONTROL.search(text) for text in texts):
                raise InputError(
                    f"`labels`: a value of {name!r} is blank or has a control character"
                )
            if len(set(texts)) < len(texts) or not 2 <= len(texts) <= MOST_VALUES:
                raise InputError(f"`labels`: give 2 to {MOST_VALUES} different values for {name!r}")
        for name, edges in self.bins.items():
            are_numbers = all(is_number(edge) and not isinstance(edge, bool) for edge in edges)
            are_rising = are_numbers and all(a < b for a, b in pairwise(edges))
            if not are_rising or not 3 <= len(edges) <= MOST_VALUES + 1:
                raise InputError(
                    f"`bins`: give 3 to {MOST_VALUES + 1} rising numbers for {name!r}, such as "
                    "0, 3, 5"
                )
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


@dataclass(frozen=True)
class LabelColumn:
    """A label column of the rows that have text and labels, as it was read or as it is settled.

    Args:
        name: of the attribute.
        shown: what to call it in messages.
        place: the same with its table.
        codes: (n,) its values, all of which occur. Settled: all that are public; -1: left out.
        rows: (n,) their rows in the table, from 0.
        owners: (n,) number of each row's owner. None: each row is its own.
        facts: what the table states.
        whose: who says what values there are. None: it is not settled.
    """

    name: str
    shown: str
    place: str
    codes: LabelCodes
    rows: np.ndarray
    owners: np.ndarray | None = None
    facts: TableFacts = field(default_factory=TableFacts)
    whose: str | None = None

    def holders(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (K,) how many records, or owners, hold each value, and whether that is rare.

        A value is rare where so few hold it that it would tell of them.
        """
        numbers, units = self.codes.numbers, len(self.rows)
        if self.owners is not None:
            # an owner counts once for each value: pairs of both, each a number of 64 bits
            many, units = int(self.owners.max()) + 1, len(np.unique(self.owners))
            numbers = np.unique(numbers.astype(np.int64) * many + self.owners) // many
        held = np.bincount(numbers, minlength=len(self.codes.values))
        return held, held < max(2.0, min(FEW, FEW_SHARE * units))

    def name_rows(self, which: np.ndarray) -> str:
        """Name those of its rows that are marked, as they are counted in messages."""
        rows = self.rows[which]
        names = [self.facts.rows.name(row).rpartition(" ") for row in rows[:MOST_SHOWN].tolist()]
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


def _listed(values: Sequence[LabelValue]) -> str:
    """Name values that are public."""
    return ", ".join(repr(value)[:LONGEST_SHOWN] for value in values)


def _folded(value: str) -> str:
    return " ".join(value.split()).casefold()


def nearest(value: str, among: Sequence[str]) -> str | None:
    """Return the one value that differs by case and blanks alone, else by one letter.

    >>> nearest(" Postive", ["positive", "negative"]), nearest("1 star", ["2 stars", "3 stars"])
    ('positive', None)
    """

    def one_letter_apart(one: str, other: str) -> bool:
        """Return whether one letter is missing, added or another. Digits tell values apart."""
        short, long = sorted((one, other), key=len)
        if len(short) < SHORTEST or len(long) - len(short) > 1:
            return False
        pairs = enumerate(zip(short, long, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), len(short))
        replaced = len(short) == len(long)
        changed = short[at : at + replaced] + long[at : at + 1]
        return changed.isalpha() and short[at + replaced :] == long[at + 1 :]

    own = _folded(value)
    for alike in (str.__eq__, one_letter_apart):
        found = [other for other in among if alike(own, _folded(other))]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def public_labels(column: LabelColumn, rules: LabelRules, notes: list[str]) -> LabelColumn:
    """Settle which values of a column are public, and which of them each row has.

    The values that become public are among the notes for the owner, and no others.

    Raises:
        InputError: a row's value is not declared, or nothing is and a value is rare.
    """
    name, found = column.name, column.codes.values
    if name in rules.bins:
        edges, places = rules.bins[name], []
        # what bins are called: spreadsheets take "3-5" for a date
        bins: list[LabelValue] = [f"{plain(a)} to {plain(b)}" for a, b in pairwise(edges)]
        for value in found:
            number = _read(value, float)
            is_in = number is not None and edges[0] <= number <= edges[-1]
            # the first bin has both its ends
            places.append(max(0, bisect_left(edges, number) - 1) if is_in else -1)
        return _declare(column, bins, places, "bins", rules, notes)
    if name in rules.declared:
        values = _as_in_column(rules.declared[name], column)
        places = _places(found, values, rules.merge)
        settled = _declare(column, values, places, "labels", rules, notes)
        return replace(settled, whose=rules.whose.get(name, OWNER))
    if rules.prompt is not None:
        pairs = zip(found, column.holders()[1], strict=True)
        common = {plain(value) for value, is_rare in pairs if not is_rare}
        if worded := worded_values(rules.prompt, name, common):
            values = _as_in_column(worded, column)
            places = _places(found, values, False)
            return _declare(column, values, places, "prompt", rules, notes)
    return _take_from_table(column, rules.merge, notes)


def _declare(
    column: LabelColumn,
    values: Sequence[LabelValue],
    places: Sequence[int],
    declared_by: str,
    rules: LabelRules,
    notes: list[str],
) -> LabelColumn:
    """Return a column whose labels are places of public values.

    `places` says which of `values` each value is that the column has; -1: none of them.
    """
    numbers = np.array(places, np.int32)[column.codes.numbers]
    out = numbers < 0
    # which words are meant follows from the table: where they left rows out, so would a record
    drops = rules.drop and declared_by != "prompt"
    if out.any() and (not drops or out.all()):
        remedy = f"or declare with `labels` what is public and leave others out with {_DROP}"
        if declared_by != "prompt":
            merge = "" if rules.merge or declared_by == "bins" else _MERGE
            remedy = f"declare what is public, {merge}or leave these rows out with {_DROP}"
        raise InputError(
            f"{column.place} has a value that `{declared_by}` does not declare in {out.sum()} of "
            f"{len(out)} rows ({column.name_rows(out)}); correct these cells, {remedy}"
        )
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
            f"no row has {_listed(unused)} of {column.shown}, which `{declared_by}` "
            "declares: the twin may have rows of it, as how many there are is counted with noise"
        )
    whose = PROMPT if declared_by == "prompt" else OWNER
    return replace(column, codes=LabelCodes(numbers, list(values)), whose=whose)


def _as_in_column(values: Sequence[LabelValue], column: LabelColumn) -> list[LabelValue]:
    """Return declared values in the type that the column's values have.

    Where no source states it, it follows from the declared values alone.
    """
    kind: type = type(column.codes.values[0])
    if not column.facts.states_types and not column.facts.is_named_by_rows:  # JSON has types
        kind = next(k for k in (bool, float, str) if all(_read(v, k) is not None for v in values))
    elif kind not in (bool, str):
        kind = float
    known = [value for value in (_read(each, kind) for each in values) if value is not None]
    if len(set(known)) < len(values):
        what = {bool: "booleans", float: "numbers", str: "texts"}[kind]
        raise InputError(f"`labels`: {column.shown} holds {what}; declare different {what} for it")
    if kind is not float:
        return known
    is_whole = all(float(value).is_integer() for value in known)
    return [int(value) if is_whole else float(value) for value in known]


def _read(value: LabelValue, kind: type) -> Any:
    """Return a value as one of a kind. None where it is none, or no finite number."""
    text = plain(value)
    if kind is not float:
        return text if kind is str else {"true": True, "false": False}.get(text.lower())
    try:
        number = float(text)
        if not math.isfinite(number):
            return None
    except ValueError:
        return None
    with suppress(ValueError):
        return int(text)  # in all its digits, which may be more than a float has
    return number


def _places(found: Sequence[LabelValue], values: Sequence[LabelValue], merge: bool) -> list[int]:
    """Return which of the public values each found one is, record by record alike; -1: none."""
    place = {value: number for number, value in enumerate(values)}
    kind = next((type(value) for value in values if type(value) in (bool, str)), float)
    texts = [value for value in values if isinstance(value, str)]
    places = []
    for value in found:
        read = _read(value, kind)
        near = nearest(plain(value), texts) if merge and read not in place else None
        places.append(place.get(read if near is None else near, -1))
    return places


def _take_from_table(column: LabelColumn, merge: bool, notes: list[str]) -> LabelColumn:
    """Return all values as public, unless one is rare. What kind they are follows from them all."""
    if column.facts.is_text:
        column = replace(column, codes=column.codes.as_numbers())
    check_number_of_values(column.codes, column.place, column.name)
    values, (held, is_rare) = column.codes.values, column.holders()
    place = {value: n for n, value in enumerate(values)}

    def is_slip(variant: int, of: int) -> bool:
        return bool(held[variant] < FEW and held[variant] * FEWER_BY <= held[of])

    kept: list[str] = []
    variants: dict[int, int] = {}  # which value another is a variant of: the more frequent one
    for n in sorted(range(len(values)), key=lambda n: (-held[n], plain(values[n]))):
        value = values[n]
        if isinstance(value, str):
            near = nearest(value, kept)
            if near is not None and (_folded(near) == _folded(value) or is_slip(n, place[near])):
                variants[n] = place[near]
            else:
                kept.append(value)
    if merge and variants:
        into = [variants.get(n, n) for n in range(len(values))]
        _note_merged(column, [values[n] for n in into], notes)
        numbers = np.array(into, np.int32)[column.codes.numbers]
        merged = LabelCodes(numbers, values).of_rows(np.arange(len(numbers)))
        column, variants = replace(column, codes=merged), {}
        values, (_, is_rare) = merged.values, column.holders()
    rare = set(np.flatnonzero(is_rare).tolist())
    rare |= {n for n, other in variants.items() if is_slip(n, other)}
    if rare:  # where they are and what to do is said, but none of them is shown
        common = sorted(value for n, value in enumerate(values) if n not in rare)
        rows = column.name_rows(np.isin(column.codes.numbers, list(rare)))
        who = "records" if column.owners is None else "owners"
        several = "values that too few" if len(rare) > 1 else "a value that too few"
        raise InputError(
            f"{column.place} has {several} {who} hold to become public ({rows}); correct these "
            f"cells, {_MERGE if variants else ''}or declare all that is public with "
            f"{proposal('labels', column.name, common)} and leave other rows out with {_DROP}"
        )
    ordered, bins = sorted(values), ""  # the order in the table would tell of its first rows
    if len(ordered) >= MANY_NUMBERS and not isinstance(ordered[0], str | bool):
        edges = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
        offer = proposal("bins", column.name, edges)
        bins = f", and {offer} would cut these numbers into two labels"
    notes.append(
        f"the values of {column.shown} become public as the table has them: "
        f"{_listed(ordered)}; `labels` declares them instead{bins}"
    )
    return replace(column, whose=MERGED if merge else TABLE)


def _note_merged(column: LabelColumn, into: Sequence[LabelValue | None], notes: list[str]) -> None:
    """Note in which rows another value is taken for a public one."""
    pairs = zip(column.codes.values, into, strict=True)
    moved = [n for n, (value, to) in enumerate(pairs) if isinstance(to, str) and value != to]
    if moved:
        rows = column.name_rows(np.isin(column.codes.numbers, moved))
        targets = sorted({str(into[n]) for n in moved})
        notes.append(
            f"merging {len(moved)} value{'s' if len(moved) > 1 else ''} of {column.shown}, in "
            f"{rows}, into {_listed(targets)}"
        )
