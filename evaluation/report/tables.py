"""Scores in words: numbers, sentences on measures, groups of scores side by side, and tables.

The words for places are those of the measuring modules. A measure that is not known here is shown
too. Sentences that do not depend on the run are in meanings.toml.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.fidelity.measures import SECOND, TRAIN
from evaluation.findings import Curve, Histogram, Measured, Score
from evaluation.leakage.roc import AUROC, RATES
from evaluation.release import (
    BASELINE,
    NON_PRIVATE,
    PRIVATE_CLASSIFIER,
    REAL,
    REAL_SMALL,
    TWIN,
    TWIN_SMALL,
)

CLAIM = "claimed epsilon"
NEARER = "nearer to train than to held-out"
COMMONEST = "the commonest label"
GUESSING = {AUROC: 0.5, **RATES, NEARER: 0.5}  # what is found without any leak
HELD_OUT, TRAIN_SAMPLE = "held-out", "train, as many rows as held-out"

# Kinds of rows in the order in which they are listed, with the colour that each has on every
# figure. What is compared most stands next to each other.
ROWS = {
    REAL: 1,
    TRAIN: 1,
    "train only": 1,
    TRAIN_SAMPLE: 1,
    SECOND: 5,
    HELD_OUT: 5,
    "held-out only": 5,
    REAL_SMALL: 5,
    PRIVATE_CLASSIFIER: 4,
    NON_PRIVATE: 3,
    TWIN: 0,
    TWIN_SMALL: 0,
    BASELINE: 2,
}

_STATED = tomllib.loads(Path(__file__).with_name("meanings.toml").read_text("utf-8"))
SECTIONS: dict[str, dict[str, str]] = _STATED["section"]
MISSING: dict[str, dict[str, str]] = _STATED["missing"]
RULES: dict[str, str] = _STATED["rule"]

# Scores stand side by side if they differ in the first of these that their place has.
_COMPARED = ("rows", "against", "attack", "copies", "policy")
_NEEDS_NO_NAME = ("label", "classifier", "attack", "policy", "rows", "value", "kind")
_MOST_POINTS = 60  # of a line, in its table
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def explain_measure(name: str, score: Score | None = None) -> str:
    """Return the sentence for a measure. An unknown one gets the way that it should go."""
    if name in _STATED["measure"]:
        return str(_STATED["measure"][name])
    for start, sentence in _STATED["start"].items():
        if name.lower().startswith(start.lower()):
            return str(sentence)
    return _STATED["goal"][score.goal] if score else "Read each line from left to right."


def format_number(value: float | None) -> str:
    """Return about three significant digits, or a dash for what is no number.

    >>> [format_number(v) for v in (0.70449, 12345.6, -0.5, 1e-5, float("nan"))]
    ['0.704', '12,346', '−0.500', '1.0 × 10⁻⁵', '–']
    """
    if value is None or math.isnan(value):
        return "–"
    size = abs(value)
    if math.isinf(size):
        digits = "∞"
    elif 0 < size < 0.0005:
        digits = _write_power(f"{size:.1e}")
    else:
        decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
        digits = f"{size:,.{decimals}f}"
    return f"−{digits}" if value < 0 else digits


def format_tick(value: float) -> str:
    """Return a round number, as on an axis, in as few digits as it has.

    >>> [format_tick(v) for v in (0.5, 2000.0, 1e-5, -1.0, 2.5e-7)]
    ['0.5', '2,000', '10⁻⁵', '−1', '2.5 × 10⁻⁷']
    """
    digits = f"{abs(value):.4g}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    return ("−" if value < 0 else "") + _write_power(digits)


def _write_power(scientific: str) -> str:
    mantissa, mark, exponent = scientific.partition("e")
    if not mark:
        return scientific
    raised = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return raised if mantissa == "1" else f"{mantissa} × {raised}"


def has_interval(score: Score) -> bool:
    """Return whether a value is known, and how well."""
    return not any(map(math.isnan, (score.value, score.low, score.high)))


def format_interval(score: Score) -> str:
    """Return a score's 95 % interval, or "" where it has none."""
    if not has_interval(score):
        return ""
    return f"[{format_number(score.low)}, {format_number(score.high)}]"


def format_score(score: Score) -> str:
    """Return "0.812 [0.794, 0.829]", as far as it is known."""
    return f"{format_number(score.value)} {format_interval(score)}".rstrip()


def sort_rows(names: Iterable[str]) -> list[str]:
    """Return names in the order in which kinds of rows are listed, unknown ones last."""
    known = list(ROWS)
    key = {name: known.index(name) if name in ROWS else len(known) for name in names}
    return sorted(key, key=key.__getitem__)


def place_in_words(place: Mapping[str, str]) -> str:
    """Return a place in words.

    >>> place_in_words({"label": "sentiment", "classifier": "tfidf", "sees": "model"})
    'sentiment, tfidf, seeing model'
    """
    names = {"sees": "seeing"}
    return ", ".join(
        v if k in _NEEDS_NO_NAME else f"{names.get(k, k)} {v}" for k, v in place.items()
    )


@dataclass(frozen=True)
class Group:
    """Scores of one name whose places differ in one word only, by that word.

    Args:
        name: of the scores.
        place: what they have in common.
        members: by the word in which they differ, or "" where they have none to differ in.
    """

    name: str
    place: Mapping[str, str]
    members: dict[str, Measured]

    @property
    def scores(self) -> dict[str, Score]:
        """The scores by the word in which they differ."""
        return {word: m.score for word, m in self.members.items()}

    @property
    def title(self) -> str:
        """Name and place in words."""
        return ", ".join(filter(None, (self.name, place_in_words(self.place))))

    @property
    def is_drawn(self) -> bool:
        """Whether there is something to compare with."""
        return len(self.members) > 1 or self.name in GUESSING


def group_scores(measured: Iterable[Measured]) -> list[Group]:
    """Put scores side by side whose places differ in one word only."""
    found: dict[tuple[object, ...], Group] = {}
    for m in measured:
        compared = next((word for word in _COMPARED if word in m.place), "")
        rest = {k: v for k, v in m.place.items() if k != compared}
        key = (m.score.name, compared, *sorted(rest.items()))
        group = found.setdefault(key, Group(m.score.name, rest, {}))
        group.members[m.place.get(compared, "")] = m
    return list(found.values())


def find_claim(measured: Sequence[Measured], bound: Measured) -> float | None:
    """Return the ε that was claimed where a lower bound was found. None: nothing is claimed."""
    place = bound.place.items()
    claims = (m.score.value for m in measured if m.score.name == CLAIM and m.place.items() <= place)
    claim = next(claims, math.nan)
    return claim if math.isfinite(claim) else None


@dataclass(frozen=True)
class Table:
    """A caption, column heads and rows, all in words. Each row's first cell is its head."""

    caption: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


def list_scores(measured: Iterable[Measured]) -> Table:
    """Return a table of every score with all that is known of it."""
    head = ("score", "where", "value", "95 % interval", "goal", "n", "question", "computed from")
    rows = (
        (
            m.score.name,
            place_in_words(m.place),
            format_number(m.score.value),
            format_interval(m.score),
            "match real rows" if m.score.goal == "match" else m.score.goal,
            f"{m.score.n:,}",
            m.question,
            m.score.where,
        )
        for m in measured
    )
    return Table("All scores", head, tuple(rows))


def list_single_scores(measured: Iterable[Measured]) -> Table | None:
    """Return a table of what stands alone, so that no figure shows it."""
    whole = list_scores(measured)
    rows = tuple(row[:4] for row in whole.body)
    return Table("Scores with nothing beside them", whole.head[:4], rows) if rows else None


def list_by_label(measured: Iterable[Measured]) -> list[Table]:
    """Return a table for each measure of label values: a row a value, a column a kind of rows."""
    tables: dict[str, dict[str, dict[str, Score]]] = {}
    for m in measured:
        if "value" in m.place:
            rest = place_in_words({k: v for k, v in m.place.items() if k not in ("value", "rows")})
            caption = f"{m.score.name} of each label" + (f": {rest}" if rest else "")
            cells = tables.setdefault(caption, {}).setdefault(m.place["value"], {})
            cells[m.place.get("rows", "all rows")] = m.score
    made = []
    for caption, by_value in tables.items():
        columns = sort_rows(column for row in by_value.values() for column in row)
        rows = (
            (value, *(format_score(row[c]) if c in row else "" for c in columns))
            for value, row in by_value.items()
        )
        made.append(Table(caption, ("label", *columns), tuple(rows)))
    return made


def list_curve(curve: Curve) -> Table:
    """Return a table of a curve's points, at most about sixty of each line."""
    rows = []
    for name in sort_rows(curve.series):
        points = curve.series[name]
        if len(points) > _MOST_POINTS:  # every k-th one, and the last
            points = [*points[:: math.ceil(len(points) / (_MOST_POINTS - 1))], points[-1]]
        for x, y, *ends in points:
            at = format_number(x) if x is None or not math.isfinite(x) else format_tick(x)
            low, high = ends or (None, None)
            known = low is not None and high is not None
            spread = f"[{format_number(low)}, {format_number(high)}]" if known else ""
            rows.append((name, at, format_number(y), spread))
    return Table(curve.name, ("line", curve.x, curve.y, "95 % interval"), tuple(rows))


def list_histogram(histogram: Histogram) -> Table:
    """Return a table of a histogram's shares."""
    names = sort_rows(histogram.series)
    rows = (
        (str(each), *(format_number(histogram.series[name][place]) for name in names))
        for place, each in enumerate(histogram.bins)
    )
    return Table(f"{histogram.name}: share of rows", (histogram.x, *names), tuple(rows))
