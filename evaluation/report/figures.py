"""Pictures of the report: findings as inline SVG with few elements.

All text stays text, so that a browser can search it, enlarge it and read it aloud. The background
is transparent and every colour is a variable of page.css, which has values for light, dark and
print. The same numbers give the same bytes. Nothing here measures or judges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from markupsafe import Markup

from ..fidelity.measures import TRAIN
from ..findings import Curve, Findings, Histogram, Measured, Question, Score
from ..leakage.copies import HELDOUT, SAMPLE
from ..leakage.roc import AUROC, BOUND, CLAIM
from ..release import BASELINE, PRIVATE_CLASSIFIER, REAL, REAL_SMALL, TWIN, TWIN_SMALL
from .verdicts import (
    GUESSES,
    GUESSING,
    MEANINGS,
    ROWS,
    Group,
    find_deciding,
    format_interval,
    format_number,
    format_score,
    format_tick,
    group_scores,
    list_bounds,
    place_in_words,
    sort_rows,
)

Point = tuple[Any, ...]  # (x, y) or (x, y, low, high)
Mark = tuple[float, str]  # a value to compare the others with, and its meaning

_MOST_PANELS, MOST_BARS = 12, 20  # of a figure of scores, and of one of labels
_MOST_ATTACKS = 4  # in the picture that represents all
_MOST_LISTED = 60  # points of a line in its table
_DIAGONAL = "guessing"
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


@dataclass(frozen=True)
class Table:
    """A caption, column heads and rows, all in words. Each row's first cell is its head."""

    caption: str
    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """One or several pictures with one message."""

    title: str  # the content
    meaning: str  # one sentence for a reader who does not know the measure
    panels: tuple[tuple[str, Markup], ...]  # (heading or "", picture)
    # The same in numbers, where the table of all scores does not have them
    table: Table | None = None

    @property
    def heading(self) -> str:
        """The title with a capital first letter, except for an ε. All else stays."""
        return self.title if self.title.startswith("ε") else self.title[:1].upper() + self.title[1:]


def explain_measure(name: str, score: Score | None = None) -> str:
    """Return the sentence for a measure. For an unknown one it states the desired direction."""
    if name in MEANINGS["measure"]:
        return str(MEANINGS["measure"][name])
    for start, sentence in MEANINGS["start"].items():
        if name.lower().startswith(start.lower()):
            return str(sentence)
    return MEANINGS["goal"][score.goal] if score else "Read each line from left to right."


def draw_section(question: Question, findings: Sequence[Findings]) -> Iterator[Figure]:
    """Yield all figures on a question: of scores, then of curves and histograms."""
    measured = [m for each in findings for m in each.of(question)]
    # Exposure of planted secrets against repetitions, one line for each policy.
    exposed = sorted(filter(is_exposure, measured), key=lambda m: float(m.place["copies"]))
    lines: dict[str, dict[str, list[Point]]] = {}
    for m in exposed:
        rest = {k: v for k, v in m.place.items() if k not in ("copies", "policy")}
        policy = m.place.get("policy", "model")
        point = (float(m.place["copies"]), m.score.value, m.score.low, m.score.high)
        lines.setdefault(place_in_words(rest), {}).setdefault(policy, []).append(point)
    most = {m.score.maximum for m in exposed if math.isfinite(m.score.maximum)}
    marks = [(math.log2(math.e), "not known to the model")]
    marks += [(bits, "the whole secret") for bits in sorted(most)[-1:]]
    names = "times that a secret was planted", "exposure in bits"
    pictures = []
    for heading, series in lines.items():
        title = f"exposure, {heading}" if heading else "exposure"
        if drawn := draw_lines(title, *names, series, "x", marks, least=0.0):
            pictures.append((heading, drawn))
    if pictures:
        title = "Exposure of planted secrets against repetitions"
        yield Figure(title, explain_measure("exposure"), tuple(pictures))
    rows = {}
    for heading, bound, claim in list_bounds(measured):
        stated = math.nan if claim is None else claim
        claimed = replace(bound, value=stated, low=math.nan, high=math.nan)
        rows[heading] = {"at least, by attack": bound, "claimed": claimed}
    if rows:
        domain = find_domain([s for each in rows.values() for s in each.values()])
        panels = tuple((h, draw_intervals(f"{BOUND}, {h}", r, domain)) for h, r in rows.items())
        yield Figure("Lower bound of ε and the ε claimed", explain_measure(BOUND), panels)
    # What can be compared: a figure for each measure and label, a panel for each group.
    figures: dict[tuple[str, str], list[Group]] = {}
    for group in drawable_groups(measured):
        if len(group.members) > 1 or group.name in GUESSING:
            figures.setdefault((group.name, group.place.get("label", "")), []).append(group)
    for groups in figures.values():
        yield _compare_groups(groups, measured)
    for each in findings:
        for curve in each.curves:
            if curve.question == question and (figure := draw_curve(curve)):
                yield figure
        for histogram in each.histograms:
            if histogram.question == question and (made := draw_histogram(histogram)):
                yield made


def draw_headline(question: Question, measured: Sequence[Measured]) -> Figure | None:
    """Return the picture that matters most for a question, or None if nothing can be drawn."""
    found = drawable_groups(measured)
    if question == "utility":
        # Accuracies of the first label, by the classifier that learns most from real rows.
        useful = [g for g in found if g.name == "accuracy" and {TWIN, BASELINE} <= {*g.members}]
        first = [g for g in useful if g.place.get("label") == useful[0].place.get("label")]
        best = max(
            first, default=None, key=lambda g: g.scores[REAL].value if REAL in g.scores else 0
        )
        names: Sequence[str] = (REAL, TWIN, TWIN_SMALL, BASELINE, PRIVATE_CLASSIFIER)
    elif question == "fidelity":
        best = next(iter(find_deciding(measured)), None)
        names = list(best.members) if best else []
    else:
        # The strongest attacks on this run, of those that saw most of it.
        attacks = [g for g in found if g.name == AUROC and "policy" not in g.place]
        attacks.sort(key=lambda g: g.place.get("sees") != "model")
        best = next(iter(attacks), None)
        scores = best.scores if best else {}
        names = sorted(scores, key=lambda attack: -scores[attack].value)[:_MOST_ATTACKS]
    if best is None:
        return None
    shown = {name: m for name, m in best.members.items() if name in names}
    return _compare_groups([replace(best, members=shown)], measured)


def is_exposure(m: Measured) -> bool:
    """Tell which scores are drawn against the number of planted copies."""
    return m.score.name == "exposure" and m.place.get("copies", "").isdecimal()


def drawable_groups(measured: Sequence[Measured]) -> list[Group]:
    """Return the groups that are drawn as intervals. Scores of single labels are in tables."""
    return group_scores(
        m
        for m in measured
        if not m.part
        and not is_exposure(m)
        and m.score.name not in (BOUND, CLAIM)
        and m.place.get("rows") not in GUESSES
    )


def _compare_groups(panels: Sequence[Group], measured: Sequence[Measured]) -> Figure:
    """Draw groups of one measure and label on the same axis."""
    name, label = panels[0].name, panels[0].place.get("label", "")
    mark = (GUESSING[name], _DIAGONAL) if name in GUESSING else None
    for m in measured:
        guess, is_same = m.place.get("rows"), m.place.get("label", "") == label and not m.part
        if m.score.name == name and is_same and guess in GUESSES and math.isfinite(m.score.value):
            mark = mark or (m.score.value, f"always {guess}")
    is_middle = GUESSING.get(name) == 0.5
    domain = find_domain([s for g in panels for s in g.scores.values()], mark, is_middle)
    pictures = []
    for group in panels[:_MOST_PANELS]:
        # Of two samples of one table only the fairer one is drawn: training rows are cut to the
        # number of held-out rows, real rows to the twin's where that changed something.
        scores = dict(group.scores)
        if {SAMPLE, HELDOUT} <= scores.keys():
            scores.pop(TRAIN, None)
        if REAL in scores and scores.get(REAL_SMALL) == scores[REAL]:
            del scores[REAL_SMALL]
        rows = {word or name: score for word, score in scores.items()}
        heading = place_in_words({k: v for k, v in group.place.items() if k != "label"})
        pictures.append((heading, draw_intervals(group.title, rows, domain, mark)))
    more = len(panels) - _MOST_PANELS
    note = f" The other {more} are in the table of all scores." if more > 0 else ""
    meaning = explain_measure(name, next(iter(panels[0].scores.values()))) + note
    return Figure(f"{name}: {label}" if label else name, meaning, tuple(pictures))


def draw_curve(curve: Curve) -> Figure | None:
    """Draw a curve, with a table of at most about sixty points of each line."""
    name, series = curve.name, dict(curve.series)
    is_roc = name.startswith("ROC") or _DIAGONAL in series
    if is_roc:  # every such picture has the diagonal already
        series.pop(_DIAGONAL, None)
    picture = draw_lines(name, curve.x, curve.y, series, curve.log, is_roc=is_roc)
    if picture is None:
        return None
    rows = []
    for line in sort_rows(curve.series):
        points = curve.series[line]
        if len(points) > _MOST_LISTED:  # every k-th one, and the last
            points = [*points[:: math.ceil(len(points) / (_MOST_LISTED - 1))], points[-1]]
        for x, y, *ends in points:
            at = format_number(x) if x is None or not math.isfinite(x) else format_tick(x)
            known = len(ends) == 2 and None not in ends
            spread = f"[{format_number(ends[0])}, {format_number(ends[1])}]" if known else ""
            rows.append((line, at, format_number(y), spread))
    table = Table(name, ("line", curve.x, curve.y, "95 % interval"), tuple(rows))
    meaning = explain_measure("ROC" if is_roc else name)
    return Figure(name, meaning, (("", picture),), table)


def draw_histogram(histogram: Histogram) -> Figure | None:
    """Draw shares by bin: steps if bins have an order, a panel each if they are names.

    Returns None if there is no bin or no table. Of many names the most frequent are drawn.
    """
    names, bins = sort_rows(histogram.series), [str(name) for name in histogram.bins]
    series = {
        name: [v if v is not None and math.isfinite(v) else 0.0 for v in histogram.series[name]]
        for name in names
    }
    if not bins or not series:
        return None
    listed = tuple(
        (each, *(format_number(histogram.series[name][place]) for name in names))
        for place, each in enumerate(bins)
    )
    table = Table(f"{histogram.name}: share of rows", (histogram.x, *names), listed)
    if all(re.match(r"^\W*\d", name) for name in bins):  # "10–19", "≥ 200", "< 5"
        panels = [("", draw_steps(histogram.name, histogram.x, bins, series))]
    else:
        # Of many labels the rarest are added up.
        size = [max(shares[place] for shares in series.values()) for place in range(len(bins))]
        order = sorted(range(len(bins)), key=lambda place: -size[place])
        kept = order if len(bins) <= MOST_BARS else order[: MOST_BARS - 1]
        parts = {bins[place]: [place] for place in sorted(kept)}
        if rest := order[len(kept) :]:
            parts[f"{len(rest)} others"] = rest
        blank = Score("share", 0.0, math.nan, math.nan, "match", 0.0, 1.0, 0)
        rows = {
            part: {n: replace(blank, value=sum(s[p] for p in at)) for n, s in series.items()}
            for part, at in parts.items()
        }
        domain = find_domain([score for each in rows.values() for score in each.values()])
        panels = [
            (shorten(part, WIDTH), draw_intervals(f"{histogram.name}: {part}", each, domain))
            for part, each in rows.items()
        ]
    return Figure(histogram.name, explain_measure(histogram.name), tuple(panels), table)


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
    described = "; ".join(
        f"{name}: most in {bins[shares.index(max(shares))]} ({format_number(max(shares))})"
        for name, shares in series.items()
    )
    return canvas.finish(title, described, height)


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
