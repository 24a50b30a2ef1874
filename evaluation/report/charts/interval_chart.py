"""Scores side by side, each with its 95 % interval: bars where 0 is the least value, else dots."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evaluation.findings import Score
from evaluation.report.charts.axes import Scale, round_above, spanning
from evaluation.report.charts.numbers import has_interval, interval, number, short, with_interval
from evaluation.report.charts.styles import PLAIN, ROWS, Style, in_order, strong, styles
from evaluation.report.charts.svg import WIDTH, drawing, line, shortened, tag, text

_PITCH, _BAR, _FOOT = 36, 9, 22
_VALUES = 128  # units that value and interval take at the right


@dataclass(frozen=True)
class Reference:
    """A value that the others are held against.

    Args:
        value: where it is drawn.
        label: what it is.
        is_middle: it may be missed to both sides, so that bars from 0 would mislead.
    """

    value: float
    label: str
    is_middle: bool = False


def interval_chart(
    title: str, rows: Mapping[str, Score], domain: tuple[float, float], reference: Reference | None
) -> Markup:
    """Draw a row a score: its name and value, and below them bar or dot with its interval."""
    names = in_order(rows)
    looks = styles(name for name in names if name in ROWS)
    looks |= {name: PLAIN for name in names if name not in ROWS}
    scale = Scale(*domain, 1, WIDTH - 1)
    top = 20 if reference else 0
    foot = top + len(names) * _PITCH
    parts = [
        part
        for place, name in enumerate(names)
        for part in _row(name, rows[name], looks[name], scale, top + place * _PITCH)
    ]
    described = "; ".join(f"{name} {with_interval(rows[name])}" for name in names)
    if reference:
        described += f"; {reference.label} {number(reference.value)}"
    marks = _reference(reference, scale, top, len(names)) if reference else []
    return drawing(foot + _FOOT, title, described, *_axis(scale, foot), *marks, *parts)


def domain_of(scores: Sequence[Score], reference: Reference | None = None) -> tuple[float, float]:
    """Return the ends of an axis for scores of one name.

    From the least possible value, where there is one, so that bars are honest; to the greatest, or
    to a round number where all are far below it. What is held against a value between both ends
    is drawn as dots about it, and no nearer than a tenth of what is possible: chance fills no axis.
    """
    least, greatest = min(s.minimum for s in scores), max(s.maximum for s in scores)
    marked = [reference.value] if reference else []
    shown = [v for s in scores for v in (s.value, s.low, s.high)] + marked
    shown = [v for v in shown if math.isfinite(v)]
    low, high = spanning(shown)
    if reference and reference.is_middle:
        reach = (greatest - least) / 10 if math.isfinite(greatest - least) else 0.0
        low, high = min(low, reference.value - reach), max(high, reference.value + reach)
        return max(least, low), min(greatest, high)
    if math.isfinite(least):
        low = least
        top = max([*shown, least])
        high = least + round_above(top - least) if top > least else least + 1
        if math.isfinite(greatest) and top - least > (greatest - least) / 3:
            high = greatest
    return low, high


def _row(name: str, score: Score, look: Style, scale: Scale, y: float) -> Iterator[Markup]:
    middle = y + 15 + _BAR / 2
    yield text(shortened(name, WIDTH - _VALUES - 8), 0, y + 10, f"label{strong(name)}")
    yield tag(
        "text",
        tag("tspan", number(score.value), class_="value"),
        f" {interval(score)}",
        x=WIDTH,
        y=y + 10,
        text_anchor="end",
        class_="range",
    )
    if math.isnan(score.value):
        return
    at, is_bar = scale(score.value), score.minimum == scale.low
    if is_bar:
        yield look.bar(name, scale.start, y + 15, max(at - scale.start, 0.5), _BAR)
    if has_interval(score):
        ends = f"M{scale(score.low):.1f} {middle - 3:.1f}v6m0 -3H{scale(score.high):.1f}m0 -3v6"
        yield tag("path", d=ends, class_="halo") + tag("path", d=ends, class_="whisker")
    if not is_bar:
        yield look.marker(at, middle)


def _axis(scale: Scale, y: float) -> Iterator[Markup]:
    ticks = scale.ticks(3 if scale.low == 0 else 4)
    for tick in ticks:
        yield line(scale(tick), 0, scale(tick), y, "grid")
    yield line(scale.start, y, scale.end, y, "axis")
    for tick in ticks:
        place = scale(tick)
        anchor = "start" if place < 12 else "end" if place > WIDTH - 12 else "middle"
        yield text(short(tick), place, y + 14, "tick", anchor)


def _reference(reference: Reference, scale: Scale, top: float, rows: int) -> Iterator[Markup]:
    """Draw a line beside the bars of each row, never through the names above them."""
    x = scale(reference.value)
    room = len(reference.label) * 5.2
    anchor = "start" if x < room / 2 else "end" if x > WIDTH - room / 2 else "middle"
    for row in range(rows):
        start = top + row * _PITCH + 13
        yield line(x, start, x, start + _BAR + 5, "reference")
    yield text(reference.label, x, 9, "note", anchor)
