"""Other columns than texts and labels: what a cell is, kinds of columns, and how cells return.

A cell is read on its own, never by the cells around it. So one record decides nothing about how
another is read. `survey_codes` turns cells into places of public histograms, `describe_column`
turns noisy counts of these into a `Column`, and a `Column` turns cells into numbers of values and
back. This module draws no noise and counts no records.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.table.columns import WRITABLE, facts_of, parse_number, plain_cell, read_text, widened
from twinset.table.labels import dtype_name
from twinset.table.schema import CONTROL, plain

CATEGORY, NUMBER, DATE, TRUTH = "category", "number", "date", "yes/no"
IDENTIFIER, TEXT, GAPS = "identifier", "text", "gaps"
DECLARABLE = (CATEGORY, NUMBER, DATE, TRUTH, IDENTIFIER, TEXT)
OTHER = "other"  # a category's value for all values that were not released

# Each date format with what it looks like. Formats stay apart, so that a twin has the usual one.
_DAY, _MONTH, _NAME, _YEAR = r"\d{1,2}", r"\d{1,2}", r"[A-Z][a-z]{2,8}", r"\d{4}"
_REST = r"(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?"  # parts of a second and a time zone are dropped
DATES = {
    "%Y-%m-%d": rf"{_YEAR}-{_MONTH}-{_DAY}",
    "%Y-%m-%dT%H:%M:%S": rf"({_YEAR}-{_MONTH}-{_DAY}T\d\d:\d\d:\d\d){_REST}",
    "%Y-%m-%d %H:%M:%S": rf"({_YEAR}-{_MONTH}-{_DAY} \d\d:\d\d:\d\d){_REST}",
    "%Y-%m-%d %H:%M": rf"{_YEAR}-{_MONTH}-{_DAY} \d\d:\d\d",
    "%Y/%m/%d": rf"{_YEAR}/{_MONTH}/{_DAY}",
    "%d.%m.%Y": rf"{_DAY}\.{_MONTH}\.{_YEAR}",
    "%d/%m/%Y": rf"{_DAY}/{_MONTH}/{_YEAR}",
    "%m/%d/%Y": rf"{_MONTH}/{_DAY}/{_YEAR}",
    "%d-%m-%Y": rf"{_DAY}-{_MONTH}-{_YEAR}",
    "%d %b %Y": rf"{_DAY} [A-Z][a-z]{{2}} {_YEAR}",
    "%d %B %Y": rf"{_DAY} {_NAME} {_YEAR}",
    "%b %d, %Y": rf"[A-Z][a-z]{{2}} {_DAY}, {_YEAR}",
    "%B %d, %Y": rf"{_NAME} {_DAY}, {_YEAR}",
}
_DATES = {form: re.compile(pattern) for form, pattern in DATES.items()}
_POINT = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.(\d+))?(?:[eE][-+]?\d+)?")
_COMMA = re.compile(r"-?(?:\d+|\d{1,3}(?:\.\d{3})+),(\d+)")
_PADDED = re.compile(r"-?0\d")  # 007 is no number
_ID_NAME = re.compile(r"(^|[\s_.-])(id|uuid|guid|key|number|no|nr|code)$|^(id|uuid|guid)\b", re.I)
_EPOCH = datetime.datetime(1970, 1, 1)
DAY = 86_400
PROSE_WORDS, PROSE_LETTERS = 4, 60  # from either on a cell is prose

# What a survey counts of a cell, in three histograms a column: what it is, how it is written, and
# how large it is. A cell is in at most one place of each.
WHAT = (GAPS, NUMBER, "decimal comma", TRUTH, DATE, CATEGORY, TEXT)
MOST_DECIMALS = 6
LOWEST, HIGHEST = -20, 43  # powers of two between which a survey counts magnitudes
_POWERS = HIGHEST - LOWEST + 1
FIRST_YEAR, LAST_YEAR = 1800, 2200
SURVEY_SIZES = (
    len(WHAT),
    MOST_DECIMALS + 1 + len(DATES),
    2 * _POWERS + 1 + LAST_YEAR - FIRST_YEAR,
)
CELLS_A_POWER = 1024  # at most, of a grid between two powers of two
MOST_CELLS = 16_384  # of a declared range, or days
MOST_EDGES = 2 * CELLS_A_POWER * (HIGHEST - LOWEST + 2)
_CLEAR, _SURE = 3.0, 4.0  # deviations of noise
# Of pandas and Arrow. No number in it may ask for much memory.
_DTYPE = re.compile(r"([A-Za-z][a-z_]*\d{0,3}(\[[^\[\]]{1,60}\]){0,2}( \(ordered\))?)?")


@dataclass(frozen=True)
class ColumnRules:
    """What the owner says about the other columns. All of it is public."""

    keep: tuple[str, ...] | None = None  # names. None: all that can be kept
    kinds: Mapping[str, str] = field(default_factory=dict)  # by column, one of `DECLARABLE`
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of numbers

    def __post_init__(self) -> None:
        """Refuse unknown kinds and empty ranges."""
        for name, kind in self.kinds.items():
            if kind not in DECLARABLE:
                known = ", ".join(DECLARABLE)
                raise InputError(f"`kind`: {name!r} cannot be {kind!r}. Choose one of {known}.")
        for name, (low, high) in self.ranges.items():
            if not -1e15 < low < high < 1e15:
                raise InputError(f"`range`: {name!r} needs two rising numbers, such as 18:99")
            if self.kinds.get(name, NUMBER) != NUMBER:
                raise InputError(f"`range`: {name!r} is declared as no number. Leave one out.")

    @classmethod
    def of(cls, keep: Any = None, kinds: Any = None, ranges: Any = None) -> ColumnRules:
        """Return rules as they are given: "all", "none" or names, and values by column.

        >>> ColumnRules.of(["age"], {"age": "number"}, {"age": (18, 99)}).ranges
        {'age': (18, 99)}
        """
        names = [keep] if isinstance(keep, str) else keep
        if names is None or names == ["all"]:
            kept = None
        elif names == ["none"]:
            kept = ()
            if named := [*(kinds or {}), *(ranges or {})]:
                raise InputError(
                    f"`columns=none` leaves out {named[0]!r}, but `kind` or `range` names it. Give "
                    "one of them."
                )
        elif isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
            kept = tuple(dict.fromkeys(names))
        else:
            raise InputError("`columns`: give all, none, or a list of names")
        for option, given in (("kind", kinds), ("range", ranges)):
            if not isinstance(given or {}, Mapping):
                raise InputError(f"`{option}`: give a value for each column, as a dictionary")
        ends = {}
        for name, pair in (ranges or {}).items():
            try:
                low, high = pair
                ends[name] = (low + 0, high + 0)
            except (TypeError, ValueError):
                raise InputError(f"`range`: {name!r} needs two numbers, such as 18:99") from None
        return cls(kept, dict(kinds or {}), ends)

    @property
    def names(self) -> list[str]:
        """All columns that it names."""
        return list(dict.fromkeys([*(self.keep or ()), *self.kinds, *self.ranges]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ranges = {name: list(ends) for name, ends in self.ranges.items()}
        keep = None if self.keep is None else list(self.keep)
        return {"keep": keep, "kinds": dict(self.kinds), "ranges": ranges}


# -- cells -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cells:
    """The cells of a column as texts, each distinct one once."""

    places: np.ndarray  # (N,) in `texts` (-1: a gap)
    texts: Sequence[str]

    @classmethod
    def of(cls, column: pd.Series) -> Cells:
        """Return cells as a person writes them. A list or an object is a gap.

        >>> Cells.of(pd.Series([5.0, None, 2.5, 5.0])).texts
        ['5', '2.5']
        """
        if column.dtype == object:
            cells = column.where(column.notna(), None)
            found = [plain(plain_cell(c)) if isinstance(c, WRITABLE) else None for c in cells]
            column = pd.Series(found, dtype=object)
        try:
            own, distinct = pd.factorize(widened(column))
        except (TypeError, NotImplementedError):  # Arrow's lists
            return cls(np.full(len(column), -1), [])
        written = [plain(plain_cell(cell)).strip() for cell in distinct.tolist()]
        known: dict[str, int] = {}
        places = [
            -1 if not text or CONTROL.search(text) else known.setdefault(text, len(known))
            for text in written
        ]
        return cls(np.array([*places, -1])[own], [*known])

    def lines(self, reserved: Sequence[str] = ()) -> list[str]:
        r"""Return (N,) cells as lines, "" for a gap. So is a cell with one of the `reserved` words.

        >>> Cells.of(pd.Series(["so \n good", None])).lines()
        ['so good', '']
        """
        lines = [
            "" if any(word in text for word in reserved) else " ".join(text.split())
            for text in self.texts
        ]
        return [lines[place] if place >= 0 else "" for place in self.places.tolist()]


def read_number(text: str) -> tuple[float, int, bool] | None:
    """Return a number, its decimals, and whether it has a decimal comma. None: it is none.

    >>> read_number("3.10"), read_number("1,234.5"), read_number("12,50"), read_number("007")
    ((3.1, 2, False), (1234.5, 1, False), (12.5, 2, True), None)
    """
    for pattern, comma in ((_POINT, False), (_COMMA, True)):
        found = pattern.fullmatch(text)
        if found is None or _PADDED.match(text):
            continue
        bare = text.replace(".", "").replace(",", ".") if comma else text.replace(",", "")
        value = parse_number(bare)
        if value is None or abs(value) > 1e15:
            return None
        decimals = len(found[1] or "")
        if "e" in text.lower():
            decimals = MOST_DECIMALS
        return float(value), min(decimals, MOST_DECIMALS), comma
    return None


def read_dates(text: str) -> dict[str, float]:
    """Return by format the seconds since 1970 that a text may mean, in UTC.

    >>> read_dates("2024-02-29"), sorted(read_dates("03/04/2024")), read_dates("30.02.2024")
    ({'%Y-%m-%d': 1709164800.0}, ['%d/%m/%Y', '%m/%d/%Y'], {})
    """
    found = {}
    if 8 <= len(text) <= 35 and any(c.isdigit() for c in text):
        for form, pattern in _DATES.items():
            if (match := pattern.fullmatch(text)) is not None:
                try:
                    when = datetime.datetime.strptime(match[1] if match.lastindex else text, form)
                except ValueError:
                    continue
                if FIRST_YEAR <= when.year < LAST_YEAR:
                    found[form] = (when - _EPOCH).total_seconds()
    return found


def place_magnitude(value: float) -> int:
    """Return the place of a number among zero and the powers of two of either sign.

    >>> [place_magnitude(v) - _POWERS for v in (0, 1, 1.5, 2, -1)]
    [0, 21, 21, 22, -21]
    """
    if value == 0:
        return _POWERS
    power = min(max(math.frexp(abs(value))[1] - 1, LOWEST), HIGHEST) - LOWEST
    return _POWERS + (power + 1 if value > 0 else -power - 1)


def survey_codes(cells: Cells) -> np.ndarray:
    """Return (N, 3) the place of each cell in the survey's histograms, -1 for none."""
    table = np.full((len(cells.texts) + 1, 3), -1, np.int64)  # the last row is for gaps
    table[-1, 0] = 0
    for place, text in enumerate(cells.texts):
        if (number := read_number(text)) is not None:
            value, decimals, comma = number
            table[place] = 2 if comma else 1, decimals, place_magnitude(value)
        elif text in ("True", "False"):
            table[place, 0] = 3
        elif dates := read_dates(text):
            form = -1
            if len(dates) == 1:  # one of several does not tell which
                form = MOST_DECIMALS + 1 + list(DATES).index(next(iter(dates)))
            year = (_EPOCH + datetime.timedelta(seconds=next(iter(dates.values())))).year
            table[place] = 4, form, 2 * _POWERS + 1 + year - FIRST_YEAR
        else:
            is_prose = len(text.split()) >= PROSE_WORDS or len(text) >= PROSE_LETTERS
            table[place, 0] = 6 if is_prose else 5
    return table[cells.places]


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
        decimals: of a number.
        form: a date's format, or "," for numbers that are written with a decimal comma.
    """

    name: str
    kind: str
    dtype: str = ""
    values: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    decimals: int = 0
    form: str = ""

    @property
    def size(self) -> int:
        """Number of different values: of the domain or grid, other values and a gap."""
        if self.kind == CATEGORY:
            return len(self.values) + 2  # others, a gap
        if self.kind == TEXT:
            return 2  # some text, a gap
        return len(self.edges) if self.kind in (NUMBER, DATE) else 3  # G cells and a gap

    def check(self) -> None:
        """Raise a ValueError if no run describes such a column. A stranger may have written it."""
        edges, is_cut = self._edges, self.kind in (NUMBER, DATE, IDENTIFIER)
        if not (
            self.kind in (*DECLARABLE, GAPS)
            and _DTYPE.fullmatch(self.dtype)
            and (self.form in DATES if self.kind == DATE else self.form in ("", ","))
            and type(self.decimals) is int
            and 0 <= self.decimals <= MOST_DECIMALS
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
        for place, text in enumerate(cells.texts):
            if self.kind == TEXT:
                table[place] = 0
            elif self.kind == CATEGORY:
                table[place] = known.get(text, gap - 1)
            elif self.kind == TRUTH:
                table[place] = {"False": 0, "True": 1}.get(text, gap)
            elif (value := self.read_value(text)) is not None:
                found = int(np.searchsorted(edges, value, side="right")) - 1
                table[place] = found if found < gap else -1
        return table[cells.places]

    @property
    def about(self) -> str:
        """What the column holds, in words for the twin's card.

        >>> Column("age", NUMBER, edges=(18.0, 19.0, 20.0)).about
        'number, 18 to 19'
        """
        if self.kind == CATEGORY:
            return f"category of {len(self.values)} values. All others are {OTHER!r}"
        if self.kind == NUMBER:
            step = 10.0**-self.decimals
            low, high = (round(e, self.decimals) for e in (self.edges[0], self.edges[-1] - step))
            return f"number, {low:.15g} to {high:.15g}"
        if self.kind == DATE:
            seconds = self.edges[0], self.edges[-1] - 1  # the end itself is beyond
            ends = (_EPOCH + datetime.timedelta(seconds=each) for each in seconds)
            return "date, {:%Y-%m-%d} to {:%Y-%m-%d}".format(*ends)
        return {IDENTIFIER: "identifier, with new numbers", GAPS: "empty"}.get(self.kind, self.kind)

    @property
    def _edges(self) -> np.ndarray:
        return np.asarray(self.edges)

    def read_value(self, text: str) -> float | None:
        """Return a cell's number, or None."""
        if self.kind == NUMBER:
            found = read_number(text)
            return None if found is None else found[0]
        dates = read_dates(text)
        return dates.get(self.form, next(iter(dates.values()), None))

    def matches(self, wanted: Any) -> np.ndarray:
        """Return (size,) whether each value is the wanted one, or one of a list of them.

        None asks for a gap. Of numbers and dates a pair, or a text such as "18:30", is a range.
        They are compared cell by cell of the grid.

        >>> Column("city", CATEGORY, values=("York", "Hull")).matches(["Hull", None]).tolist()
        [False, True, False, True]
        >>> Column("age", NUMBER, edges=(18.0, 19.0, 20.0, 21.0)).matches("19:30").tolist()
        [False, True, True, False]
        """
        found = np.zeros(self.size, bool)
        if self.kind in (CATEGORY, TRUTH):
            named = (
                [*map(plain, self.values), OTHER] if self.kind == CATEGORY else ["False", "True"]
            )
        for one in wanted if isinstance(wanted, list | set | frozenset) else [wanted]:
            if one is None or one is pd.NA or one != one:
                found[-1] = True
            elif self.kind in (CATEGORY, TRUTH):
                found[:-1] |= np.array([plain(plain_cell(one)) == value for value in named], bool)[
                    : self.size - 1
                ]
            elif self.kind in (NUMBER, DATE):
                ends = one
                if isinstance(one, str) and self.read_value(one) is None:
                    ends = tuple(one.split(":"))
                low, *high = ends if isinstance(ends, tuple) else (ends,)
                bounds = [self.read_value(plain(plain_cell(end))) for end in (low, *high)]
                if len(bounds) <= 2 and None not in bounds:
                    starts, stops = self._edges[:-1], self._edges[1:]
                    if high:
                        found[:-1] |= (starts >= bounds[0]) & (starts <= bounds[1])
                    else:
                        found[:-1] |= (starts <= bounds[0]) & (bounds[0] < stops)
        return found

    def decode(self, numbers: np.ndarray, rng: np.random.Generator) -> pd.Series:
        """Return (n,) cells for numbers of values, in the twin's dtype. Texts are "" at first."""
        gaps = numbers == self.size - 1
        if self.kind == TEXT:
            return pd.Series(np.array(["", None], object)[numbers], name=self.name, dtype=object)
        if self.kind == CATEGORY:
            values = np.array([*self.values, OTHER, None], object)
            found = values[numbers]
            own = [v for v in found.tolist() if v is not None]
            if self.dtype == "category":
                kept = pd.CategoricalDtype([*dict.fromkeys([*self.values, *own])])
                return pd.Series(pd.Categorical(found, dtype=kept), name=self.name)
            return series_of(self.name, found, self.dtype)
        if self.kind == TRUTH:
            return series_of(self.name, np.array([False, True, None], object)[numbers], self.dtype)
        edges, places = self._edges, np.where(gaps, 0, numbers)
        step = DAY if self.kind == DATE and self.is_by_day else 10.0**-self.decimals
        if self.kind == DATE and not self.is_by_day:
            step = 60.0 if self.form.endswith("%M") else 1.0
        low, high = edges[places], edges[places + 1]
        # a cell [low, high) has the multiples of the step that lie in it
        first = np.ceil(low / step - 1e-6)
        many = np.maximum(np.ceil(high / step - 1e-6) - first, 1)
        drawn = (first + np.floor(rng.random(len(numbers)) * many)) * step
        if self.kind == NUMBER:
            drawn = np.round(drawn, self.decimals)
            if self.form == ",":
                texts = [f"{v:.{self.decimals}f}".replace(".", ",") for v in drawn.tolist()]
                found = np.array(texts, object)
                found[gaps] = None
                return series_of(self.name, found, self.dtype)
            whole = self.decimals == 0
            found = drawn.astype(np.int64).astype(object) if whole else drawn.astype(object)
            found[gaps] = None
            return series_of(self.name, found, self.dtype)
        moments = [_EPOCH + datetime.timedelta(seconds=float(s)) for s in drawn.tolist()]
        if self.dtype.startswith(("datetime", "date", "timestamp")):
            stamps = pd.Series(moments, name=self.name, dtype="datetime64[us]").mask(gaps)
            zone = re.fullmatch(r"datetime64\[\w+, (.+)\]", self.dtype)
            if zone is not None:  # cells are read as the clock there shows them
                stamps = stamps.dt.tz_localize(zone[1], ambiguous="NaT", nonexistent="NaT")
            return stamps.astype(self.dtype) if self.dtype.startswith("datetime") else stamps
        texts = [moment.strftime(self.form) for moment in moments]
        found = np.array(texts, object)
        found[gaps] = None
        return series_of(self.name, found, self.dtype)

    @property
    def is_by_day(self) -> bool:
        """Whether a date has no time of the day."""
        return "%H" not in self.form


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


def describe_column(
    column: pd.Series,
    survey: Sequence[np.ndarray],
    deviation: float,
    rules: ColumnRules,
) -> Column:
    """Return the kind of a column and the grid of its numbers, by a noisy survey of its cells.

    A category has no values yet. Of the column itself only its name and stated type are used.

    Args:
        column: its name and what its source states. No cell is read.
        survey: noisy counts of `survey_codes`, one array for each of the three histograms.
        deviation: of the noise on each count.
        rules: what the owner declared.
    """
    name = str(column.name)
    what, written, sizes = survey
    amounts = dict(zip(WHAT, what.tolist(), strict=True))
    numbers, commas = amounts[NUMBER], amounts["decimal comma"]
    kinds = {
        NUMBER: numbers + commas,
        TRUTH: amounts[TRUTH],
        DATE: amounts[DATE],
        CATEGORY: amounts[CATEGORY],
        TEXT: amounts[TEXT],
    }
    kind = rules.kinds.get(name) or (NUMBER if name in rules.ranges else "")
    if not kind:
        kind = max(kinds, key=lambda each: kinds[each])
        if kinds[CATEGORY] + kinds[TEXT] > max(kinds[NUMBER], kinds[TRUTH], kinds[DATE]):
            kind = CATEGORY if kinds[CATEGORY] >= kinds[TEXT] else TEXT
        if sum(kinds.values()) <= _CLEAR * deviation * len(kinds) ** 0.5:
            kind = GAPS
        elif kind in (NUMBER, CATEGORY) and _ID_NAME.search(name):
            kind = IDENTIFIER  # until its values are seen to repeat
    if kind == NUMBER or (kind == IDENTIFIER and kinds[NUMBER] > kinds[CATEGORY]):
        digits = written[: MOST_DECIMALS + 1]
        decimals, left = 0, digits.sum() - _CLEAR * deviation * len(digits) ** 0.5
        while decimals < MOST_DECIMALS and digits[: decimals + 1].sum() < left:
            decimals += 1
        form = "," if commas > numbers else ""
        if name in rules.ranges:
            # equal cells, and both ends are numbers of the range
            (low, high), step = rules.ranges[name], 10.0**-decimals
            width = step * max(1, math.ceil((high - low + step) / step / MOST_CELLS))
            edges = np.arange(low, high + step + width / 2, width).tolist()
        else:
            powers = np.arange(-_POWERS, _POWERS + 1)  # places of magnitudes, 0 in the middle
            # numbers of so few decimals are 0, or not smaller than a step
            least = math.floor(math.log2(10.0**-decimals)) - LOWEST + 1
            possible = (powers == 0) | (np.abs(powers) >= least)
            first, last = find_window(sizes[: 2 * _POWERS + 1][possible], deviation)
            found = powers[possible].tolist()
            edges = power_edges(found[first], found[last], 10.0**-decimals)
        dtype = choose_number_dtype(column, decimals, form)
        return Column(name, kind, dtype, edges=tuple(edges), decimals=decimals, form=form)
    if kind == DATE:
        forms = written[MOST_DECIMALS + 1 :]
        form = list(DATES)[int(forms.argmax())]
        first, last = find_window(sizes[2 * _POWERS + 1 :], deviation)
        years = (datetime.datetime(FIRST_YEAR + year, 1, 1) for year in (first, last + 1))
        low, high = ((when - _EPOCH).total_seconds() for when in years)
        step = DAY * max(1, math.ceil((high - low) / DAY / MOST_CELLS))
        edges = [*np.arange(low, high, step).tolist(), high]
        return Column(name, kind, choose_date_dtype(column), edges=tuple(edges), form=form)
    stated = str(column.dtype)
    if kind == TRUTH:
        # of others a single gap may have made the type
        return Column(name, kind, stated if stated in ("boolean", "bool[pyarrow]") else "")
    return Column(name, kind, text_dtype(column) if kind == TEXT else "")


def text_dtype(cells: pd.Series) -> str:
    """Return the dtype of new texts in a column. It follows from no cell, and they have no order.

    >>> text_dtype(pd.Series(["a"], dtype="category")), text_dtype(pd.Series(["a", 1.5]))
    ('category', 'str')
    """
    return dtype_name(cells, [""]).removesuffix(" (ordered)")


def with_values(column: Column, texts: Sequence[str], cells: pd.Series) -> Column:
    """Return a column with its public values, as its source writes them. `cells` are none."""
    if isinstance(cells.dtype, pd.CategoricalDtype):
        values, dtype = list[Any](texts), "category"
        # Categories are numbers, as a file says. In memory one cell might make texts of them.
        is_stated = facts_of(cells).types is not None
        numbers = [read_text(text) for text in texts]
        if cells.cat.categories.dtype.kind in "iufb" if is_stated else None not in numbers:
            values = [number for number in numbers if number is not None]
    else:
        values = list(texts)
        dtype = dtype_name(cells, values) if values else "str"
    return replace(column, dtype=dtype, values=tuple(values))


def choose_number_dtype(column: pd.Series, decimals: int, form: str) -> str:
    """Return a stated type that holds such numbers, else none.

    Of a table in memory only the family is taken, as pandas may have chosen the rest by one cell.
    """
    facts, own = facts_of(column), column.dtype
    if form == ",":
        return "str"
    if not facts.states_types:
        return ""
    if facts.types is None:
        if isinstance(own, pd.ArrowDtype):
            return "double[pyarrow]" if decimals else "int64[pyarrow]"
        is_nullable = isinstance(own, pd.api.extensions.ExtensionDtype)
        is_nullable &= not isinstance(own, pd.CategoricalDtype | pd.StringDtype)
        return ("Float64" if decimals else "Int64") if is_nullable else ""
    # first what the file says: a gap makes objects of its whole numbers
    stated = facts.types.get(str(column.name), str(own))
    return stated if re.match(r"(u?int|float|double|Int|UInt|Float)\d*|str", stated) else ""


def choose_date_dtype(column: pd.Series) -> str:
    """Return a stated type of dates, else that of texts.

    Of a table in memory the unit is public, as a single cell may have chosen it.
    """
    stated = str(column.dtype)
    if facts_of(column).types is None and isinstance(column.dtype, pd.DatetimeTZDtype):
        stated = f"datetime64[us, {column.dtype.tz}]"
    elif facts_of(column).types is None and stated.startswith("datetime64"):
        stated = "datetime64[us]"
    if stated.startswith("datetime64"):
        try:
            pd.Series([], dtype=stated)
        except Exception:  # a time zone without a name that can be written down
            stated = "datetime64[us]"
    return stated if stated.startswith(("datetime64", "timestamp", "date")) else "str"


def find_window(counts: np.ndarray, deviation: float) -> tuple[int, int]:
    """Return the first and the last place that hold more than noise.

    >>> find_window(np.array([0.4, -1.0, 50.0, 0.2, 9.0, 1.0]), deviation=1.0)
    (2, 4)
    """
    clear = np.flatnonzero(counts > _SURE * deviation)
    first, last = (clear[0], clear[-1]) if len(clear) else (counts.argmax(), counts.argmax())
    # Places that hold little each may hold something together.
    further = []
    for side in (counts[:first][::-1], counts[last + 1 :]):
        together = side.cumsum() - _CLEAR * deviation * np.arange(1, len(side) + 1) ** 0.5
        further.append(int(together.argmax()) + 1 if len(side) and together.max() > 0 else 0)
    return int(first) - further[0], int(last) + further[1]


def power_edges(first: int, last: int, step: float) -> list[float]:
    """Return the ends of cells between powers of two, -1 being those from -2^(LOWEST+1) and so on.

    >>> power_edges(21, 23, 1.0)
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    >>> power_edges(0, 21, 1.0)
    [0.0, 1.0, 2.0]
    """
    edges: list[float] = []
    for place in range(first, last + 1):
        if place == 0:
            low, high = 0.0, step
        else:
            ends = 2.0 ** (abs(place) - 1 + LOWEST), 2.0 ** (abs(place) + LOWEST)
            low, high = ends if place > 0 else (-ends[1], -ends[0])
        low, high = (math.floor(end / step + 1e-9) * step for end in (low, high))
        if place < 0:  # [-high, -low) is (-high, -low] of whole steps
            low, high = low + step, high + step
        count = min(CELLS_A_POWER, round((high - low) / step))
        if count > 0:
            width = (high - low) / count
            edges += [low + width * i for i in range(count)]
            edges.append(high)
    found = sorted({round(edge, 9) for edge in edges})
    return found if len(found) > 1 else [0.0, step]
