"""Lines over an axis, linear or logarithmic, with intervals where points have them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from evaluation.report.charts.axes import Scale, spanning
from evaluation.report.charts.interval_chart import Reference
from evaluation.report.charts.legends import line_legend
from evaluation.report.charts.numbers import number, short
from evaluation.report.charts.styles import Style, in_order, styles
from evaluation.report.charts.svg import WIDTH, drawing, line, shortened, tag, text

Point = tuple[float, ...]  # (x, y) or (x, y, low, high)
_LEFT, _RIGHT, _PLOT, _FOOT = 40, 2, 170, 40
_INSET = 8  # between the axes and the first and last point
_MOST_MARKERS = 14
_BOTTOM_OF_ROC = 1e-4


@dataclass(frozen=True)
class Lines:
    """What is to be drawn.

    Args:
        title: of the picture.
        x: what the abscissa is.
        y: what the ordinate is.
        series: by name, points in rising x; what is not finite is left out.
        log: "x", "y", "xy" or "": the logarithmic axes.
        references: horizontal lines.
        least: lower end of the ordinate; None follows the points.
        is_roc: both axes are shares; the diagonal is what guessing gives.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[Point]]
    log: str = ""
    references: tuple[Reference, ...] = ()
    least: float | None = None
    is_roc: bool = False


def line_chart(lines: Lines) -> Markup | None:
    """Draw them; None where no point can be drawn."""
    series = {name: _drawable(lines.series[name], lines) for name in in_order(lines.series)}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return None
    looks = styles(series)
    marks = [reference.label for reference in lines.references]
    shown = {} if len(looks) == 1 else looks
    legend, top = line_legend(shown, marks) if shown or marks else ([], 0.0)
    top += 26
    foot = top + _PLOT
    across, up = _scales(lines, [p for points in series.values() for p in points], top, foot)
    parts = [*legend, *_frame(lines, across, up)]
    for place, (name, points) in enumerate(series.items()):
        aside = (place - (len(series) - 1) / 2) * min(3, 12 / len(series))
        beside = replace(across, start=across.start + aside, end=across.end + aside)
        apart = beside if any(len(p) == 4 for p in points) else across  # whiskers side by side
        parts += _series(points, looks[name], apart, up, len(series) > 1)
    return drawing(foot + _FOOT, lines.title, describe(series), *parts)


def describe(series: Mapping[str, Sequence[Point]]) -> str:
    """Say where each line begins and ends."""
    return "; ".join(
        f"{name}: {number(first[1])} at {short(first[0])}"
        + (f", {number(last[1])} at {short(last[0])}" if last != first else "")
        for name, (first, last) in ((n, (p[0], p[-1])) for n, p in series.items())
    )


def _drawable(points: Sequence[Point], lines: Lines) -> list[Point]:
    known = [p for p in points if all(v is not None and math.isfinite(v) for v in p[:2])]
    if lines.is_roc:
        return known  # what is 0 is drawn at the end of the axis
    return [
        p
        for p in known
        if ("x" not in lines.log or p[0] > 0) and ("y" not in lines.log or p[1] > 0)
    ]


def _scales(lines: Lines, points: list[Point], top: float, foot: float) -> tuple[Scale, Scale]:
    log_x, log_y = "x" in lines.log, "y" in lines.log
    left, right = _LEFT + _INSET, WIDTH - _RIGHT - _INSET
    if lines.is_roc:
        low_x, low_y = (_bottom(points, k) if log else 0.0 for k, log in ((0, log_x), (1, log_y)))
        return Scale(low_x, 1, left, right, log_x), Scale(low_y, 1, foot, top, log_y)
    marked = [reference.value for reference in lines.references]
    low, high = spanning([v for p in points for v in p[1:] if v is not None] + marked, log_y)
    if lines.least is not None and not log_y:
        low = lines.least
    first, last = min(p[0] for p in points), max(p[0] for p in points)
    if first == last:
        first, last = spanning([first], log_x)
    return Scale(first, last, left, right, log_x), Scale(low, high, foot, top, log_y)


def _bottom(points: list[Point], place: int) -> float:
    """Return the power of ten at or below the least share above 0, but not a tiny one."""
    least = min((p[place] for p in points if p[place] > 0), default=_BOTTOM_OF_ROC)
    return min(0.1, max(_BOTTOM_OF_ROC, 10.0 ** math.floor(math.log10(least))))


def _frame(lines: Lines, across: Scale, up: Scale) -> Iterator[Markup]:
    foot, left, right = up.start, _LEFT, WIDTH - _RIGHT
    for tick in up.ticks():
        yield line(left, up(tick), right, up(tick), "grid")
        yield text(short(tick), left - 6, up(tick) + 4, "tick", "end")
    yield line(left, foot, right, foot, "axis")
    for tick in across.ticks():
        place = across(tick)
        yield line(place, foot, place, foot + 4, "axis")
        anchor = "end" if place > right - 14 else "middle"
        yield text(short(tick), place, foot + 16, "tick", anchor)
    yield text(shortened(lines.y, WIDTH), 0, up.end - 10, "name")
    yield text(shortened(lines.x, WIDTH - _LEFT), right, foot + 34, "name", "end")
    for reference in lines.references:
        y = up(reference.value)
        yield line(left, y, right, y, "reference")
    if lines.is_roc:
        low = max(across.low, up.low)
        steps = [(low ** (1 - k / 40) if low else k / 40) for k in range(41)]
        path = "M" + "L".join(f"{across(v):.1f} {up(v):.1f}" for v in steps)
        yield tag("path", d=path, class_="reference")


def _series(
    points: Sequence[Point], look: Style, across: Scale, up: Scale, is_one_of_many: bool
) -> Iterator[Markup]:
    ends = [p for p in points if len(p) == 4 and all(v is not None for v in p)]
    few = len(points) <= _MOST_MARKERS
    if ends and few:
        for x, _, low, high in ends:
            yield tag(
                "path",
                d=f"M{across(x) - 3:.1f} {up(low):.1f}h6m-3 0V{up(high):.1f}m-3 0h6",
                class_=f"spread {look.name}",
            )
    elif ends:
        rim = [(x, high) for x, _, _, high in ends] + [(x, low) for x, _, low, _ in ends[::-1]]
        path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in rim)
        yield tag("path", d=f"M{path}Z", class_=f"band {look.name}")
    places = list(dict.fromkeys((round(across(p[0]), 1), round(up(p[1]), 1)) for p in points))
    path = "M" + "L".join(f"{x} {y}" for x, y in places)
    yield look.line(path)
    for x, y in places if few else places[:: max(1, len(places) // 4)] if is_one_of_many else ():
        yield look.marker(x, y)
