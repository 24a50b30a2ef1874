"""Charts of the report as inline SVG with few elements: intervals, bars, lines and steps.

All text stays text, so that a browser can search it, enlarge it and read it aloud. The background
is transparent and every colour is a variable of page.css, which has values for light, dark and
print. The same numbers give the same bytes. This module knows no findings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ..findings import Score
from ..release import TWIN

if TYPE_CHECKING:
    from jinja2 import Template
from .verdicts import (
    ROWS,
    format_interval,
    format_number,
    format_score,
    format_tick,
    sort_rows,
)

Point = tuple[Any, ...]  # (x, y) or (x, y, low, high)
Mark = tuple[float, str]  # a value to compare the others with, and its meaning

# A picture is drawn on 340 units. That is about its width in pixels on a telephone and in a column
# of a wide page, so letters have one size everywhere.
WIDTH, _ROW, _BAR = 340, 36, 9  # of a picture, of a row of intervals, of its bar
_LETTER = 5.9  # mean width of a letter of a label, in units
_PLOT = 170  # height of an area of lines
_MOST_MARKERS = 14  # points of a line that are all marked
_LEAST_RATE = 1e-3  # where the axes of an ROC curve begin: one false alarm in a thousand
_SOFT = "fill: var(--soft)"
_ROUND, _DASHED = "stroke-linecap: round", "stroke-dasharray: 5 3"
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def draw_intervals(
    title: str, rows: Mapping[str, Score], domain: tuple[float, float], mark: Mark | None = None
) -> Markup:
    """Draw a row for each score: name and value, and below them a bar or dot with its interval."""
    names, (low, high) = sort_rows(rows), domain
    top = 20 if mark else 0
    foot = top + len(names) * _ROW
    right = WIDTH - 6
    canvas = Canvas((6, top, right, foot), [domain])
    for tick in find_ticks(low, high, 3 if low == 0 else 4):
        canvas.stroke(f"M {canvas.place('x', tick)} {top} V {foot}", "rule", 0.8)
        canvas.write(format_tick(tick), canvas.place("x", tick), foot + 16, "middle", _SOFT)
    canvas.stroke(f"M 6 {foot} H {right}", "soft", 0.8)
    for number, name in enumerate(names):
        score, y = rows[name], top + number * _ROW
        colour, is_twin = f"s{ROWS.get(name, 1)}", name == TWIN
        # 128 units on the right are for the value and its interval.
        look = "fill: var(--ink); font-weight: 650" if is_twin else "fill: var(--ink)"
        canvas.write(shorten(name, WIDTH - 136), 6, y + 12, "start", look)
        canvas.write(format_score(score), right, y + 12, "end", _SOFT)
        if math.isnan(score.value):
            continue
        x, middle = canvas.place("x", score.value), y + 16 + _BAR / 2
        if score.minimum == low:  # only then is the length of a bar honest
            shade = f"fill: var(--{colour}); fill-opacity: {1 if is_twin else 0.22}"
            canvas.stroke(f"M 6 {y + 16} H {x} v {_BAR} H 6 Z", colour, 1, shade)
        else:
            canvas.stroke(f"M {x} {middle} h 0", colour, 7, _ROUND)
        if format_interval(score):
            ends = [canvas.place("x", end) for end in (score.low, score.high)]
            caps = " ".join(f"M {end} {middle - 3} v 6" for end in ends)
            canvas.stroke(f"M {ends[0]} {middle} H {ends[1]} {caps}", "ink", 1.5)
        if mark:  # next to the bar of each row, never through the names above them
            at = canvas.place("x", mark[0])
            canvas.stroke(f"M {at} {y + 14} v {_BAR + 4}", "soft", 1.25, _DASHED)
    described = ", ".join(f"{name} {format_score(rows[name])}" for name in names)
    if mark:
        at = canvas.place("x", mark[0])
        side = "start" if at < WIDTH / 5 else "end" if at > WIDTH * 0.8 else "middle"
        canvas.write(mark[1], at, 12, side, _SOFT)
        described += f", {mark[1]} {format_number(mark[0])}"
    return canvas.finish(title, described, foot + 22)


def draw_bars(title: str, bins: Sequence[str], series: Mapping[str, Sequence[float]]) -> Markup:
    """Draw a row for each bin: its name, and a bar for each table."""
    looks = {name: f"s{ROWS.get(name, 1)}" for name in series}
    left, right, top = 124, WIDTH - 16, 15 * len(series) + 6
    row, thick = 7 + 8 * len(series), 7
    foot = top + row * len(bins)
    most = find_ticks(0, max(1e-9, *map(max, series.values())), 4, beyond=True)
    canvas = Canvas((left, top, right, foot), [(0.0, most[-1])])
    for tick in most:
        canvas.stroke(f"M {canvas.place('x', tick)} {top} V {foot}", "rule", 0.8)
        canvas.write(format_tick(tick), canvas.place("x", tick), foot + 16, "middle", _SOFT)
    for place, (name, shares) in enumerate(series.items()):
        shade = f"fill: var(--{looks[name]}); fill-opacity: {1 if name == TWIN else 0.22}"
        canvas.stroke(f"M 2 {15 * place + 3} h 26 v 7 h -26 Z", looks[name], 1, shade)
        canvas.write(shorten(name, WIDTH - 40), 36, 15 * place + 11)
        for number, share in enumerate(shares):
            y = top + number * row + 3 + 8 * place
            bar = f"M {left} {y} H {canvas.place('x', share)} v {thick} H {left} Z"
            canvas.stroke(bar, looks[name], 1, shade)
    for number, each in enumerate(bins):
        canvas.write(shorten(each, left - 6), left - 6, top + (number + 0.5) * row + 4, "end")
    canvas.stroke(f"M {left} {top} V {foot}", "soft", 0.8)
    canvas.write("share of rows", right, foot + 34, "end", _SOFT)
    return canvas.finish(title, describe_most(bins, series), foot + 40)


def find_domain(
    scores: Sequence[Score], mark: Mark | None = None, is_middle: bool = False
) -> tuple[float, float]:
    """Return the ends of an axis for scores of one name.

    It starts at the smallest possible value, if there is one, so that bars are honest. It ends at
    the largest, or at a round number if all are far below it. If scores may miss a mark in the
    middle to both sides, they are drawn as dots. The axis then shows at least a tenth of the
    possible range, so that a chance difference does not fill it.
    """
    least, greatest = min(s.minimum for s in scores), max(s.maximum for s in scores)
    shown = [v for s in scores for v in (s.value, s.low, s.high)] + ([mark[0]] if mark else [])
    shown = [v for v in shown if math.isfinite(v)]
    low, high = _find_span(shown)
    if mark and is_middle:
        reach = (greatest - least) / 10 if math.isfinite(greatest - least) else 0.0
        return max(least, min(low, mark[0] - reach)), min(greatest, max(high, mark[0] + reach))
    if math.isfinite(least):
        low, top = least, max([*shown, least])
        high = find_ticks(least, top, 4, beyond=True)[-1] if top > least else least + 1
        if math.isfinite(greatest) and top - least > (greatest - least) / 3:
            high = greatest
    return low, high


def draw_lines(
    title: str,
    x: str,
    y: str,
    series: Mapping[str, Sequence[Point]],
    log: str = "",
    marks: Sequence[Mark] = (),
    least: float | None = None,
    is_roc: bool = False,
) -> Markup | None:
    """Draw lines, with intervals if points have them. None if no point can be drawn.

    Points have rising x. Values that are not finite are left out. `log` names the logarithmic axes.
    Marks are horizontal lines. `least` is the lower end of the ordinate, and None follows the
    points. Both axes of an ROC curve are shares, and guessing gives the diagonal.
    """
    # On a logarithmic axis only an ROC curve keeps zeros. They are drawn at the end of the axis.
    floors = [0.0 if axis in log and not is_roc else -math.inf for axis in "xy"]
    drawn: dict[str, list[Point]] = {}
    for name in sort_rows(series):
        finite = (p for p in series[name] if None not in p[:2] and all(map(math.isfinite, p[:2])))
        if line := [p for p in finite if p[0] > floors[0] and p[1] > floors[1]]:
            drawn[name] = line
    if not drawn:
        return None
    points = [p for line in drawn.values() for p in line]
    heights = [v for p in points for v in p[1:] if v is not None] + [value for value, _ in marks]
    if is_roc:
        limits = [(_LEAST_RATE if axis in log else 0.0, 1.0) for axis in "xy"]
    else:
        left, right = min(p[0] for p in points), max(p[0] for p in points)
        bottom, top = _find_span(heights, "y" in log)
        bottom = bottom if least is None or "y" in log else least
        limits = [_find_span([left], "x" in log) if left == right else (left, right), (bottom, top)]
    looks = style_series(drawn)
    legend = {label: ("soft", _DASHED, "") for _, label in marks} | looks
    canvas, height = _open_area(x, y, legend, limits, log)
    (left, right), (bottom, _) = limits
    rules = [[(left, value), (right, value)] for value, _ in marks]
    if is_roc:  # a straight line on equal axes
        rules.append([(max(left, bottom),) * 2, (1.0, 1.0)])
    for rule in rules:
        canvas.stroke(canvas.line(rule), "soft", 1.25, _DASHED)
    for name, line in drawn.items():
        colour, dash, cap = looks[name]
        spread = [(p[0], *p[2:]) for p in line if len(p) == 4 and None not in p]
        # A band of more points only makes a larger page.
        spread = spread[:: max(1, len(spread) // 200)]
        few = len(line) <= _MOST_MARKERS
        if few:
            strokes = (canvas.line([(at, low), (at, high)]) for at, low, high in spread)
            canvas.stroke(" ".join(strokes), colour, 1)
        elif spread:
            above = [(at, high) for at, _, high in reversed(spread)]
            band = f"fill: var(--{colour}); fill-opacity: 0.13; stroke: none"
            canvas.stroke(canvas.line([*spread, *above]) + " Z", colour, 0, band)
        canvas.stroke(canvas.line(line), colour, 1.75, dash)
        marked = line if few else line[:: len(line) // 4]
        if few or len(drawn) > 1:
            canvas.stroke(" ".join(f"{canvas.line([p])} h 0" for p in marked), colour, 5.5, cap)
    described = []
    for name, line in drawn.items():
        ends = (f"{format_number(p[1])} at {format_tick(p[0])}" for p in (line[0], line[-1]))
        described.append(f"{name}: {', '.join(dict.fromkeys(ends))}")
    return canvas.finish(title, "; ".join(described), height)


def draw_steps(
    title: str, x: str, bins: Sequence[str], series: Mapping[str, Sequence[float]]
) -> Markup:
    """Draw shares of ordered bins as steps."""
    looks, many = style_series(series), len(bins)
    widest = max(map(len, bins)) * 6 + 10
    shown = range(0, many, max(1, math.ceil(widest * many / (WIDTH - 50))))
    ticks = {place + 0.5: shorten(bins[place], 280) for place in shown}
    top = find_ticks(0, max(1e-9, *map(max, series.values())), 4, beyond=True)[-1]
    limits = [(0.0, float(many)), (0.0, top)]
    canvas, height = _open_area(x, "share of rows", looks, limits, "", ticks)
    for name, shares in series.items():
        colour, dash, _ = looks[name]
        # Each bin is as high at its left edge as at its right one.
        edges = [(place + side, v) for place, v in enumerate(shares) for side in (0, 1)]
        steps = canvas.line([(0, 0), *edges, (many, 0)])
        canvas.stroke(steps, colour, 0, f"fill: var(--{colour}); fill-opacity: 0.13; stroke: none")
        canvas.stroke(steps, colour, 1.75, dash)
    return canvas.finish(title, describe_most(bins, series), height)


def describe_most(bins: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Return in words where each table has most of its rows."""
    most = {name: max(range(len(bins)), key=shares.__getitem__) for name, shares in series.items()}
    return "; ".join(
        f"{n}: most in {bins[at]} ({format_number(series[n][at])})" for n, at in most.items()
    )


def style_series(names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return colour, dash and marker of series by name. They differ in more than their colour.

    Known rows keep their colour on every figure. Others take one that is free. Dash and marker are
    CSS of a stroke: a marker is the cap of a stroke without length, round or square.
    """
    known = {name: ROWS.get(name, ROWS.get(name.partition(", ")[0])) for name in names}
    free = cycle([c for c in range(6) if c not in known.values()] or range(6))
    dashes, caps = ("none", "5 3", "1.5 2.5", "8 3 1.5 3"), ("round", "square")
    return {
        name: (
            f"s{next(free) if colour is None else colour}",
            f"stroke-dasharray: {dashes[order % 4]}",
            f"stroke-linecap: {caps[order // 4 % 2]}",  # eight series before one looks as another
        )
        for order, (name, colour) in enumerate(known.items())
    }


@dataclass
class Canvas:
    """SVG elements on a plane of numbers."""

    box: tuple[float, float, float, float]  # units to the left, top, right and bottom
    ends: Sequence[tuple[float, float]]  # of both axes
    log: str = ""  # the logarithmic axes
    parts: list[Markup] = field(default_factory=list)

    def place(self, axis: str, value: float) -> float:
        """Return the position of a value, in units. A value beyond an end is drawn at that end."""
        low, high = self.ends["xy".index(axis)]
        value = min(max(value, low), high)
        if axis in self.log:
            low, high, value = map(math.log10, (low, high, value))
        left, top, right, bottom = self.box
        begin, end = (left, right) if axis == "x" else (bottom, top)
        return round(begin + (end - begin) * (value - low) / (high - low), 1)

    def line(self, points: Iterable[Point]) -> str:
        """Return the path through points of the plane."""
        places = (f"{self.place('x', x)} {self.place('y', y)}" for x, y, *_ in points)
        return "M " + " L ".join(places)

    def stroke(self, path: str, colour: str, width: float = 1.75, more: str = "") -> None:
        """Draw a path of units, with `more` CSS."""
        style = f"fill: none; stroke: var(--{colour}); stroke-width: {width}; {more}"
        self.parts.append(Markup('<path d="{}" style="{}"/>').format(path, style))

    def write(
        self, words: str, x: float, y: float, anchor: str = "start", style: str = "fill: var(--ink)"
    ) -> None:
        """Write words at a position in units."""
        text = Markup('<text x="{}" y="{}" text-anchor="{}" style="{}">{}</text>')
        self.parts.append(text.format(x, y, anchor, style, replace_unseen(words)))

    def finish(self, title: str, described: str, height: float) -> Markup:
        """Return the picture. Screen readers announce it by title and description."""
        whole = Markup(
            '<svg viewBox="0 0 {} {:.0f}" role="img" focusable="false"><title>{}</title>'
            "<desc>{}</desc>{}</svg>"
        )
        body = Markup("").join(self.parts)
        return whole.format(WIDTH, height, replace_unseen(title), replace_unseen(described), body)


def _open_area(
    x: str,
    y: str,
    legend: Mapping[str, tuple[str, str, str]],
    limits: Sequence[tuple[float, float]],
    log: str,
    ticks: Mapping[float, str] | None = None,
) -> tuple[Canvas, float]:
    """Return a canvas with axes, ticks, names and, for several lines, a legend, and its height."""
    named = legend if len(legend) > 1 else {}
    top = 26 + 15 * len(named)
    foot, right = top + _PLOT, WIDTH - 8
    canvas = Canvas((40, top, right, foot), limits, log)
    for number, (name, (colour, dash, cap)) in enumerate(named.items()):
        at = 8 + 15 * number
        canvas.stroke(f"M 2 {at} H 28", colour, 1.75, dash)
        canvas.stroke(f"M 15 {at} h 0", colour, 5.5, cap)
        canvas.write(shorten(name, WIDTH - 40), 36, at + 4)
    canvas.write(shorten(y, WIDTH), 0, top - 10, "start", _SOFT)
    canvas.write(shorten(x, WIDTH - 40), right, foot + 34, "end", _SOFT)
    for tick in find_ticks(*limits[1], 5, "y" in log):
        canvas.stroke(f"M 40 {canvas.place('y', tick)} H {right}", "rule", 0.8)
        canvas.write(format_tick(tick), 36, canvas.place("y", tick) + 4, "end", _SOFT)
    found = {tick: format_tick(tick) for tick in find_ticks(*limits[0], 5, "x" in log)}
    for tick, words in (found if ticks is None else ticks).items():
        canvas.write(words, canvas.place("x", tick), foot + 16, "middle", _SOFT)
    canvas.stroke(f"M 40 {foot} H {right}", "soft", 0.8)
    return canvas, foot + 40


def _find_span(values: Iterable[float], is_log: bool = False) -> tuple[float, float]:
    """Return ends that include all finite values, on a linear axis with a little room."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)]
    if not known:
        return (0.1, 1.0) if is_log else (0.0, 1.0)
    low, high = min(known), max(known)
    if is_log:
        return (low, high) if high > low else (low / 2, high * 2)
    rooms = (0.1 * (high - low), 0.1 * abs(high), 0.5)
    room = next(room for room in rooms if room > 1e-9)  # below it both ends round to one number
    return round(low - room, 12), round(high + room, 12)


def find_ticks(
    low: float, high: float, most: int, is_log: bool = False, beyond: bool = False
) -> list[float]:
    """Return round values within an axis. With `beyond` they extend over its end."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if is_log and high / low >= 100:
        found = LogLocator(numticks=most).tick_values(low, high)
    elif is_log:
        found = LogLocator(subs=(1.0, 2.0, 5.0)).tick_values(low, high)
    else:
        found = MaxNLocator(most - 1, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    room = math.inf if beyond else (high - low) * 1e-9
    return [round(float(t), 12) for t in found if low - room <= t <= high + room]


def shorten(text: str, units: float) -> str:
    """Return the part that fits into a width, with an ellipsis for the rest."""
    text, most = replace_unseen(text), max(2, int(units / _LETTER))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def replace_unseen(text: str) -> str:
    """Replace characters that no page can show: control characters, and half characters."""
    return text.__class__(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text))


def read_template(name: str, **filters: Callable[[Any], str]) -> Template:
    """Return a page's template of this folder, which escapes all values and misses none."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: replace_unseen(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.from_string(Path(__file__).with_name(name).read_text("utf-8"))
