"""Scores and points in tables of words: beside figures, and all of them at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.findings import Curve, Histogram, Measured, Score
from evaluation.report.charts.lines import Point
from evaluation.report.charts.numbers import interval, number, short, with_interval
from evaluation.report.charts.styles import in_order
from evaluation.report.groups import words

_MOST_POINTS = 60  # of a line


@dataclass(frozen=True)
class Table:
    """A caption, column heads and rows, all in words; each row's first cell is its head."""

    caption: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


def all_scores(measured: Iterable[Measured]) -> Table:
    """Return every score with all that is known of it."""
    return Table(
        "All scores",
        ("score", "where", "value", "95 % interval", "goal", "n", "question", "computed from"),
        tuple(
            (
                m.score.name,
                words(m.place),
                number(m.score.value),
                interval(m.score),
                "match real rows" if m.score.goal == "match" else m.score.goal,
                f"{m.score.n:,}",
                m.question,
                m.score.where,
            )
            for m in measured
        ),
    )


def single_scores(measured: Sequence[Measured]) -> Table | None:
    """Return what stands alone, so that no figure shows it."""
    rows = tuple(
        (m.score.name, words(m.place), number(m.score.value), interval(m.score)) for m in measured
    )
    head = ("score", "where", "value", "95 % interval")
    return Table("Scores with nothing beside them", head, rows) if rows else None


def by_value(measured: Iterable[Measured]) -> list[Table]:
    """Return a table a measure of label values: a row a value, a column a kind of rows."""
    tables: dict[str, dict[str, dict[str, Score]]] = {}
    for m in measured:
        if "value" in m.place:
            rest = words({k: v for k, v in m.place.items() if k not in ("value", "rows")})
            caption = f"{m.score.name} of each label" + (f": {rest}" if rest else "")
            cells = tables.setdefault(caption, {}).setdefault(m.place["value"], {})
            cells[m.place.get("rows", "all rows")] = m.score
    return [_of_values(caption, cells) for caption, cells in tables.items()]


def _of_values(caption: str, cells: Mapping[str, Mapping[str, Score]]) -> Table:
    columns = in_order(column for row in cells.values() for column in row)
    rows = (
        (value, *(with_interval(row[c]) if c in row else "" for c in columns))
        for value, row in cells.items()
    )
    return Table(caption, ("label", *columns), tuple(rows))


def of_curve(curve: Curve) -> Table:
    """Return a curve's points."""
    rows = (
        (
            name,
            number(x) if x is None or not math.isfinite(x) else short(x),
            number(y),
            _range(ends),
        )
        for name in in_order(curve.series)
        for x, y, *ends in _thinned(curve.series[name])
    )
    return Table(curve.name, ("line", curve.x, curve.y, "95 % interval"), tuple(rows))


def of_histogram(histogram: Histogram) -> Table:
    """Return a histogram's shares."""
    names = in_order(histogram.series)
    rows = (
        (str(each), *(number(histogram.series[name][place]) for name in names))
        for place, each in enumerate(histogram.bins)
    )
    return Table(f"{histogram.name}: share of rows", (histogram.x, *names), tuple(rows))


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return every k-th point, so that a table of them can be read; the last one too."""
    if len(points) <= _MOST_POINTS:
        return points
    return [*points[:: math.ceil(len(points) / (_MOST_POINTS - 1))], points[-1]]


def _range(ends: Sequence[float | None]) -> str:
    low, high = ends or (None, None)
    return "" if low is None or high is None else f"[{number(low)}, {number(high)}]"
