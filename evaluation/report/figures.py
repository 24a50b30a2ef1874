"""Figures of the report: which findings are drawn, by which chart, and what a reader is to see.

Nothing here measures or judges, and how a chart is drawn is in `charts`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ..fidelity.columns import PICTURE
from ..fidelity.measures import TRAIN
from ..findings import Curve, Findings, Histogram, Measured, Question, Score
from ..leakage.copies import HELDOUT, SAMPLE
from ..leakage.roc import AUROC, BOUND, CLAIM
from ..release import BASELINE, PRIVATE_CLASSIFIER, REAL, REAL_SMALL, TWIN, TWIN_SMALL
from .charts import (
    WIDTH,
    Point,
    draw_bars,
    draw_intervals,
    draw_lines,
    draw_steps,
    find_domain,
    shorten,
)
from .verdicts import (
    GUESSES,
    GUESSING,
    MEANINGS,
    Group,
    find_deciding,
    format_number,
    format_tick,
    group_scores,
    list_bounds,
    place_in_words,
    sort_rows,
)

_MOST_PANELS, MOST_BARS = 12, 20  # of a figure of scores, and of one of labels
_MOST_ATTACKS = 4  # in the picture that represents all
_MOST_LISTED = 60  # points of a line in its table
_DIAGONAL = "guessing"


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
            is_column = histogram.name.startswith(PICTURE)  # drawn together
            if histogram.question == question and not is_column:
                yield from filter(None, [draw_histogram(histogram)])
    columns = [h for f in findings for h in f.histograms if h.name.startswith(PICTURE)]
    if question == "fidelity" and columns:
        yield draw_columns(columns)


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


def draw_columns(histograms: Sequence[Histogram]) -> Figure:
    """Draw a small picture of each column: steps of numbers and dates, bars of other values."""
    panels, rows, names = [], list[tuple[str, ...]](), list[str]()
    for histogram in histograms:
        bins, column = list(map(str, histogram.bins)), histogram.name.removeprefix(PICTURE)
        names = sort_rows(histogram.series)
        series = {n: [v if math.isfinite(v) else 0.0 for v in histogram.series[n]] for n in names}
        is_ordered = all(re.match(r"^\W*\d", each) for each in bins if not each.startswith("("))
        if is_ordered and len(bins) > 3:
            drawn = draw_steps(histogram.name, "", bins, series)
        else:
            drawn = draw_bars(histogram.name, bins, series)
        panels.append((shorten(column, WIDTH), drawn))
        for place, each in enumerate(bins):
            shares = (format_number(series[name][place]) for name in names)
            rows.append((column, each, *shares))
    table = Table("Other columns: share of rows", ("column", "value", *names), tuple(rows))
    title = "The other columns"
    return Figure(title, explain_measure(title), tuple(panels), table)
