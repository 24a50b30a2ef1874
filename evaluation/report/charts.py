"""Charts of the report as inline SVG of few elements: intervals, lines and steps.

All text stays text, so that a browser can search it, enlarge it and read it aloud. The background
is transparent and every colour is a variable of page.css, which has values for light, dark and
print. The same numbers give the same bytes. Nothing here knows what was measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from markupsafe import Markup

from ..findings import Score
from ..release import TWIN
from .verdicts import (
    ROWS,
    format_interval,
    format_number,
    format_score,
    format_tick,
    sort_rows,
)

Point = tuple[Any, ...]  # (x, y) or (x, y, low, high)
Mark = tuple[float, str]  # a value that the others are compared with, and what it is

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
    title: str,
    rows: Mapping[str, Score],
    domain: tuple[float, float],
    mark: Mark | None = None,
) -> Markup:
    """Draw a row for each score: name and value, and below them a bar or dot with its interval.

    Args:
        title: of the picture.
        rows: scores by name.
        domain: ends of the axis. See `find_domain`.
        mark: what the scores are compared with.
    """
    names, (low, high) = sort_rows(rows), domain
    top = 20 if mark else 0
    foot = top + len(names) * _ROW
    right = WIDTH - 6
    canvas = Canvas((6, top, right, foot), domain)
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
    described = "; ".join(f"{name} {format_score(rows[name])}" for name in names)
    if mark:
        at = canvas.place("x", mark[0])
        side = "start" if at < WIDTH / 5 else "end" if at > WIDTH * 0.8 else "middle"
        canvas.write(mark[1], at, 12, side, _SOFT)
        described += f"; {mark[1]} {format_number(mark[0])}"
    return canvas.finish(title, described, foot + 22)


def find_domain(
    scores: Sequence[Score], mark: Mark | None = None, is_middle: bool = False
) -> tuple[float, float]:
    """Return the ends of an axis for scores of one name.

    It starts at the least possible value, where there is one, so that bars are honest. It ends at
    the greatest, or at a round number where all are far below it.

    Args:
        scores: that are drawn.
        mark: what they are compared with.
        is_middle: scores may miss the mark to both sides. They are drawn as dots around it, and no
            closer than a tenth of what is possible: a difference by chance fills no axis.
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
    """Draw lines, with intervals where points have them. None if no point can be drawn.

    Args:
        title: of the picture.
        x: what the abscissa is.
        y: what the ordinate is.
        series: by name, points in rising x. What is not finite is left out.
        log: "x", "y", "xy" or "": the logarithmic axes.
        marks: horizontal lines.
        least: lower end of the ordinate. None follows the points.
        is_roc: both axes are shares, and the diagonal is what guessing gives.
    """
    # On a logarithmic axis only an ROC curve keeps what is 0. It is drawn at the end of the axis.
    floors = [0.0 if axis in log and not is_roc else -math.inf for axis in "xy"]
    known = {
        name: [
            p
            for p in series[name]
            if None not in p[:2]
            and all(map(math.isfinite, p[:2]))
            and p[0] > floors[0]
            and p[1] > floors[1]
        ]
        for name in sort_rows(series)
    }
    drawn = {name: line for name, line in known.items() if line}
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
    described = "; ".join(
        f"{name}: {format_number(first[1])} at {format_tick(first[0])}"
        + (f", {format_number(last[1])} at {format_tick(last[0])}" if last != first else "")
        for name, first, last in ((name, line[0], line[-1]) for name, line in drawn.items())
    )
    return canvas.finish(title, described, height)


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
    most = {name: shares.index(max(shares)) for name, shares in series.items()}
    described = "; ".join(
        f"{name}: most in {bins[place]} ({format_number(series[name][place])})"
        for name, place in most.items()
    )
    return canvas.finish(title, described, height)


def style_series(names: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return colour, dash and marker of series by name. They differ in more than their colour.

    Known rows keep their colour on every figure. Others take one that is free. Dash and marker are
    CSS of a stroke: a marker is the cap of a stroke without length, round or square.

    >>> style_series(["twin, tfidf"])
    {'twin, tfidf': ('s0', 'stroke-dasharray: none', 'stroke-linecap: round')}
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


class Canvas:
    """SVG elements on a plane of numbers.

    Args:
        box: units to the left, top, right and bottom of the plane.
        x: ends of the abscissa.
        y: ends of the ordinate.
        log: "x", "y", "xy" or "": the logarithmic axes.
    """

    def __init__(
        self,
        box: tuple[float, float, float, float],
        x: tuple[float, float],
        y: tuple[float, float] = (0.0, 1.0),
        log: str = "",
    ) -> None:
        self._box, self._ends, self._log = box, {"x": x, "y": y}, log
        self._parts: list[Markup] = []

    def place(self, axis: str, value: float) -> float:
        """Return where a value is, in units. What is beyond an end is drawn at that end."""
        low, high = self._ends[axis]
        value = min(max(value, low), high)
        if axis in self._log:
            low, high, value = map(math.log10, (low, high, value))
        left, top, right, bottom = self._box
        begin, end = (left, right) if axis == "x" else (bottom, top)
        return round(begin + (end - begin) * (value - low) / (high - low), 1)

    def line(self, points: Iterable[Point]) -> str:
        """Return the path through points of the plane."""
        places = (f"{self.place('x', x)} {self.place('y', y)}" for x, y, *_ in points)
        return "M " + " L ".join(places)

    def stroke(self, path: str, colour: str, width: float = 1.75, more: str = "") -> None:
        """Draw a path of units, with `more` of CSS."""
        style = f"fill: none; stroke: var(--{colour}); stroke-width: {width}; {more}"
        self._parts.append(Markup('<path d="{}" style="{}"/>').format(path, style))

    def write(
        self, words: str, x: float, y: float, anchor: str = "start", style: str = "fill: var(--ink)"
    ) -> None:
        """Write words at a place in units."""
        text = Markup('<text x="{}" y="{}" text-anchor="{}" style="{}">{}</text>')
        self._parts.append(text.format(x, y, anchor, style, replace_unseen(words)))

    def finish(self, title: str, described: str, height: float) -> Markup:
        """Return the picture, which screen readers announce by title and description."""
        whole = Markup(
            '<svg viewBox="0 0 {} {:.0f}" role="img" focusable="false"><title>{}</title>'
            "<desc>{}</desc>{}</svg>"
        )
        body = Markup("").join(self._parts)
        return whole.format(WIDTH, height, replace_unseen(title), replace_unseen(described), body)


def _open_area(
    x: str,
    y: str,
    legend: Mapping[str, tuple[str, str, str]],
    limits: Sequence[tuple[float, float]],
    log: str,
    ticks: Mapping[float, str] | None = None,
) -> tuple[Canvas, float]:
    """Return a canvas with axes, ticks and names, and its height.

    Args:
        x: name of the abscissa.
        y: name of the ordinate.
        legend: looks of what is drawn, which are explained where there are several.
        limits: ends of both axes.
        log: the logarithmic axes.
        ticks: of the abscissa, where they are not to be found here.
    """
    named = legend if len(legend) > 1 else {}
    top = 26 + 15 * len(named)
    foot, right = top + _PLOT, WIDTH - 8
    canvas = Canvas((40, top, right, foot), limits[0], limits[1], log)
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
    """Return ends that hold all finite values, on a linear axis with a little room."""
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
    """Return round values within an axis. `beyond`: they reach over its end."""
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
    """Return what fits into a width, with an ellipsis for the rest.

    >>> shorten("real, no more rows than the twin", 60)
    'real, no…'
    """
    text, most = replace_unseen(text), max(2, int(units / _LETTER))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def replace_unseen(text: str) -> str:
    """Replace what no page can hold: control characters, and halves of characters.

    >>> replace_unseen("a" + chr(0) + "b")
    'a�b'
    """
    return text.__class__(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text))
