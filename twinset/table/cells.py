"""How one cell of another column is read: as a number, a date, a yes or a no, or as none of these.

A cell is read on its own, never by the cells around it. So one record decides nothing about how
another is read. `survey_codes` turns cells into places of public histograms. All spellings that are
known are listed here, and the lists are public. This module draws no noise and counts no records.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pandas as pd

from twinset.table.columns import WRITABLE, facts_of, parse_number, plain_cell, widened
from twinset.table.schema import CONTROL, plain

DAY = 86_400
EPOCH = datetime.datetime(1970, 1, 1)
PROSE_WORDS, PROSE_LETTERS = 4, 60  # from either on a cell is prose

# -- spellings -------------------------------------------------------------------------------------

# A number's style by its marks: a number proper, a text with a point, and texts with other marks.
STYLES = ("", ".", ",", "1,234.", "1.234,", "1'234.", "1’234.")
COMMAS = (",", "1.234,")  # those with a decimal comma
BEFORE, BEHIND = "$ € £ ¥ ₹ R$".split(), "% € $ £ zł Kč kr".split()
CURRENCIES = (
    "USD EUR GBP CHF JPY CNY INR CAD AUD NZD BRL MXN ZAR KRW SGD HKD SEK NOK DKK PLN CZK HUF TRY"
).split()
AFFIXES: tuple[str, ...] = ("", *(f"{s}{b}#" for s in BEFORE for b in ("", " ")))
AFFIXES += tuple(f"#{b}{s}" for s in BEHIND for b in ("", " "))
AFFIXES += tuple(affix for code in CURRENCIES for affix in (f"{code} #", f"# {code}"))
MOST_DECIMALS = 6
FLOATING = MOST_DECIMALS + 1  # decimals of a number with more of them, or with an exponent
# Decimals that are written, and those of the value: 2019.0 has one and none.
DECIMALS = (*((w, v) for w in range(FLOATING) for v in range(w + 1)), (FLOATING, FLOATING))
EITHER = len(DECIMALS)  # from here on those of 1,234 and 1.234, if they are no thousands
DECIMALS += tuple((3, v) for v in range(4))
_BARE = re.compile(
    rf"([-+]?)(?:([$€£¥₹]|R\$|(?:{'|'.join(CURRENCIES)})(?= ))( ?))?([-+]?)"
    r"([.,]?\d[\d.,'’]*(?:[eE][-+]?\d+)?)"
    rf"(?:( ?)([%€$£]|zł|Kč|kr|(?<= )(?:{'|'.join(CURRENCIES)})))?"
)
_POINT = re.compile(
    r"(?:\d+|(?=\.)|([1-9]\d{0,2}(?:(?:,\d{3})+|(?:'\d{3})+|(?:’\d{3})+)))(?:\.(\d+))?"
    r"(?:[eE][-+]?\d+)?"
)
_COMMA = re.compile(  # 192.168.100.200 is no number
    r"(?:\d+|(?=,)|(?!\d+(?:\.[12]\d\d){3}$)([1-9]\d{0,2}(?:\.\d{3})+))(?:,(\d+))?"
)
_NO_BREAK = re.compile("[\xa0\u202f]")  # blanks, as France writes them before €
_PADDED = re.compile(r"[-+]?0\d")  # 007 is no number
# Several answers: 1,2,3 and 1, 2 and 1;2, but not 1,23,456
_CODES = re.compile(r"\d\d?((,\d\d?){2,}|(, \d\d?)+|(; ?\d\d?)+)")
_LARGE = re.compile(r"-?[1-9]\d{15,19}")  # identifiers of whole numbers that no float holds

# No and yes, as they are spelt together.
TRUTHS = (
    "False/True false/true FALSE/TRUE No/Yes no/yes NO/YES N/Y n/y F/T f/t 0/1 Nein/Ja nein/ja "
    "NEIN/JA Non/Oui non/oui No/Sí no/sí No/Si no/si No/Sì no/sì Não/Sim não/sim Nee/Ja nee/ja "
    "Nej/Ja nej/ja Nie/Tak nie/tak"
).split()
_TRUTH = {word: place for pair in TRUTHS for place, word in enumerate(pair.split("/"))}
WORDS = tuple(_TRUTH)

# A date is a day with or without a time. Formats stay apart, so that a twin has the usual one.
# Those of two meanings come first the way that is taken if nothing tells.
COMPACT = "%Y%m%d"
DAYS = (
    *("%Y-%m-%d %Y/%m/%d %d.%m.%Y %d/%m/%Y %m/%d/%Y %d-%m-%Y %d.%m.%y %d/%m/%y %m/%d/%y".split()),
    *"%Y.%m.%d %d-%b-%Y %d-%b-%y %d-%^b-%Y %d-%^b-%y %d%^b%Y %d%_b%Y".split(),  # May, MAY, may
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", COMPACT),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_ISO_TIMES: tuple[str, ...] = (" %H:%M:%S.%3f", " %H:%M:%S.%f")
_ISO_TIMES += tuple("T%H:%M T%H:%M:%S T%H:%M:%S.%3f T%H:%M:%S.%f".split())
DATES = tuple(
    day + time
    for day in DAYS
    for time in (_TIMES[:1] if day == COMPACT else _TIMES + _ISO_TIMES * (day == DAYS[0]))
)
_TWINS = (("%d/%m/", "%m/%d/"), ("%d %b ", "%d %B "), ("%b %d,", "%B %d,"))
# What the formats of one cell can be: one, or two that both fit.
MEANINGS: tuple[tuple[str, ...], ...] = tuple((form,) for form in DATES)
MEANINGS += tuple((f, f.replace(*p)) for p in _TWINS for f in DATES if f.startswith(p[0]))
OFFSETS = [f"{sign}{hour:02}:00" for sign in "+-" for hour in range(13)]
ZONES = ("Z", *OFFSETS, *"+13:00 +03:30 +04:30 +05:30 +05:45 +06:30 +09:30 +10:30".split())
ZONES += ("+12:45", "+13:45", "+14:00", "-02:30", "-03:30")
_KNOWN = frozenset(DATES)
FIRST_YEAR, LAST_YEAR = 1800, 2200
_FIELDS = {"%d": r"(?P<d>\d{1,2})", "%m": r"(?P<m>\d{1,2})", "%Y": r"(?P<Y>\d{4})"}
_FIELDS |= {"%y": r"(?P<y>\d\d)", "%b": "(?P<b>[A-Z][a-z]{2})", "%B": "(?P<b>[A-Z][a-z]{2,8})"}
_FIELDS |= {"%^b": "(?P<b>[A-Z]{3})", "%_b": "(?P<b>[a-z]{3})"}
_DAYS = {
    day: re.compile(re.sub("%[_^]?.", lambda found: _FIELDS[found[0]], day.replace(".", r"\.")))
    for day in DAYS[:-1]
}
_DAYS[COMPACT] = re.compile(r"(?P<Y>19\d\d|20\d\d)(?P<m>\d\d)(?P<d>\d\d)")
_ANY_DAY = re.compile(  # one look at a cell that is no date
    r"\d{1,4}([-/.])\d\d?\1\d{1,4}|(?:19|20)\d{6}|\d\d? [A-Z][a-z]{2,8} \d{4}"
    r"|[A-Z][a-z]{2,8} \d\d?, \d{4}|\d\d?(-?)[A-Za-z]{3}\2\d{2,4}"
)
_TIME = re.compile(  # hours alone are no offset in a slot such as 10:00-11
    r"([T ])(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(?: ?([AaPp])[Mm]| ?(Z|[+-]\d\d:?\d\d|(?(4)[+-]|\+)\d\d))?$"
)
_NAMES = "January February March April May June July August September October November December"
_MONTHS = {name: place + 1 for place, name in enumerate(_NAMES.split())}
_SHORT = {name[:3]: place for name, place in _MONTHS.items()}
NEUTRAL, PADDED, UNPADDED = range(3)  # 12/11/2020, 03/01/2020, 3/1/2020
# Seconds of which moments are multiples, whatever their format shows. 0: of fractions.
GRAINS = (DAY, 3600, 60, 1, 0)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UUID, NAMED = "uuid", "id-#"  # how new identifiers are written, if they are no numbers
WIDEST = 20
_SPELT = (pd.Interval, pd.Period)  # as (30, 50] and 2024-03
IDENTIFIERS = (UUID, *("0" * width for width in range(2, WIDEST + 1)))

# -- the survey ------------------------------------------------------------------------------------

# What a survey counts of a cell, in three histograms a column: what it is, how it is written, and
# how large it is. A cell is in at most one place of each.


class What(IntEnum):
    """What a cell is. Numbers of another style and dates with a zone have places of their own."""

    GAP, NUMBER, TRUTH, DATE, CATEGORY, TEXT, OBJECT = range(7)
    DIGITS = 7  # a text of digits, in a source where numbers are no texts
    LEADING_ZEROS = 8
    LARGE = 9  # a whole number beyond 10¹⁵
    COMPACT_DATE = 10  # 20241231
    COMPACT_TEXT = 11  # the same as a text, in a source where numbers are none
    EITHER_COMMA = 12  # 1,234
    EITHER_POINT = 13  # 1.234
    EITHER_TEXT = 14  # the same as a text, in a source where numbers are none
    STYLED = 15
    ZONED = 15 + len(STYLES) - 1


# Where the places of dates, words and identifiers begin, in how a cell is written.
DATED = len(AFFIXES) * len(DECIMALS)
WORDED = DATED + len(MEANINGS) * 3 * len(GRAINS)
NUMBERED = WORDED + len(WORDS)
LOWEST, HIGHEST = -64, 50  # powers of two between which a survey counts magnitudes: to 10^15
POWERS = HIGHEST - LOWEST + 1
CODES = NUMBERED + len(IDENTIFIERS)  # the last place of how a cell is written: as 1,2,3
# From here on the magnitudes of 1,234 and 1.234. A place fits both, of 1 to 999 and of a thousand
# times as much, for either sign.
THOUSANDS = 2 * POWERS + 1
MEANT = 20
YEARS = THOUSANDS + 2 * MEANT
LINED = YEARS + LAST_YEAR - FIRST_YEAR  # from here on the words of a line
MOST_WORDS = 24  # of a line. Longer ones count as this.
SURVEY_SIZES = (What.ZONED + len(ZONES), CODES + 1, LINED + MOST_WORDS)


@dataclass(frozen=True)
class Cells:
    """The cells of a column as texts, each distinct one once."""

    places: np.ndarray  # (N,) in `texts` (-1: a gap)
    texts: Sequence[str]
    # of each text, whether it was a text in a source where numbers are none
    are_texts: Sequence[bool] = ()
    objects: np.ndarray | None = None  # (N,) cells that are lists or objects, and gaps here

    @classmethod
    def of(cls, column: pd.Series) -> Cells:
        """Return cells as a person writes them. A list or an object is a gap.

        A category may be an interval or a period, as `pd.cut` makes them.

        >>> Cells.of(pd.Series([5.0, None, 2.5, 5.0])).texts
        ['5', '2.5']
        """
        has_types, objects = not facts_of(column).is_text, None
        if column.dtype == object:
            found = column.where(column.notna(), None).tolist()
            own = np.arange(len(found))
        else:
            try:
                own, distinct = pd.factorize(widened(column))
                found = distinct.tolist()
            except (TypeError, NotImplementedError):  # Arrow's lists
                return cls(np.full(len(column), -1), [], [], column.notna().to_numpy(bool))
        if isinstance(column.dtype, pd.CategoricalDtype):
            found = [str(each) if isinstance(each, _SPELT) else each for each in found]
        known: dict[tuple[str, bool], int] = {}
        places = []
        for cell in found:
            is_kept = isinstance(cell, WRITABLE)
            text = plain(plain_cell(cell)) if is_kept else ""
            is_gap = not text or text.isspace() or CONTROL.search(text) is not None
            key = text, has_types and isinstance(cell, str)
            places.append(-1 if is_gap else known.setdefault(key, len(known)))
        are_objects = [cell is not None and not isinstance(cell, WRITABLE) for cell in found]
        if any(are_objects):
            objects = np.array([*are_objects, False])[own]
        texts = [text for text, _ in known]
        return cls(np.array([*places, -1])[own], texts, [is_text for _, is_text in known], objects)

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


def one_type_each(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose columns of mixed cells are texts, since a file has one type a column.

    >>> one_type_each(pd.DataFrame({"age": [31, "n/a", None]})).age.tolist()
    ['31', 'n/a', nan]
    """
    for name in frame.select_dtypes(object):
        cells = Cells.of(frame[name])
        texts = np.array([*cells.texts, None], object)[cells.places]
        frame = frame.assign(**{str(name): pd.array(texts, "str")})
    return frame


class ReadNumber(NamedTuple):
    """A number, and how it was written."""

    value: float
    decimals: int  # that are written
    style: str  # of `STYLES`
    affix: str  # of `AFFIXES`
    fine: int  # decimals without zeros at the end


def read_number(text: str, has_commas: bool = False) -> ReadNumber | None:
    """Return a number and how it is written. None: it is none.

    1,234 and 1.234 have two meanings. `has_commas`: the column has decimal commas.

    >>> [tuple(read_number(text)) for text in ("3.10", "$1,234.5", "12,00 %")]
    [(3.1, 2, '', '', 1), (1234.5, 1, '1,234.', '$#', 1), (12.0, 2, ',', '# %', 0)]
    """
    if (parts := _BARE.fullmatch(_NO_BREAK.sub(" ", text.strip()))) is None:
        return None
    sign, before, gap, within, number, behind, after = (part or "" for part in parts.groups())
    if _PADDED.match(number) or (before and after) or (sign and within) or (within and not before):
        return None
    for comma in (has_commas, not has_commas):
        if (found := (_COMMA if comma else _POINT).fullmatch(number)) is None:
            continue
        marks = number.replace(".", "").replace(",", ".") if comma else re.sub("[,'’]", "", number)
        value = parse_number(marks)
        if value is None or value > 1e15:
            return None
        digits, most = found[2] or "", MOST_DECIMALS if comma else FLOATING
        fine = FLOATING if "e" in number.lower() else min(len(digits.rstrip("0")), most)
        decimals = FLOATING if fine == FLOATING else min(len(digits), MOST_DECIMALS)
        style = "," if comma and digits else ""
        if found[1]:
            style = "1.234," if comma else "1,234.".replace(",", re.sub(r"\d", "", found[1])[0])
        affix = f"{before}{gap}#{behind}{after}" if before or after else ""
        value = float(-value if "-" in sign + within else value)
        return ReadNumber(value, decimals, style, affix, fine)
    return None


def have_commas(texts: Sequence[str]) -> bool:
    """Return whether cells have decimal commas. Exact: for a twin, or real rows that are compared.

    >>> have_commas(["4,221", "0,567", "7"]), have_commas(["4,221", "7"])
    (True, False)
    """
    both = ((read_number(text), read_number(text, has_commas=True)) for text in texts)
    one_meaning = (a for a, b in both if a and b and a.style == b.style)
    told = [each.style in COMMAS for each in one_meaning if each.style or each.decimals]
    return sum(told) > len(told) / 2


class ReadDate(NamedTuple):
    """What a text may mean as a date, and how it was written."""

    meanings: dict[str, float]  # by format of `DATES`, seconds since 1970
    padding: int = NEUTRAL
    zone: str = ""  # of `ZONES`
    grain: int = 0  # of `GRAINS`


def read_date(text: str) -> ReadDate:
    """Return what a text means as a date, by the clock that it shows. No meanings: it is none.

    >>> read_date("2024-02-29T00:00:01Z").zone, read_date("3/4/2024").padding == UNPADDED
    ('Z', True)
    >>> [read_date(text).meanings for text in ("2024-02-29", "30.02.2024")]
    [{'%Y-%m-%d': 1709164800.0}, {}]
    """
    text, found, padding = text.strip(), dict[str, float](), NEUTRAL
    if not 6 <= len(text) <= 40:
        return ReadDate(found)
    time, zone, clock = "", "", datetime.timedelta(0)
    if ":" in text and (parts := _TIME.search(text)) is not None:
        between, hour, minute, second, rest, half, offset = parts.groups()
        hours, text = int(hour), text[: parts.start()]
        zone = offset and (offset if offset == "Z" else f"{offset[:3]}:{offset[3:][-2:] or '00'}")
        first, last = (0, 23) if half is None else (1, 12)
        is_time = first <= hours <= last and int(minute) < 60 and int(second or 0) < 60
        if not is_time or zone not in (None, *ZONES):
            return ReadDate(found)
        if half is not None:
            hours = hours % 12 + 12 * (half.lower() == "p")
        fraction = "" if rest is None else ".%3f" if len(rest) <= 3 else ".%f"
        time = f"{between}{'%H' if half is None else '%I'}:%M{':%S' if second else ''}{fraction}"
        time += "" if half is None else " %p"
        micro = int((rest or "").ljust(6, "0")[:6])
        clock = datetime.timedelta(
            hours=hours, minutes=int(minute), seconds=int(second or 0), microseconds=micro
        )
        padding = _padding([hour]) if half is not None else NEUTRAL
    for day, pattern in _DAYS.items() if _ANY_DAY.fullmatch(text) else ():
        if day + time not in _KNOWN or (match := pattern.fullmatch(text)) is None:
            continue
        own = match.groupdict()
        names = _MONTHS if "%B" in day else _SHORT
        month = names.get(own["b"].title(), 0) if "b" in own else int(own["m"])
        year = int(own.get("Y") or 2000 + int(own["y"]) - 100 * (int(own["y"]) > 68))
        try:
            when = datetime.datetime(year, month, int(own["d"])) + clock
        except ValueError:
            continue
        if FIRST_YEAR <= when.year < LAST_YEAR:
            found[day + time] = (when - EPOCH).total_seconds()
            if day != COMPACT:
                fields = _padding([own["d"], own.get("m") or "10"])
                padding = fields if fields != NEUTRAL else padding
    grains = (clock % datetime.timedelta(seconds=each) for each in GRAINS[:-1])
    grain = next((n for n, rest in enumerate(grains) if not rest), len(GRAINS) - 1)
    return ReadDate(found, padding, zone or "", grain)


def _padding(fields: Sequence[str]) -> int:
    if any(field.startswith("0") for field in fields):
        return PADDED
    return UNPADDED if any(len(field) == 1 for field in fields) else NEUTRAL


def unpadded_form(form: str) -> str:
    """Return a date format without zeros before days, months and hours of AM and PM."""
    return re.sub("%([dmI])", r"%-\1", form)


def write_date(when: datetime.datetime, form: str) -> str:
    """Return a date in a format of `DATES`, without zeros if it has `%-d`.

    >>> write_date(datetime.datetime(2024, 2, 9, 18), "%-m/%-d/%Y %-I:%M %p")
    '2/9/2024 6:00 PM'
    """
    month = when.strftime("%b")
    fields = {
        "%^b": month.upper(),
        "%_b": month.lower(),
        "%-d": when.day,
        "%-m": when.month,
        "%-I": when.hour % 12 or 12,
    }
    for code, value in fields.items():
        form = form.replace(code, str(value))
    return when.strftime(form.replace("%3f", f"{when.microsecond // 1000:03}"))


def read_truth(text: str) -> int | None:
    """Return 0 for a no and 1 for a yes in one of the spellings that are known, or None.

    >>> [read_truth(text) for text in ("no", "Y", "TRUE", "0", "maybe")]
    [0, 1, 1, 0, None]
    """
    return _TRUTH.get(text.strip())


def loosely(text: str) -> str:
    """Return a cell as it is compared with declared values, without blanks and capitals.

    >>> [loosely(text) for text in (" York", "5.0", "5.10", "Maße")]
    ['york', '5', '5.10', 'maße']
    """
    return re.sub(r"^(-?[0-9]+)\.0+$", r"\1", text.strip().lower())


def place_magnitude(value: float) -> int:
    """Return the place of a number among zero and the powers of two of either sign.

    >>> [place_magnitude(v) - POWERS + LOWEST for v in (1, 1.5, 2)], place_magnitude(0) - POWERS
    ([1, 1, 2], 0)
    """
    if abs(value) < 2.0**LOWEST:
        return POWERS
    power = min(math.frexp(abs(value))[1] - 1, HIGHEST) - LOWEST
    return POWERS + (power + 1 if value > 0 else -power - 1)


def survey_codes(cells: Cells) -> np.ndarray:
    """Return (N, 3) the place of each cell in the survey's histograms, -1 for none."""
    table = np.full((len(cells.texts) + 1, 3), -1, np.int64)  # the last row is for gaps
    table[-1, 0] = What.GAP
    are_texts = cells.are_texts or [False] * len(cells.texts)
    for place, (cell, is_text) in enumerate(zip(cells.texts, are_texts, strict=True)):
        table[place] = survey_places(cell.strip(), is_text)
    codes = table[cells.places]
    if cells.objects is not None:
        codes[cells.objects] = What.OBJECT, -1, -1
    return codes


def survey_places(text: str, is_text: bool) -> tuple[int, int, int]:
    """Return what a cell is, how it is written and how large it is. `is_text`: in its source."""
    dates = read_date(text)
    if dates.meanings:
        meaning = tuple(dates.meanings)
        when = EPOCH + datetime.timedelta(seconds=dates.meanings[meaning[0]])
        written = 3 * MEANINGS.index(meaning) + dates.padding
        written = DATED + written * len(GRAINS) + dates.grain
        year = YEARS + when.year - FIRST_YEAR
        if meaning == (COMPACT,):
            return What.COMPACT_TEXT if is_text else What.COMPACT_DATE, written, year
        if dates.zone:
            return What.ZONED + ZONES.index(dates.zone), written, year
        # 2.10.14 may be a version, so it is a date only where one is declared. 12.10.14 is one.
        is_version = meaning[0].startswith(("%d.%m.%y", "%Y.%m.%d")) and dates.padding == UNPADDED
        return What.CATEGORY if is_version else What.DATE, written, year
    if (number := read_number(text)) is not None:
        what = What.STYLED + STYLES.index(number.style) - 1 if number.style else What.NUMBER
        if is_text and what == What.NUMBER and not number.affix:
            what = What.DIGITS if number.decimals == 0 else What.STYLED
        size, decimals = place_magnitude(number.value), (number.decimals, number.fine)
        written = AFFIXES.index(number.affix) * len(DECIMALS) + DECIMALS.index(decimals)
        other = read_number(text, has_commas=True) or number
        if other.style != number.style:
            is_point, fine = not number.style, max(number.fine, other.fine)
            is_text &= is_point and not number.affix
            what = What.EITHER_TEXT if is_text else What.EITHER_COMMA + is_point
            written += EITHER + fine - DECIMALS.index(decimals)
            powers = (
                abs(place - POWERS) - 1 + LOWEST for place in (size, place_magnitude(other.value))
            )
            size = THOUSANDS + sum(powers) - 9 + MEANT * (number.value < 0)
        return what, written, size
    if text in _TRUTH:
        what = What.TRUTH if text in ("False", "True") and not is_text else What.CATEGORY
        return what, WORDED + WORDS.index(text), -1
    if text.isdecimal() and text.isascii() and text.startswith("0") and 2 <= len(text) <= WIDEST:
        return What.LEADING_ZEROS, NUMBERED + IDENTIFIERS.index("0" * len(text)), -1
    if _LARGE.fullmatch(text) and -(2**63) <= int(text) < 2**64:
        return What.DIGITS if is_text else What.LARGE, -1, -1
    if _UUID.fullmatch(text):
        return What.CATEGORY, NUMBERED, -1
    words = len(text.split())
    line = LINED + min(words, MOST_WORDS) - 1
    if _CODES.fullmatch(text):
        return What.CATEGORY, CODES, line
    is_prose = words >= PROSE_WORDS or len(text) >= PROSE_LETTERS
    return What.TEXT if is_prose else What.CATEGORY, -1, line
