"""Kinds of other columns than texts and labels: what a column is, and how its cells return.

`describe_column` turns noisy counts of cells (`twinset.table.cells`) into a `Column`. A `Column`
turns cells into numbers of values and back. This module draws no noise and counts no records.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.table.cells import (
    AFFIXES,
    COMMAS,
    COMPACT,
    DATES,
    DAY,
    EPOCH,
    HIGHEST,
    IDENTIFIERS,
    LOWEST,
    MOST_DECIMALS,
    MOST_WORDS,
    NAMED,
    STYLES,
    TRUTHS,
    UUID,
    ZONES,
    Cells,
    loosely,
    read_date,
    read_number,
    read_truth,
    unpadded_form,
    write_date,
)
from twinset.table.columns import asked_values, by_name, listed, plain_cell
from twinset.table.schema import CONTROL, ORDERED, plain

CATEGORY, NUMBER, DATE, TRUTH = "category", "number", "date", "yes/no"
IDENTIFIER, TEXT, GAPS, LISTS = "identifier", "text", "gaps", "lists"
DECLARABLE = (CATEGORY, NUMBER, DATE, TRUTH, IDENTIFIER, TEXT)
OTHER = "other"  # a category's value for all values that were not released
MOST_VALUES = 255  # of a category
HARDLY = 0.5  # share of cells that are not of their column's kind
DIGITS = "#"  # how identifiers are written that are texts of digits
MOST_PLACES = 24  # decimals of the smallest numbers
SIGNIFICANT = 6  # digits of numbers with more than `MOST_DECIMALS`
CELLS_A_POWER = 1024  # at most, of a grid between two powers of two
MOST_EDGES = 2 * CELLS_A_POWER * (HIGHEST - LOWEST + 2)
# Of pandas and Arrow. No number in it may ask for much memory.
_DTYPE = re.compile(r"([A-Za-z][a-z_]*\d{0,3}(\[[^\[\]]{1,60}\]){0,2}( \(ordered\))?)?")
# By kind, what a column's form can be.
FORMS = {
    NUMBER: re.compile("|".join(map(re.escape, STYLES))),
    TRUTH: re.compile("|".join(["", *TRUTHS])),
    DATE: re.compile(
        f"({'|'.join(re.escape(f) for d in DATES for f in (d, unpadded_form(d)))})"
        f"({'|'.join(map(re.escape, ('', *ZONES)))})"
    ),
    IDENTIFIER: re.compile("|".join(map(re.escape, (*STYLES, DIGITS, NAMED, *IDENTIFIERS)))),
}
# By a mark of a date's format, the seconds between two dates that it tells apart.
LENGTHS = {"%3f": 1e-3, "%f": 1e-6, "%S": 1.0, ":%M": 60.0, "": float(DAY)}
ZONE = re.compile(r"(?:datetime64\[\w+, |timestamp\[\w+, tz=)(.+?)\](?:\[pyarrow\])?")


@dataclass(frozen=True)
class ColumnRules:
    """What the owner says about the other columns. All of it is public."""

    keep: tuple[str, ...] | None = None  # names. None: all that can be kept
    kinds: Mapping[str, str] = field(default_factory=dict)  # by column, one of `DECLARABLE`
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of numbers
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of categories, all

    def __post_init__(self) -> None:
        """Refuse unknown kinds, empty ranges and bad values. Columns with values are categories."""
        object.__setattr__(self, "kinds", dict.fromkeys(self.values, CATEGORY) | dict(self.kinds))
        for name, kind in self.kinds.items():
            if kind not in DECLARABLE:
                known = ", ".join(DECLARABLE)
                raise InputError(f"`kinds`: {name!r} cannot be {kind!r}. Choose one of {known}.")
        for name, (low, high) in self.ranges.items():
            if not -1e15 < low < high < 1e15:
                raise InputError(f"`ranges`: {name!r} needs two rising numbers, such as 18 and 99")
            if self.kinds.get(name, NUMBER) != NUMBER:
                raise InputError(f"`ranges`: {name!r} is declared as no number. Leave one out.")
        for name, values in self.values.items():
            if self.kinds[name] != CATEGORY:
                raise InputError(f"`values`: {name!r} is declared as no category. Leave one out.")
            are_clean = all(value.strip() and not CONTROL.search(value) for value in values)
            if not (are_clean and 1 <= len(set(values)) == len(values) <= MOST_VALUES):
                raise InputError(
                    f"`values`: give 1 to {MOST_VALUES} different values for {name!r}, not "
                    "blank and without control characters."
                )

    @classmethod
    def of(
        cls, keep: Any = None, kinds: Any = None, ranges: Any = None, values: Any = None
    ) -> ColumnRules:
        """Return rules as they are given: "all", "none" or names, and the rest by column.

        >>> ColumnRules.of(["age"], {"age": "number"}, {"age": (18, 99)}).ranges
        {'age': (18.0, 99.0)}
        """
        names = [keep] if isinstance(keep, str) else listed(keep)
        kinds, ranges = by_name(kinds, "kinds"), by_name(ranges, "ranges")
        lists = {name: listed(given) for name, given in by_name(values, "values").items()}
        for name, each in lists.items():
            if each is None or not all(
                isinstance(v, str | Real | Decimal) and v == v for v in each
            ):
                raise InputError(f"`values`: give a list of texts or numbers for {name!r}")
        kept: tuple[str, ...] | None = None
        if keep is None or names == ["all"]:
            pass
        elif names == ["none"]:
            kept = ()
            if named := [*kinds, *ranges, *lists]:
                raise InputError(
                    f"`columns=none` leaves out {named[0]!r}, but `kinds`, `ranges` or `values` "
                    "names it. Give one of them."
                )
        elif names is not None and all(isinstance(name, str) for name in names):
            kept = tuple(dict.fromkeys(map(str, names)))
        else:
            raise InputError("`columns`: give all, none, or a list of names")
        ends = {}
        for name, pair in ranges.items():
            try:
                low, high = (
                    float(
                        end if isinstance(end, Real | Decimal) and type(end) is not bool else "nan"
                    )
                    for end in listed(pair) or ()
                )
            except (ValueError, OverflowError):
                raise InputError(
                    f"`ranges`: {name!r} needs two numbers, such as 18 and 99"
                ) from None
            ends[name] = low, high
        spelt = {n: tuple(plain(plain_cell(v)) for v in each or ()) for n, each in lists.items()}
        return cls(kept, kinds, ends, spelt)

    @property
    def names(self) -> list[str]:
        """All columns that it names."""
        return list(dict.fromkeys([*(self.keep or ()), *self.kinds, *self.ranges]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ranges, values = ({n: list(v) for n, v in g.items()} for g in (self.ranges, self.values))
        keep = None if self.keep is None else list(self.keep)
        return {"keep": keep, "kinds": dict(self.kinds), "ranges": ranges, "values": values}


# -- columns ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """What is public about a column: its kind and its values, or the grid of its numbers.

    Args:
        name: as in the private table.
        kind: see the constants above.
        dtype: of pandas, that the twin has. "" is chosen by the values that are written.
        values: of a category.
        edges: of a number or date, (G + 1,) rising ends of its grid's cells. Dates are in seconds.
        decimals: of a number. More than `MOST_DECIMALS` mean `SIGNIFICANT` digits.
        form: a date's format, a number's style, a pair of spellings such as "no/yes", or how an
            identifier is written.
        affix: what a number is written with, such as "#%".
        step: of what numbers and dates (in seconds) are multiples. 0: as fine as they are written.
        lengths: of a text, the share of lines of 1, 2, … words.
        odd: share of cells that are not of the kind, if noise leaves no doubt. They are gaps.
        is_closed: whether a category has declared values, so all others are gaps.
    """

    name: str
    kind: str
    dtype: str = ""
    values: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    decimals: int = 0
    form: str = ""
    affix: str = ""
    odd: float = 0.0
    lengths: tuple[float, ...] = ()
    step: float = 0.0
    is_closed: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """What a category has for values that were not released."""
        return () if self.is_closed else (OTHER,)

    @property
    def size(self) -> int:
        """Number of different values: of the domain or grid, other values and a gap."""
        if self.kind == CATEGORY:
            return len(self.values) + len(self.others) + 1  # a gap
        if self.kind == TEXT:
            return 2  # some text, a gap
        return len(self.edges) if self.kind in (NUMBER, DATE) else 3  # G cells and a gap

    def check(self) -> None:
        """Raise a ValueError if no run describes such a column. A stranger may have written it."""
        edges, is_cut = self._edges, self.kind in (NUMBER, DATE, IDENTIFIER)
        if not (
            self.kind in (*DECLARABLE, GAPS)
            and _DTYPE.fullmatch(self.dtype)
            and isinstance(self.form, str)
            and (FORMS[self.kind].fullmatch(self.form) if self.kind in FORMS else not self.form)
            and self.affix in AFFIXES
            and len(self.values) <= MOST_VALUES
            and {type(self.odd), type(self.step)} <= {int, float}
            and type(self.is_closed) is bool
            and 0 <= self.odd <= 1
            and 0 <= self.step <= DAY
            and len(self.lengths) in (0, MOST_WORDS)
            and bool((np.array(self.lengths) >= 0).all() and sum(self.lengths) < 1.01)
            and type(self.decimals) is int
            and 0 <= self.decimals <= MOST_PLACES
            and len(edges) <= MOST_EDGES
            and (len(edges) > 1 or self.kind not in (NUMBER, DATE))
            and (is_cut or not len(edges))
            and bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all())
            and bool((np.abs(edges) < 1e17).all())
            and not any(CONTROL.search(str(value)) for value in (self.name, *self.values))
        ):
            raise ValueError("no run describes such a column")

    def encode(self, cells: Cells) -> np.ndarray:
        """Return (N,) the number of each cell's value. The last number is that of a gap.

        A cell that is none of the column's kind is a gap. A number beyond the grid's ends is -1.
        """
        gap, table = self.size - 1, np.full(len(cells.texts) + 1, self.size - 1, np.int64)
        edges = self._edges
        known = {plain(value): place for place, value in enumerate(self.values)}
        for place, text in enumerate(self._spelled(cells.texts)):
            if self.kind == TEXT:
                table[place] = 0
            elif self.kind == CATEGORY:
                table[place] = known.get(text, gap - len(self.others))
            elif self.kind == TRUTH:
                truth = read_truth(text)
                table[place] = gap if truth is None else truth
            elif (value := self.read_value(text)) is not None:
                found = int(np.searchsorted(edges, value, side="right")) - 1
                table[place] = found if found < gap else -1
        return table[cells.places]

    def _spelled(self, texts: Sequence[str]) -> Sequence[str]:
        """Return cells as declared values are spelled. An exact spelling goes first."""
        if not self.is_closed:
            return texts
        exact = {name: name for name in map(plain, self.values)}
        known = {loosely(name): name for name in exact} | exact
        ways = ((text, text.strip(), loosely(text)) for text in texts)
        return [next((known[way] for way in each if way in known), each[0]) for each in ways]

    @property
    def about(self) -> str:
        """What the column holds, in words for the twin's card.

        >>> Column("age", NUMBER, edges=(18.0, 19.0, 20.0)).about
        'number, 18 to 19'
        """
        if self.kind == CATEGORY:
            if self.is_closed:
                return f"category of {len(self.values)} declared values. All others are gaps"
            return f"category of {len(self.values)} values. All others are {OTHER!r}"
        if self.kind == NUMBER:
            digits = 15 if self.decimals <= MOST_DECIMALS else 3
            ends = self.edges[0], self.edges[-1] - self.unit
            low, high = (round(end, self.decimals) for end in ends)
            return f"number, {low:.{digits}g} to {high:.{digits}g}"
        if self.kind == DATE:
            seconds = self.edges[0], self.edges[-1] - 1  # the end itself is beyond
            days = (EPOCH + datetime.timedelta(seconds=each) for each in seconds)
            return "date, {:%Y-%m-%d} to {:%Y-%m-%d}".format(*days)
        return {IDENTIFIER: "identifier, with new ones", GAPS: "empty"}.get(self.kind, self.kind)

    @property
    def unit(self) -> float:
        """The step of numbers, or that of dates in seconds."""
        if self.step or self.kind != DATE:
            return self.step or 10.0**-self.decimals
        return next(length for mark, length in LENGTHS.items() if mark in self.form)

    @property
    def about_steps(self) -> str:
        """What the column holds and how fine it is, for messages."""
        steps = {DAY: "a day", 3600: "an hour", 60: "a minute", 1: "a second"}
        step = steps.get(int(self.unit), f"{self.unit:g} s") if self.kind == DATE else ""
        step = step or f"{self.unit:g}"
        return self.about + (f" in steps of {step}" if self.kind in (NUMBER, DATE) else "")

    @property
    def _edges(self) -> np.ndarray:
        return np.asarray(self.edges)

    def read_value(self, text: str) -> float | None:
        """Return a cell's number, or None."""
        if self.kind == NUMBER:
            found = read_number(text, self.form in COMMAS)
            return None if found is None else found.value
        dates, day = read_date(text).meanings, self.form.replace("%-", "%")
        near = (s for form, s in dates.items() if day.startswith(form[:8]))
        return next(near, next(iter(dates.values()), None))

    def select(self, wanted: Any) -> tuple[Column, np.ndarray, np.ndarray]:
        """Return the column with cells of its grid cut where a condition begins and ends.

        Conditions are values, None for a gap, or a list of them. Of numbers and dates a pair, or a
        text such as "18:30", is a range with both ends. A day has all its moments. In a text
        without a meaning of its own a comma separates values.

        Returns:
            The column, for each of its values (size,) the number of the value that it was part of,
            and (size,) the share of that one which is wanted.

        >>> Column("city", CATEGORY, values=("York", "Hull")).select("Hull,")[2].tolist()
        [0.0, 1.0, 0.0, 1.0]
        >>> Column("age", NUMBER, edges=(16.0, 20.0, 24.0)).select((18, 19))[2].tolist()
        [0.0, 0.5, 0.0, 0.0]
        """
        is_cut = self.kind in (NUMBER, DATE)
        named = [*map(plain, self.values), *self.others]
        known = {NUMBER: self._span, DATE: self._span, TRUTH: read_truth}

        def fits(text: str) -> bool:
            if self.kind == CATEGORY:
                return self._spelled([text])[0] in named
            return known[self.kind](text) is not None

        asked = [wanted] if is_cut and isinstance(wanted, tuple) else asked_values(wanted, fits)
        filled = [each for each in asked if not pd.api.types.is_scalar(each) or pd.notna(each)]
        gap = len(filled) < len(asked)
        if not is_cut:
            texts = set(self._spelled([plain(plain_cell(each)) for each in filled]))
            truths = {read_truth(text) for text in texts}
            own = [name in texts for name in named]
            own = own if self.kind == CATEGORY else [0 in truths, 1 in truths]
            return self, np.arange(self.size), np.array([*own, gap], float)
        spans = [span for span in map(self._span, filled) if span is not None]
        edges, steps = self._edges, self._steps(self._edges)
        ends = np.array([(low, max(high + 1, np.nextafter(high, np.inf))) for low, high in spans])
        cuts = np.setdiff1d(ends[(ends > steps[0]) & (ends < steps[-1])], steps)
        new = np.append(steps, cuts)
        order = np.argsort(new, kind="stable")
        cut, new = np.append(edges, cuts * self.unit)[order], new[order]
        origin = np.searchsorted(steps, new[:-1], side="right") - 1  # cells that they are part of
        share = np.diff(new) / np.maximum(np.diff(steps), 1e-300)[origin]
        is_wanted = [any(low <= at <= high for low, high in spans) for at in new[:-1].tolist()]
        found = replace(self, edges=tuple(cut.tolist()))
        return found, np.append(origin, self.size - 1), np.append(share * is_wanted, float(gap))

    def _steps(self, values: np.ndarray) -> np.ndarray:
        """Return the first multiple of the unit from each value on, as a number of units."""
        units = values / self.unit
        # a little less, as quotients of floats are not exact
        found: np.ndarray = np.ceil(units - np.minimum(0.4, 1e-6 + 5e-16 * np.abs(units)))
        return found

    def _span(self, wanted: Any) -> tuple[float, float] | None:
        """Return the first and the last multiple of the unit in a value or range, or None."""
        ends = wanted if isinstance(wanted, tuple) else (wanted,)
        if isinstance(wanted, str) and self._ends(wanted) is None:
            places = [place for place, letter in enumerate(wanted) if letter == ":"]
            pairs = [(wanted[:place], wanted[place + 1 :]) for place in places]
            ends = next((pair for pair in pairs if None not in map(self._ends, pair)), ends)
        found = [self._ends(end) for end in ends]
        if not 1 <= len(found) <= 2 or found[0] is None or found[-1] is None:
            return None
        first, last = self._steps(np.array([found[0][0], -found[-1][1]])).tolist()
        return first, -last

    def _ends(self, cell: Any) -> tuple[float, float] | None:
        """Return the least and the largest number that a cell may mean, or None."""
        text = plain(plain_cell(cell))
        value, number, date = self.read_value(text), read_number(text), read_date(text)
        if value is None:
            return None
        if self.kind == NUMBER:
            if number and not isinstance(cell, str):
                return number.value, number.value
            # 30,40 are two numbers where no cell has such a comma
            marks = (*COMMAS, number.style if number else "")
            return (value, value) if "," not in text or self.form in marks else None
        form = next(iter(date.meanings))
        length = next(length for mark, length in LENGTHS.items() if mark in form)
        named = ZONE.fullmatch(self.dtype)
        zone = named[1] if named else next((z for z in ZONES if self.form.endswith(z)), "")
        if date.zone and zone:  # by the clock that the column shows
            there, here = ("UTC" if each == "Z" else each for each in (date.zone, zone))
            moment = pd.Timestamp(value, unit="s").tz_localize(there).tz_convert(here)
            value = (moment.tz_localize(None) - EPOCH).total_seconds()
        return value, value + max(length - self.unit, 0.0)

    def decode(self, numbers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return (n,) cells for numbers of values, None for a gap. `as_series` gives them a dtype.

        Texts are "", values of categories are as they are, and dates with a stated type moments.
        """
        gaps = numbers == self.size - 1
        if self.kind == TEXT:
            return np.array(["", None], object)[numbers]
        if self.kind == CATEGORY:
            return np.array([*self.values, *self.others, None], object)[numbers]
        if self.kind == TRUTH:
            words: list[Any] = self.form.split("/") if self.form else [False, True]
            words = [0, 1] if self.form == "0/1" and self.dtype != "str" else words
            return np.array([*words, None], object)[numbers]
        edges, places, step = self._edges, np.where(gaps, 0, numbers), self.unit
        low, high = edges[places], edges[places + 1]
        # a cell [low, high) has the multiples of the step that lie in it
        first = self._steps(low)
        many = np.maximum(self._steps(high) - first, 1)
        drawn = (first + np.floor(rng.random(len(numbers)) * many)) * step
        if self.kind == NUMBER:
            cells: list[Any] = np.round(drawn, self.decimals).tolist()
            if self.decimals > MOST_DECIMALS:
                ends = zip(cells, low.tolist(), high.tolist(), strict=True)
                rounded = ((float(f"{v:.{SIGNIFICANT}g}"), v, a, b) for v, a, b in ends)
                cells = [r if a <= r < b else v for r, v, a, b in rounded]
            elif self.decimals == 0:
                cells = [int(value) for value in cells]
            if self.form or self.affix:
                cells = [self.write_number(value) for value in cells]
        else:
            cells = [EPOCH + datetime.timedelta(seconds=float(s)) for s in drawn.tolist()]
            if not self.dtype.startswith(("date", "timestamp")):
                cells = [write_date(moment, self.form) for moment in cells]
                if self.form == COMPACT and self.dtype != "str":
                    cells = list(map(int, cells))
        found = np.array([*cells, None], object)[:-1]  # of objects, whatever they are
        found[gaps] = None
        return found

    def as_series(self, cells: np.ndarray) -> pd.Series:
        """Return cells (n,) of `decode` in the twin's dtype."""
        if self.kind == DATE and self.dtype.startswith(("date", "timestamp")):
            stamps = pd.Series(cells, name=self.name, dtype="datetime64[us]")
            if (zone := ZONE.fullmatch(self.dtype)) is not None:
                # cells are read as the clock there shows them, of two hours alike the first
                way = {"ambiguous": np.ones(len(stamps), bool), "nonexistent": "shift_forward"}
                stamps = stamps.dt.tz_localize(zone[1], **way)
            return stamps.astype(self.dtype)
        if self.kind == CATEGORY:
            # next to "other", which is a text, numbers are texts too: no file holds both
            values, has_other = [*self.values], OTHER in cells.tolist()
            if has_other:
                values, cells = [*map(plain, values)], cells.copy()
                cells[:] = [None if cell is None else plain(cell) for cell in cells]
            if self.dtype in ("category", ORDERED):
                kept = [*dict.fromkeys([*values, *[OTHER] * has_other])]
                dtype = pd.CategoricalDtype(kept, ordered=self.dtype == ORDERED)
                return pd.Series(pd.Categorical(cells, dtype=dtype), name=self.name)
        return series_of(self.name, cells, self.dtype)

    def repeating(self) -> Column:
        """Return what an identifier is whose values repeat: a code, by number or by value."""
        if self.edges:
            return replace(self, kind=NUMBER)
        return replace(self, kind=CATEGORY, dtype="" if self.form else "int64", form="")

    def write_number(self, value: float) -> str:
        """Return a number as a text, as most of the column's cells are written.

        >>> Column("price", NUMBER, decimals=2, form="1.234,", affix="# €").write_number(-1234.5)
        '-1.234,50 €'
        """
        text = f"{abs(value):.{SIGNIFICANT}g}"
        if self.decimals <= MOST_DECIMALS:
            text = f"{abs(value):{',' if '1' in self.form else ''}.{self.decimals}f}"
        if self.form:  # , or 1'234.
            text = text.translate({ord(","): self.form[1:2], ord("."): self.form[-1]})
        return ("-" if value < 0 else "") + (self.affix.replace("#", text) or text)

    def new_identifiers(self, count: int, rng: np.random.Generator) -> pd.Series:
        """Return new identifiers (n,), written as most of the column's cells are."""
        made: list[Any] = list(range(1, count + 1))
        if self.form == UUID:
            made = [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in made]
        elif self.form == NAMED:
            made = [NAMED.replace("#", str(n)) for n in made]
        elif self.form.startswith("0"):
            made = [str(n).zfill(len(self.form)) for n in made]
        elif self.form == DIGITS or self.dtype == "str":
            made = list(map(str, made))
        return series_of(self.name, np.array(made, object), self.dtype)


def series_of(name: str, cells: np.ndarray, dtype: str) -> pd.Series:
    """Return cells in a dtype. If it cannot hold them, in one that can."""
    has_gap = any(cell is None for cell in cells.tolist())
    wanted = [dtype] if dtype else []
    kinds = {type(cell) for cell in cells.tolist()} - {type(None)}
    if kinds <= {int}:
        wanted += ["Int64"] if has_gap else ["int64"]
    elif kinds <= {int, float}:
        wanted.append("float64")
    elif kinds <= {bool}:
        wanted += ["boolean"] if has_gap else ["bool"]
    for each in [*wanted, "str"]:
        if has_gap and each.startswith(("int", "uint", "bool")) and each != "boolean":
            each = each.capitalize().replace("Uint", "UInt") if each != "bool" else "boolean"
        try:
            return pd.Series(cells, name=name, dtype=each)
        except (ValueError, TypeError, OverflowError):
            continue
    return pd.Series(cells, name=name, dtype=object)
