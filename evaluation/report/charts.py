"""Pictures of the report: intervals, lines and histograms as inline SVG, drawn by matplotlib.

All text stays text, so that a browser can search it, enlarge it and read it aloud. The background
is transparent and every colour is a variable of page.css, which has values for light, dark and
print. The same numbers give the same bytes. Nothing here knows what was measured.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from evaluation.findings import Histogram, Score
from evaluation.release import TWIN
from evaluation.report.tables import (
    ROWS,
    format_interval,
    format_number,
    format_score,
    format_tick,
    has_interval,
    sort_rows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[Any, ...]  # (x, y) or (x, y, low, high)

# A picture is drawn on 340 units. That is about its width in pixels on a telephone and in a column
# of a wide page, so letters have one size everywhere.
WIDTH = 340
_LETTER = 5.9  # mean width of a letter of a label, in units
_ROW, _BAR = 36, 9  # height of a row of an interval chart, and of its bar
_PLOT = 170  # height of an area of lines
MOST_BARS = 20
_MOST_MARKERS = 14  # points of a line that are all marked
_BOTTOM_OF_ROC = 1e-4

# Colours that stand for variables of page.css until the picture is finished.
_VARIABLES = ("s0", "s1", "s2", "s3", "s4", "s5", "ink", "soft", "rule", "paper")
_INK, _SOFT, _RULE = (f"#f1ab{_VARIABLES.index(name):02x}" for name in ("ink", "soft", "rule"))
_SETTINGS: Any = {  # of matplotlib
    "svg.fonttype": "none",
    "svg.hashsalt": "twinset",  # otherwise ids are drawn by chance
    "text.parse_math": False,  # "$" in a label is a dollar
    "font.size": 11,
    "text.color": _INK,
    "axes.edgecolor": _SOFT,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "grid.color": _RULE,
    "lines.linewidth": 1.75,
}
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Reference:
    """A value that the others are compared with.

    Args:
        value: where it is drawn.
        label: what it is.
        is_middle: values may miss it to both sides, so that bars from 0 would mislead.
    """

    value: float
    label: str
    is_middle: bool = False


@dataclass(frozen=True)
class Style:
    """How a series looks. Series differ in dash and marker too, not in colour alone."""

    colour: str
    dash: Any
    marker: str


def replace_unseen(text: str) -> str:
    """Replace what no page can hold: control characters, and halves of characters.

    >>> replace_unseen("a" + chr(0) + "b")
    'a�b'
    """
    return text.__class__(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text))


def shorten(text: str, units: float) -> str:
    """Return what fits into a width, with an ellipsis for the rest.

    >>> shorten("real, no more rows than the twin", 60)
    'real, no…'
    """
    text, most = replace_unseen(text), max(2, int(units / _LETTER))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def style_series(names: Iterable[str]) -> dict[str, Style]:
    """Return the looks of series by name: known rows keep their colour, others take a free one.

    >>> [style.marker for style in style_series(["twin, tfidf", "uniform", "none"]).values()]
    ['o', 's', '^']
    """
    known = {name: ROWS.get(name, ROWS.get(name.partition(", ")[0])) for name in names}
    free = cycle([c for c in range(6) if c not in known.values()] or range(6))
    dashes = ("solid", (0, (5, 3)), (0, (1.5, 2.5)), (0, (8, 3, 1.5, 3)))
    return {
        name: Style(
            f"#f1ab{next(free) if colour is None else colour:02x}",
            dashes[(order + order // len(dashes)) % len(dashes)],
            "os^DvP"[order % 6],
        )
        for order, (name, colour) in enumerate(known.items())
    }


def draw_intervals(
    title: str, rows: Mapping[str, Score], domain: tuple[float, float], reference: Reference | None
) -> Markup:
    """Draw a row for each score: name and value, and below them a bar or dot with its interval.

    Args:
        title: of the picture.
        rows: scores by name.
        domain: ends of the axis. See `find_domain`.
        reference: what the scores are compared with.
    """
    names = sort_rows(rows)
    looks = style_series(name for name in names if name in ROWS)
    top = 20.0 if reference else 0.0
    foot = top + len(names) * _ROW
    low, high = domain

    def paint(ax: Axes) -> None:
        # One unit of y is one unit of the picture, counted from the top.
        ax.set(xlim=domain, ylim=(foot, 0))
        ax.spines[["left", "top", "right"]].set_visible(False)
        ax.yaxis.set_visible(False)
        ticks = _find_ticks(low, high, 3 if low == 0 else 4)
        ax.set_xticks(ticks, map(format_tick, ticks))
        ax.grid(axis="x")
        across = ax.get_yaxis_transform()  # x from 0 to 1 over the picture, y as on the axis
        for place, name in enumerate(names):
            score, y = rows[name], top + place * _ROW
            look = looks.get(name, Style("#f1ab01", "solid", "o"))
            weight = "bold" if name == TWIN else "normal"
            value = f"{format_number(score.value)} {format_interval(score)}".rstrip()
            # 128 units on the right are for the value and its interval.
            ax.text(0, y + 10, shorten(name, WIDTH - 136), transform=across, weight=weight)
            ax.text(1, y + 10, value, transform=across, ha="right", color=_SOFT)
            if math.isnan(score.value):
                continue
            at, middle = min(max(score.value, low), high), y + 15 + _BAR / 2
            if score.minimum == low:  # only then is the length of a bar honest
                alpha = 1.0 if name == TWIN else 0.22
                ax.barh(middle, at - low, _BAR, left=low, color=look.colour, alpha=alpha)
                ax.barh(middle, at - low, _BAR, left=low, fill=False, edgecolor=look.colour)
            if has_interval(score):
                ends = [min(max(end, low), high) for end in (score.low, score.high)]
                ax.plot(ends, [middle] * 2, color=_INK, lw=1.5, marker="|", markersize=6)
            if score.minimum != low:
                ax.plot(at, middle, look.marker, color=look.colour, markersize=6)
            if reference:  # next to the bars of each row, never through the names above them
                around = [y + 13, y + 18 + _BAR]
                ax.plot([reference.value] * 2, around, color=_SOFT, lw=1.25, ls="--")
        if reference:
            share = (reference.value - low) / (high - low)
            side = "left" if share < 0.2 else "right" if share > 0.8 else "center"
            ax.text(reference.value, 9, reference.label, ha=side, color=_SOFT)

    described = "; ".join(f"{name} {format_score(rows[name])}" for name in names)
    if reference:
        described += f"; {reference.label} {format_number(reference.value)}"
    return _draw_picture(title, described, foot + 22, (6, 6, 0, 22), paint)


def find_domain(scores: Sequence[Score], reference: Reference | None = None) -> tuple[float, float]:
    """Return the ends of an axis for scores of one name.

    It starts at the least possible value, where there is one, so that bars are honest. It ends at
    the greatest, or at a round number where all are far below it. What is compared with a value
    between both ends is drawn as dots around it, and no closer than a tenth of what is possible:
    a difference by chance fills no axis.
    """
    least, greatest = min(s.minimum for s in scores), max(s.maximum for s in scores)
    marked = [reference.value] if reference else []
    shown = [v for s in scores for v in (s.value, s.low, s.high)] + marked
    shown = [v for v in shown if math.isfinite(v)]
    low, high = _find_span(shown, is_log=False)
    if reference and reference.is_middle:
        reach = (greatest - least) / 10 if math.isfinite(greatest - least) else 0.0
        low, high = min(low, reference.value - reach), max(high, reference.value + reach)
        return max(least, low), min(greatest, high)
    if math.isfinite(least):
        low = least
        top = max([*shown, least])
        high = _find_ticks(least, top, 4, beyond=True)[-1] if top > least else least + 1
        if math.isfinite(greatest) and top - least > (greatest - least) / 3:
            high = greatest
    return low, high


def draw_lines(
    title: str,
    x: str,
    y: str,
    series: Mapping[str, Sequence[Point]],
    log: str = "",
    references: Sequence[Reference] = (),
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
        references: horizontal lines.
        least: lower end of the ordinate. None follows the points.
        is_roc: both axes are shares, and the diagonal is what guessing gives.
    """
    log_x, log_y = "x" in log, "y" in log
    # On a logarithmic axis only an ROC curve keeps what is 0. It is drawn at the end of the axis.
    least_x, least_y = (0.0 if is_log and not is_roc else -math.inf for is_log in (log_x, log_y))
    known = {
        name: [
            p
            for p in series[name]
            if None not in p[:2]
            and all(map(math.isfinite, p[:2]))
            and p[0] > least_x
            and p[1] > least_y
        ]
        for name in sort_rows(series)
    }
    drawn = {name: line for name, line in known.items() if line}
    if not drawn:
        return None
    marked = [reference.value for reference in references]
    limits = _find_limits(list(drawn.values()), log, marked, least, is_roc)
    (left, right), (bottom, top) = limits
    looks = style_series(drawn)

    def paint(ax: Axes) -> None:
        for axis, is_log, ends in (("x", log_x, (left, right)), ("y", log_y, (bottom, top))):
            ticks = _find_ticks(*ends, 5, is_log)
            ax.set(**{f"{axis}scale": "log" if is_log else "linear", f"{axis}lim": ends})
            ax.set(**{f"{axis}ticks": ticks, f"{axis}ticklabels": map(format_tick, ticks)})
            ax.minorticks_off()
        ax.margins(x=0.02)
        ax.grid(axis="y")
        for reference in references:
            ax.axhline(reference.value, color=_SOFT, lw=1.25, ls="--", label=reference.label)
        if is_roc:
            steps = [left + (right - left) * k / 40 for k in range(41)]
            if log_x:
                steps = [left ** (1 - k / 40) for k in range(41)]
            diagonal = [min(max(step, bottom), top) for step in steps]
            ax.plot(steps, diagonal, color=_SOFT, lw=1.25, ls="--")
        for name, line in drawn.items():
            label = shorten(name, WIDTH - 40)
            _paint_line(ax, line, looks[name], label, limits, is_alone=len(drawn) == 1)

    described = "; ".join(
        f"{name}: {format_number(first[1])} at {format_tick(first[0])}"
        + (f", {format_number(last[1])} at {format_tick(last[0])}" if last != first else "")
        for name, (first, last) in ((n, (p[0], p[-1])) for n, p in drawn.items())
    )
    labels = len(drawn) + len(references)
    return _draw_area(title, described, x, y, labels if labels > 1 else 0, paint)


def _paint_line(
    ax: Axes,
    line: Sequence[Point],
    look: Style,
    label: str,
    limits: tuple[tuple[float, float], tuple[float, float]],
    is_alone: bool,
) -> None:
    """Draw a line with its markers, and its intervals as strokes or, of many points, as a band."""
    (left, right), (bottom, top) = limits

    def keep_inside(values: Iterable[float]) -> list[float]:
        return [min(max(value, bottom), top) for value in values]

    few = len(line) <= _MOST_MARKERS
    ax.plot(
        [min(max(p[0], left), right) for p in line],
        keep_inside(p[1] for p in line),
        color=look.colour,
        ls=look.dash,
        marker=look.marker if few or not is_alone else None,
        markevery=1 if few else max(1, len(line) // 4),
        markersize=5,
        clip_on=False,  # or half of the first and last marker is cut off
        label=label,
    )
    ends = [(min(max(p[0], left), right), *p[2:]) for p in line if len(p) == 4 and None not in p]
    ends = ends[:: max(1, len(ends) // 200)]  # a band of more points only makes a larger page
    if ends:
        at = [x for x, _, _ in ends]
        lows, highs = keep_inside(p[1] for p in ends), keep_inside(p[2] for p in ends)
        if few:
            ax.vlines(at, lows, highs, color=look.colour, lw=1, clip_on=False)
        else:
            ax.fill_between(at, lows, highs, color=look.colour, alpha=0.13, lw=0)


def _find_limits(
    lines: Sequence[Sequence[Point]],
    log: str,
    marked: Sequence[float],
    least: float | None,
    is_roc: bool,
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of the abscissa and of the ordinate. See `draw_lines`."""
    log_x, log_y = "x" in log, "y" in log
    points = [p for line in lines for p in line]
    if is_roc:
        ends = []
        for place, is_log in ((0, log_x), (1, log_y)):
            smallest = min((p[place] for p in points if p[place] > 0), default=_BOTTOM_OF_ROC)
            # The power of ten at or below the least share, but not a tiny one.
            power = 10.0 ** math.floor(math.log10(smallest))
            ends.append((min(0.1, max(_BOTTOM_OF_ROC, power)) if is_log else 0.0, 1.0))
        return ends[0], ends[1]
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    if left == right:
        left, right = _find_span([left], log_x)
    heights = [v for p in points for v in p[1:] if v is not None]
    bottom, top = _find_span([*heights, *marked], log_y)
    if least is not None and not log_y:
        bottom = least
    return (left, right), (bottom, top)


def draw_histogram(histogram: Histogram) -> Markup | None:
    """Draw shares by bin: steps where bins have an order, bars where they are names.

    Returns None if there is no bin or no table. Of many names the commonest are drawn.
    """
    series = {
        name: [v if v is not None and math.isfinite(v) else 0.0 for v in histogram.series[name]]
        for name in sort_rows(histogram.series)
    }
    bins = [str(name) for name in histogram.bins]
    if not bins or not series:
        return None
    is_ordered = all(re.match(r"^\W*\d", name) for name in bins)  # "10–19", "≥ 200", "< 5"
    if not is_ordered:
        bins, series = keep_commonest(bins, series)
    looks = style_series(series)
    top = _find_ticks(0, max(max(shares) for shares in series.values()) or 1.0, 4, beyond=True)[-1]
    described = "; ".join(
        f"{name}: most in {bins[place]} ({format_number(shares[place])})"
        for name, shares in series.items()
        for place in [shares.index(max(shares))]
    )
    if is_ordered:

        def paint_steps(ax: Axes) -> None:
            ax.set(xlim=(0, len(bins)), ylim=(0, top))
            widest = max(map(len, bins)) * 6 + 10
            places = range(0, len(bins), max(1, math.ceil(widest * len(bins) / (WIDTH - 50))))
            ax.set_xticks([p + 0.5 for p in places], [shorten(bins[p], 280) for p in places])
            ticks = _find_ticks(0, top, 4)
            ax.set_yticks(ticks, map(format_tick, ticks))
            ax.grid(axis="y")
            for name, shares in series.items():
                look, label = looks[name], shorten(name, WIDTH - 40)
                ax.stairs(shares, fill=True, color=look.colour, alpha=0.13)
                ax.stairs(shares, color=look.colour, ls=look.dash, lw=1.75, label=label)

        x, y = shorten(histogram.x, WIDTH - 40), "share of rows"
        return _draw_area(histogram.name, described, x, y, len(series), paint_steps)

    height = len(bins) * (22.0 + 11 * len(series))

    def paint_bars(ax: Axes) -> None:
        ax.set(xlim=(0, top * WIDTH / (WIDTH - 44)), ylim=(height, 0))
        ax.set_axis_off()
        y = 0.0
        for place, name in enumerate(bins):
            ax.text(0, y + 11, shorten(name, WIDTH - 50))
            y += 16
            for table, shares in series.items():
                look, label = looks[table], shorten(table, WIDTH - 40) if not place else None
                alpha = 1.0 if table == TWIN else 0.35
                ax.barh(y + 3.5, shares[place], 7, color=look.colour, alpha=alpha, label=label)
                shown = format_number(shares[place])
                ax.annotate(shown, (shares[place], y + 7.5), (5, 0), textcoords="offset points")
                y += 11
            y += 6

    top_margin = 15.0 * len(series) + 6
    whole, margins = height + top_margin, (1, 1, top_margin, 0)
    return _draw_picture(histogram.name, described, whole, margins, paint_bars)


def keep_commonest(
    bins: Sequence[str], series: Mapping[str, list[float]]
) -> tuple[list[str], dict[str, list[float]]]:
    """Keep the bins with the greatest shares, in their order, and add up the others.

    >>> bins = [f"label {n}" for n in range(25)]
    >>> few, series = keep_commonest(bins, {"twin": [0.04] * 25})
    >>> len(few), few[-1], round(series["twin"][-1], 2)
    (20, '6 others', 0.24)
    """
    if len(bins) <= MOST_BARS:
        return list(bins), dict(series)
    size = [max(shares[place] for shares in series.values()) for place in range(len(bins))]
    largest = sorted(range(len(bins)), key=lambda place: -size[place])[: MOST_BARS - 1]
    kept, rest = sorted(largest), sorted(set(range(len(bins))) - set(largest))
    return (
        [*(bins[place] for place in kept), f"{len(rest)} others"],
        {n: [*(s[p] for p in kept), sum(s[p] for p in rest)] for n, s in series.items()},
    )


def _find_span(values: Iterable[float], is_log: bool) -> tuple[float, float]:
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


def _find_ticks(
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
    if not beyond:
        room = (high - low) * 1e-9
        found = [tick for tick in found if low - room <= tick <= high + room]
    return [round(float(tick), 12) for tick in found]


def _draw_area(
    title: str, described: str, x: str, y: str, named: int, paint: Callable[[Axes], None]
) -> Markup:
    """Draw an area of lines with its axes' names; `named` series have a legend above it."""

    def paint_with_names(ax: Axes) -> None:
        paint(ax)
        ax.spines[["left", "top", "right"]].set_visible(False)
        place: dict[str, Any] = {
            "xycoords": "axes fraction",
            "textcoords": "offset points",
            "color": _SOFT,
        }
        ax.annotate(shorten(y, WIDTH), (0, 1), (-40, 10), **place)
        ax.annotate(shorten(x, WIDTH - 40), (1, 0), (0, -34), ha="right", **place)

    top = 26.0 + 15 * named
    return _draw_picture(title, described, top + _PLOT + 40, (40, 8, top, 40), paint_with_names)


def _draw_picture(
    title: str,
    described: str,
    height: float,
    margins: tuple[float, float, float, float],
    paint: Callable[[Axes], None],
) -> Markup:
    """Return a picture that screen readers announce by its title and description.

    Args:
        title: what is shown.
        described: the same in words.
        height: in units.
        margins: units to the left, right, top and bottom of the axes.
        paint: draws onto the axes. Series with a label get a legend, if there are several.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    left, right, top, bottom = margins
    box = left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, 1 - (top + bottom) / height
    written = io.StringIO()
    with rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font for measuring lacks
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        axes = figure.add_axes(box)
        paint(axes)
        axes.tick_params(which="both", length=0)
        handles, labels = axes.get_legend_handles_labels()
        if len(labels) > 1:
            place: dict[str, Any] = {
                "loc": "upper left",
                "bbox_to_anchor": (0, 1),
                "borderaxespad": 0,
            }
            look: dict[str, Any] = {
                "frameon": False,
                "handlelength": 2.4,
                "labelspacing": 0.4,
                "borderpad": 0,
            }
            figure.legend(handles, labels, **place, **look)
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    whole = written.getvalue()
    body = whole[whole.index('<g id="figure_1"') : whole.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    # Only what is referred to keeps its id. The page makes these unique among its pictures.
    body = re.sub(r' id="(?![mpC]\w*[0-9a-f]{10}")[^"]*"', "", body)
    body = re.sub(r'((?: id="|"#|url\(#))([mpC]\w*[0-9a-f]{10})', r"\1picture-\2", body)
    body = re.sub(r"#f1ab(\d\d)", lambda m: f"var(--{_VARIABLES[int(m[1])]})", body)
    # The page sets the letters. Only bold ones have to be known here.
    body = re.sub(r"font: (bold )?[^;\"]*", lambda m: "font-weight: 650" if m[1] else "", body)
    return Markup(
        '<svg viewBox="0 0 {} {:.0f}" role="img" focusable="false"><title>{}</title>'
        "<desc>{}</desc>{}</svg>"
    ).format(
        WIDTH,
        height,
        escape(replace_unseen(title)),
        escape(replace_unseen(described)),
        Markup(body),
    )
