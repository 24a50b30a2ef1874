"""Label columns: which values are public, and what happens to other rows.

A value that a message shows here becomes public with the twin. Other values are named only by their
rows. Declared values are compared record by record, so that no record decides for another.
Undeclared values are selected by noisy counts and compared in the same way. This module knows no
text, no file and no noise.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from twinset.errors import InputError
from twinset.table.cells import loosely, read_number
from twinset.table.columns import (
    LabelCodes,
    TableFacts,
    codes_of,
    facts_of,
    label_codes,
    label_value,
    no_dtype_holds,
    parse_number,
    plain_cell,
    read_text,
    widened,
)
from twinset.table.schema import CONTROL, ORDERED, Attribute, LabelValue, Schema, plain
from twinset.table.templates import PromptFile, fitting_words

# Who says which values there are: the owner, a prompt's words, noisy counts, or the table.
OWNER, PROMPT, SELECTED, TABLE = "owner", "prompt", "selected", "table"

SHORTEST = 4  # letters of values that one letter may tell apart: "b" and "c" are grades
MOST_VALUES = 100
MOST_SHOWN = 5  # row numbers
_CONVERTED = ("date", "time", "period", "decimal", "duration")  # dtypes with modified values
_DROP = "`drop_undeclared=True`"
_MERGE = "merge what differs by case, blanks or a letter with `merge_labels=True`, "


@dataclass(frozen=True)
class LabelRules:
    """The owner's rules for label values."""

    # By attribute, all values that are public. No others enter the twin, and these do even where
    # no row has them.
    declared: Mapping[str, Sequence[LabelValue]] = field(default_factory=dict)
    # By attribute, rising edges that cut numbers into labels: 0, 3, 5 make "0 to 3", which has both
    # its ends, and "3 to 5", which begins above 3. They are public.
    bins: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # Take values that differ from a public one by case, blanks or one letter for that. Of values
    # that are selected, those that differ by case and blanks alone become the most frequent one.
    merge: bool = False
    drop: bool = False  # leave out rows with an undeclared value, instead of refusing them
    prompt: PromptFile | None = None  # its words for values declare them, if they fit
    whose: Mapping[str, str] = field(default_factory=dict)  # who declared, if not the owner

    def __post_init__(self) -> None:
        """Refuse contradictory rules."""
        largest = sys.float_info.max  # a whole number may be larger, and has no end
        for option, given in (("labels", self.declared), ("bins", self.bins)):
            lists = given.values() if isinstance(given, Mapping) else (None,)
            if not all(isinstance(each, Collection) for each in lists):
                raise InputError(f"`{option}`: must be a list of values for each column name")
            # of an array, an index or a list of numpy's numbers too
            plain_values = {
                n: each if isinstance(each, str) else [plain_cell(v) for v in each]
                for n, each in given.items()
            }
            object.__setattr__(self, "declared" if option == "labels" else option, plain_values)
        for name, values in self.declared.items():
            are_plain = not isinstance(values, str) and all(
                isinstance(v, str) or (isinstance(v, int | float) and abs(v) <= largest)
                for v in values
            )
            texts = list(map(plain, values)) if are_plain else []
            are_clean = all(text.strip() and not CONTROL.search(text) for text in texts)
            if not (are_clean and 2 <= len(set(texts)) == len(texts) <= MOST_VALUES):
                raise InputError(
                    f"`labels`: give 2 to {MOST_VALUES} different values for {name!r}. Each is "
                    "text, a number or a boolean, not blank and without control characters."
                )
        for name, edges in self.bins.items():
            are_numbers = all(type(e) in (int, float) and abs(e) <= largest for e in edges)
            are_rising = are_numbers and all(a < b for a, b in pairwise(edges))
            if not are_rising or not 3 <= len(edges) <= MOST_VALUES + 1:
                raise InputError(
                    f"`bins`: give 3 to {MOST_VALUES + 1} rising numbers for {name!r}, such as "
                    "0, 3, 5"
                )
        if twice := self.declared.keys() & self.bins.keys():
            raise InputError(f"{min(twice)!r} has both `labels` and `bins`. Leave one out.")
        if self.drop and not self.names:
            raise InputError("`drop_undeclared` does nothing without `labels` or `bins`. Add one.")

    @property
    def names(self) -> list[str]:
        """The attributes that have a declaration."""
        return [*self.declared, *self.bins]

    def settled(self, schema: Schema, whose: Mapping[str, str]) -> LabelRules:
        """Return rules that give other rows labels of this schema only.

        Rows whose value was not selected are left out, as they were in the run.
        """
        declared = {a.name: a.values for a in schema.attributes if a.name not in self.bins}
        drop = self.drop or any(a.name not in self.names for a in schema.attributes)
        return replace(self, declared=declared, drop=drop, prompt=None, whose=whose)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without what concerns the prompt."""
        declared, bins = ({k: list(v) for k, v in g.items()} for g in (self.declared, self.bins))
        return {"declared": declared, "bins": bins, "merge": self.merge, "drop": self.drop}


@dataclass(frozen=True)
class LabelColumn:
    """A label column of the rows that have text and labels, before or after it is settled.

    Once settled, its values are all public values in their order, and every row has one.
    """

    name: str
    shown: str  # what to call it in messages
    place: str  # the same with its table
    codes: LabelCodes  # (n,)
    rows: np.ndarray  # (n,) in the table, from 0
    cells: pd.Series  # none of them: only what its source states, and categories
    whose: str | None = None  # who says which values there are (None: not settled)
    dtype: str = ""  # of pandas, once it is settled

    @property
    def facts(self) -> TableFacts:
        """The facts stated by the table's source."""
        return facts_of(self.cells)

    def name_rows(self, which: np.ndarray) -> str:
        """Name the marked rows as messages number them."""
        rows = self.rows[which]
        names = [self.facts.rows.name(row).rpartition(" ") for row in rows[:MOST_SHOWN].tolist()]
        several = f"{names[0][0]}{'s' if len(rows) > 1 else ''}"
        more = f" and {len(rows) - MOST_SHOWN} more" if len(rows) > MOST_SHOWN else ""
        return f"{several} {', '.join(number for *_, number in names)}{more}"


# -- which values are public -----------------------------------------------------------------------


def check_number_of_values(column: LabelColumn) -> None:
    """Refuse a column with one value, or with too many to be labels. Show no value."""
    rows, distinct = len(column.codes.numbers), len(column.codes.values)
    if distinct == 1:
        raise InputError(
            f"{column.place} has only one value, and labels need two or more. Leave it out."
        )
    if distinct > MOST_VALUES or (distinct > 2 and distinct > rows / 2):
        is_number = not isinstance(column.codes.values[0], str | bool)
        bins = f"Cut them with `bins={ {column.name: [0, 3, 5]} }`" if is_number else "Group them"
        raise InputError(
            f"{column.place} has {distinct} distinct values in {rows} rows. Labels need few, "
            f"repeated values, {MOST_VALUES} at most. {bins}, or choose another column with "
            "`attributes`."
        )


def nearest(value: str, among: Sequence[str]) -> str | None:
    """Return the only value that differs in case and blanks, or else by one letter.

    A letter may be missing, added or different. Digits always count as different.

    >>> nearest(" Postive", ["positive", "negative"]), nearest("1 star", ["2 stars", "3 stars"])
    ('positive', None)
    """
    own, same, near = _fold(value), [], []
    for other in among:
        folded = _fold(other)
        if folded == own:
            same.append(other)
        short, long = sorted((own, folded), key=len)
        if len(short) < SHORTEST or len(long) - len(short) > 1:
            continue
        at, replaced = len(commonprefix([short, long])), len(short) == len(long)
        changed = short[at : at + replaced] + long[at : at + 1]
        if changed.isalpha() and short[at + replaced :] == long[at + 1 :]:
            near.append(other)
    found = same or near
    return found[0] if len(found) == 1 else None


def _whole(value: LabelValue) -> LabelValue:
    """Return the text 4.0 as 4. pandas writes whole numbers so where their column has a gap."""
    short = loosely(value) if isinstance(value, str) else ""
    return value if parse_number(short) is None else short


def _fold(value: str) -> str:
    return " ".join(value.split()).casefold()


def public_labels(
    column: LabelColumn,
    rules: LabelRules,
    notes: list[str],
    found: Mapping[LabelValue, int] | None = None,
    whose: str = OWNER,
) -> LabelColumn:
    """Settle which values of a column are public, and which one each row has (-1 for none).

    Notes for the owner name the values that become public, and no others.

    Args:
        column: all values, as in the table.
        rules: the declarations.
        notes: notes for the owner.
        found: for an undeclared column, the values that may become public and how many records
            have them, most frequent first. They may choose words of the prompt, which then count
            as a declaration.
        whose: who says that these are the values.
    """
    name, declared_by = column.name, "labels"
    values: list[LabelValue]
    places: list[int]  # of each of the column's values among the public ones (-1: none)
    merge, given, are_unclear = rules.merge, rules.declared.get(name), False
    if found is None:
        whose = rules.whose.get(name, whose)
    elif rules.prompt is not None:
        # a scale declares all of its values, whether or not a row has them
        given = list(fitting_words(rules.prompt.wording.get(name, {}), set(map(plain, found))))
        merge = merge and not given
        declared_by, whose = ("prompt", PROMPT) if given else (declared_by, whose)
    if name in rules.bins:
        declared_by, whose, merge, edges = "bins", OWNER, False, rules.bins[name]
        # what bins are called: spreadsheets take "3-5" for a date
        values = [f"{plain(a)} to {plain(b)}" for a, b in pairwise(edges)]
        places = []
        for value in column.codes.values:
            text = plain(value)
            known = parse_number(text)
            meanings = set[float]() if known is None else {known}
            if isinstance(value, str) or column.facts.is_text:  # 1,234 and 1.234 have two meanings
                both = read_number(text), read_number(text, has_commas=True)
                meanings |= {each.value for each in both if each}
            among = {  # the first bin has both its ends
                max(0, bisect_left(edges, n) - 1) if edges[0] <= n <= edges[-1] else -1
                for n in meanings
            }
            if known is not None and edges[0] <= known <= edges[-1]:
                among.discard(-1)  # 3.456 between 0 and 4
            are_unclear |= len(among) > 1
            place = among.pop() if len(among) == 1 else -1
            # a table that was made of the run's records has the names of its bins
            places.append(values.index(value) if value in values else place)
    elif given:
        values, places = _match_declared(given, column, merge)
    else:
        values, places = _match_found(found or {}, column, merge)

    numbers = np.array(places, np.int32)[column.codes.numbers]  # (n,) places of public values
    out = numbers < 0
    if out.any() and found is not None:
        value = "a value that is too rare by the noisy counts"
        if given:
            value = "a value that the `prompt` has no words for"
        notes.append(
            f"leaving out {out.sum()} of {len(out)} rows ({column.name_rows(out)}). Their "
            f"{column.shown} has {value}. To keep them, declare the public values with `labels`."
        )
    elif out.any() and (not rules.drop or out.all()):
        offer = _MERGE if declared_by == "labels" and not rules.merge else ""
        if are_unclear:
            offer = "write 1,234 and 1.234 so that they have one meaning, "
        raise InputError(
            f"{column.place} has a value that `{declared_by}` does not declare in {out.sum()} of "
            f"{len(out)} rows ({column.name_rows(out)}). Correct these cells, {offer}or declare "
            f"the public values with `labels` and leave other rows out with {_DROP}."
        )
    elif out.any():
        notes.append(
            f"leaving out {out.sum()} of {len(out)} rows. Their {column.shown} has a value that "
            f"`{declared_by}` does not declare."
        )
    into = [values[place] if place >= 0 else None for place in places]
    pairs = zip(column.codes.values, into, strict=True)
    moved = [n for n, (value, to) in enumerate(pairs) if isinstance(to, str) and value != to]
    if merge and moved:
        notes.append(
            f"merging {len(moved)} value{'s' if len(moved) > 1 else ''} of {column.shown}, in "
            f"{column.name_rows(np.isin(column.codes.numbers, moved))}, into "
            f"{', '.join(sorted({repr(into[n]) for n in moved}))}"
        )
    used = set(np.unique(numbers).tolist())
    if unused := [repr(value) for number, value in enumerate(values) if number not in used]:
        notes.append(
            f"no row has {', '.join(unused)} of {column.shown}, which `{declared_by}` declares. "
            "The twin may still have some, because labels are counted with noise."
        )
    if whose in (SELECTED, TABLE):
        how = "by noisy counts" if whose == SELECTED else "as the table has them"
        notes.append(
            f"the values of {column.shown} become public {how}: "
            f"{', '.join(map(repr, values))}. To choose them yourself, use `labels`."
        )
    dtype = "str" if name in rules.bins else dtype_name(column.cells, values)
    stated = str(column.cells.dtype)
    if column.facts.states_types and stated.startswith("float") and dtype == "int64":
        notes.append(f"{column.shown} holds whole numbers as {stated}. The twin has {dtype}.")
    return replace(column, codes=LabelCodes(numbers, values), whose=whose, dtype=dtype)


def _match_found(
    found: Mapping[LabelValue, int], column: LabelColumn, merge: bool
) -> tuple[list[LabelValue], list[int]]:
    """Return the found values in their order, and the one that each of a column's values is.

    The values follow from `found` alone, and a record's match from its own cell.
    """
    if len(found) < 2:
        few = "no value" if not found else "only one value"
        raise InputError(
            f"{column.place} has {few} that is frequent enough, by the noisy counts, to become "
            "public. Declare the values with `labels`, cut numbers with `bins`, or choose another "
            "column with `attributes`."
        )
    if any(isinstance(value, str) and CONTROL.search(value) for value in found):
        raise InputError(
            f"{column.place} has a value with a control character. Remove it from these cells."
        )
    kept: dict[LabelValue, LabelValue] = {}  # a value, and the one that it is taken for
    for value in found:  # the most frequent first
        same = [k for k in kept if merge and _fold(str(k)) == _fold(str(value))]
        kept[value] = kept[same[0]] if same else value
    distinct = list(dict.fromkeys(kept.values()))
    codes = LabelCodes(np.arange(len(distinct)), distinct)
    codes = codes.as_numbers() if column.facts.is_text else codes
    public = {value: codes.values[n] for value, n in zip(distinct, codes.numbers, strict=True)}
    if not 2 <= len(codes.values) <= MOST_VALUES:
        check_number_of_values(replace(column, codes=codes))
    values = in_order(codes.values, column.cells)
    place, places = {value: n for n, value in enumerate(values)}, []
    texts = [value for value in distinct if isinstance(value, str)]
    for value in column.codes.values:
        near = kept.get(value, kept.get(_whole(value)))
        if near is None and merge and isinstance(value, str):
            near = nearest(value, texts)
        places.append(-1 if near is None else place[public[near]])
    return values, places


def _match_declared(
    given: Sequence[LabelValue], column: LabelColumn, merge: bool
) -> tuple[list[LabelValue], list[int]]:
    """Return declared values as the column writes them, and the match of each value (-1: none).

    If no source states a type, it follows from the declared values alone. A text is a number only
    if it is written as that number is, or with `.0` behind it. Each value of the column is compared
    on its own, so no record decides for another. A source that states types has values of one kind.
    """
    has_types = column.facts.has_types

    def read(value: LabelValue, kind: type) -> Any:
        """Return a value as one of a kind, or None if it is not, or is no finite number."""
        text = plain(value)
        if kind is str:
            return text
        if not has_types:
            known = read_text(text)
            return known if known is None or isinstance(known, bool) == (kind is bool) else None
        return (
            {"true": True, "false": False}.get(text.lower()) if kind is bool else parse_number(text)
        )

    kind: type = type(column.codes.values[0])
    if not has_types:
        kind = next(k for k in (bool, float, str) if all(read(v, k) is not None for v in given))
        if kind is float and no_dtype_holds([read(v, kind) for v in given]):
            kind = str
    elif kind not in (bool, str):
        kind = float
    values = [value for value in (read(each, kind) for each in given) if value is not None]
    if len(set(values)) < len(given):
        what = {bool: "booleans", float: "numbers", str: "texts"}[kind]
        raise InputError(f"`labels`: {column.shown} holds {what}. Declare different {what} for it.")
    if kind is float:
        values = list(map(label_value, values))
    place, places = {value: number for number, value in enumerate(values)}, []
    spelt = {plain(value): value for value in values}
    for value in column.codes.values:
        known = read(value, kind)
        if known not in place:
            known = read(_whole(value), kind)
        if merge and known not in place and isinstance(value, str):
            known = spelt.get(nearest(value, list(spelt)) or "")
        places.append(place.get(known, -1))
    return values, places


def spelled_labels(column: pd.Series, attribute: Attribute, source: str) -> list[str | None]:
    """Return a column's labels as texts. One that means a label of the schema is spelled like it.

    Two texts are the same label only if they are spelled alike. Numbers and booleans are compared
    by value, because "1", 1 and 1.0 differ only by the file that they come from. A column of texts
    that has "3.1" and "3.10" tells them apart, so only the former is the number 3.1.
    """

    def meaning(text: str) -> Any:
        number = parse_number(text)
        return text.lower() if number is None else number

    codes = label_codes(column, f"{source}: column {attribute.name!r}", True, may_mix=True)
    labels, found = list(map(plain, attribute.values)), list[str | None]()
    same, texts = {meaning(label): label for label in labels}, list(map(plain, codes.values))
    is_text = facts_of(column).is_text
    are_labels_texts, spellings = isinstance(attribute.values[0], str), Counter(map(meaning, texts))
    for value, text in zip(codes.values, texts, strict=True):
        text = text if text in labels else plain(_whole(text))
        is_own = are_labels_texts or text in labels or spellings[meaning(text)] > 1
        if not ((is_text or isinstance(value, str)) and is_own):
            # a number can't say which of the texts 3.1 and 3.10 it is
            text = same.get(meaning(text), text) if len(same) == len(labels) else ""
        found.append(text)
    found.append(None)  # a gap has the number -1
    return [found[number] for number in codes.numbers]


def in_order(values: Sequence[LabelValue], column: pd.Series) -> list[LabelValue]:
    """Return label values in the order of publication. Ordered categories keep their order."""
    if dtype_name(column, values) != ORDERED:
        return sorted(values)
    order = map(label_value, widened(column).cat.categories.tolist())
    return [value for value in dict.fromkeys(order) if value in values]


def settle_labels(
    columns: Sequence[LabelColumn], rules: LabelRules | None, source: str, notes: list[str]
) -> tuple[list[LabelColumn], np.ndarray]:
    """Return each column with its public labels, and (n,) the rows that have all of them.

    An undeclared column keeps all values of these rows as they are in the table, and its values are
    not yet attributed to anyone. Without rules all values are public.
    """
    names, kept = rules.names if rules else [], np.arange(len(columns[0].rows))
    for name in names:  # a declaration that would do nothing
        if name not in [column.name for column in columns]:
            option = "bins" if rules and name in rules.bins else "labels"
            raise InputError(f"`{option}`: {name!r} is not a label column. Add it to `attributes`.")
    settled = [
        public_labels(column, rules, notes) if rules and column.name in names else column
        for column in columns
    ]
    for column in settled:
        if column.whose is not None:
            kept = kept[column.codes.numbers[kept] >= 0]
    if not len(kept):
        raise InputError(f"{source}: no row has declared values of all its labels. Check `labels`.")
    for number, column in enumerate(settled):
        if column.whose is not None:  # all declared values stay
            codes = LabelCodes(column.codes.numbers[kept], column.codes.values)
        else:
            codes = column.codes.of_rows(kept)
            if rules is None:
                check_number_of_values(replace(column, codes=codes))
                codes = codes_of(codes.values, in_order(codes.values, column.cells), codes.numbers)
            column = replace(column, dtype=dtype_name(column.cells, codes.values))
        settled[number] = replace(column, codes=codes, rows=column.rows[kept])
    return settled, kept


def dtype_name(column: pd.Series, values: Sequence[LabelValue]) -> str:
    """Return the dtype of a twin's column: as stated, or as the public values alone imply.

    If no source states it (CSV, TSV, Excel, JSONL), pandas takes it from all cells, which reveals
    single ones: 1 and 2 are int64, but float64 if one row has a gap. A gap does the same to whole
    numbers of Parquet. One number turns texts into objects. For a table in memory only the family
    is taken (numpy, nullable, Arrow, category), since pandas may have chosen the rest by one cell.
    """
    if isinstance(column.dtype, pd.CategoricalDtype) and column.dtype.ordered:
        return ORDERED
    facts, stated = facts_of(column), str(column.dtype)
    own = str(pd.Series(list(values)).dtype)
    if not facts.states_types:
        return own
    if facts.types is None and not isinstance(column.dtype, pd.CategoricalDtype):
        is_nullable = isinstance(column.dtype, ExtensionDtype) and own != stated
        family = "pyarrow" if isinstance(column.dtype, pd.ArrowDtype) else "numpy_nullable"
        widest = pd.Series(list(values)).convert_dtypes(dtype_backend=family).dtype
        stated = str(widest) if is_nullable else own
    elif facts.types is not None and stated in ("float64", "object"):
        stated = facts.types.get(str(column.name), stated)
    if not stated or stated.startswith(_CONVERTED) or (stated == "object" and own != "str"):
        return own
    with suppress(ValueError, TypeError, OverflowError):  # declared values may not fit
        if widened(pd.Series(list(values), dtype=stated)).tolist() == list(values):
            return stated
    return own
