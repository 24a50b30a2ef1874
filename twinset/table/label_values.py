"""Which values of a label column are public, and what becomes of the rows that have others.

A value that a message shows here becomes public with the twin; others are known by their rows
alone. What is declared is compared record by record, so that no record decides for another; what
nobody declared follows from the table, and the ledger says so. Knows no text and no file.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from twinset.errors import InputError
from twinset.table.label_codes import LabelCodes, as_numbers
from twinset.table.label_column import (
    LabelColumn,
    check_number_of_values,
    listed_values,
    proposal,
)
from twinset.table.label_rules import LabelRules
from twinset.table.label_spelling import is_few, nearest, variants
from twinset.table.schema import LabelValue
from twinset.table.templates import PromptFile, plain, worded_values

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
