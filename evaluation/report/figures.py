"""Pictures of the report: what is drawn of findings, as inline SVG of few elements.

All text stays text, so that a browser can search it, enlarge it and read it aloud. The background
is transparent and every colour is a variable of page.css, which has values for light, dark and
print. The same numbers give the same bytes. Nothing here measures or judges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ..fidelity.measures import TRAIN
from ..findings import Curve, Findings, Histogram, Measured, Question, Score
from ..leakage.canary_audit import CLAIM
from ..leakage.copies import HELDOUT, SAMPLE
from ..leakage.one_run import BOUND
from ..leakage.roc import AUROC
from ..release import BASELINE, PRIVATE_CLASSIFIER, REAL, REAL_SMALL, TWIN, TWIN_SMALL
from .charts import (
    WIDTH,
    Point,
    draw_intervals,
    draw_lines,
    draw_steps,
    find_domain,
    shorten,
)
from .verdicts import (
    COMMONEST,
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
    """One or several pictures that say one thing."""

    title: str  # what is shown
    meaning: str  # one sentence for a reader who does not know the measure
    panels: tuple[tuple[str, Markup], ...]  # (heading or "", picture)
    # The same in numbers, where the table of all scores does not have them
    table: Table | None = None


def explain_measure(name: str, score: Score | None = None) -> str:
    """Return the sentence for a measure. An unknown one gets the way that it should go."""
    if name in MEANINGS["measure"]:
        return str(MEANINGS["measure"][name])
    for start, sentence in MEANINGS["start"].items():
        if name.lower().startswith(start.lower()):
            return str(sentence)
    return MEANINGS["goal"][score.goal] if score else "Read each line from left to right."


def capitalise(title: str) -> str:
    """Return a title with a capital in front. All else stays.

    >>> capitalise("accuracy: DVD")
    'Accuracy: DVD'
    """
    return title[:1].upper() + title[1:]


def draw_section(question: Question, findings: Sequence[Findings]) -> Iterator[Figure]:
    """Yield all figures on a question: of scores, then of curves and histograms."""
    measured = [m for each in findings for m in each.of(question)]
    yield from draw_scores(measured)
    has_exposure = any(map(is_exposure, measured))
    for each in findings:
        for curve in each.curves:
            # The scores draw exposure themselves, with what an ignorant model would show.
            is_drawn = has_exposure and curve.name.startswith("exposure")
            if curve.question == question and not is_drawn and (figure := draw_curve(curve)):
                yield figure
        for histogram in each.histograms:
            if histogram.question == question and (made := draw_histogram(histogram)):
                yield made


def draw_scores(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Draw what can be compared: a figure for each measure and label, a panel for each group."""
    yield from draw_exposure([m for m in measured if is_exposure(m)])
    bounds = list(list_bounds(measured))
    rows = {
        heading: {
            "at least, by attack": bound,
            "claimed": replace(
                bound, value=math.nan if claim is None else claim, low=math.nan, high=math.nan
            ),
        }
        for heading, bound, claim in bounds
    }
    if rows:
        domain = find_domain([s for each in rows.values() for s in each.values()])
        panels = tuple((h, draw_intervals(f"{BOUND}, {h}", r, domain)) for h, r in rows.items())
        yield Figure("Lower bound of ε beside what is claimed", explain_measure(BOUND), panels)
    figures: dict[tuple[str, str], list[Group]] = {}
    for group in _drawable_groups(measured):
        if group.is_drawn:
            figures.setdefault((group.name, group.place.get("label", "")), []).append(group)
    for groups in figures.values():
        yield _compare_groups(groups, measured)


def draw_headline(question: Question, measured: Sequence[Measured]) -> Figure | None:
    """Return the picture that matters most for a question, or None if nothing can be drawn."""
    found = _drawable_groups(measured)
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


def find_undrawn(measured: Sequence[Measured]) -> list[Measured]:
    """Return the scores that stand alone, so that no figure shows them."""
    return [m for g in _drawable_groups(measured) if not g.is_drawn for m in g.members.values()]


def is_exposure(m: Measured) -> bool:
    """Tell the scores that are drawn against the number of planted copies."""
    return m.score.name == "exposure" and m.place.get("copies", "").isdecimal()


def _drawable_groups(measured: Sequence[Measured]) -> list[Group]:
    """Return what is drawn as intervals. Labels' own scores are in tables."""
    return group_scores(
        m
        for m in measured
        if "value" not in m.place
        and not is_exposure(m)
        and m.score.name not in (BOUND, CLAIM)
        and m.place.get("rows") != COMMONEST
    )


def _compare_groups(panels: Sequence[Group], measured: Sequence[Measured]) -> Figure:
    """Draw groups of one measure and label on the same axis."""
    name, label = panels[0].name, panels[0].place.get("label", "")
    mark = (GUESSING[name], _DIAGONAL) if name in GUESSING else None
    for m in measured:
        place = m.place.get("rows"), m.place.get("label", "")
        if m.score.name == name and place == (COMMONEST, label) and math.isfinite(m.score.value):
            mark = mark or (m.score.value, "always the commonest label")
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
    return Figure(capitalise(f"{name}: {label}" if label else name), meaning, tuple(pictures))


def draw_exposure(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Draw exposure of planted secrets against repetitions, one line for each policy."""
    panels: dict[str, dict[str, list[Point]]] = {}
    for m in sorted(measured, key=lambda m: float(m.place["copies"])):
        rest = {k: v for k, v in m.place.items() if k not in ("copies", "policy")}
        lines = panels.setdefault(place_in_words(rest), {})
        point = (float(m.place["copies"]), m.score.value, m.score.low, m.score.high)
        lines.setdefault(m.place.get("policy", "model"), []).append(point)
    most = {m.score.maximum for m in measured if math.isfinite(m.score.maximum)}
    marks = [(math.log2(math.e), "not known to the model")]
    marks += [(bits, "the whole secret") for bits in sorted(most)[-1:]]
    names = "times that a secret was planted", "exposure in bits"
    pictures = []
    for heading, series in panels.items():
        title = f"exposure, {heading}" if heading else "exposure"
        if drawn := draw_lines(title, *names, series, "x", marks, least=0.0):
            pictures.append((heading, drawn))
    if pictures:
        title = "Exposure of planted secrets against repetitions"
        yield Figure(title, explain_measure("exposure"), tuple(pictures))


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
    return Figure(capitalise(name), meaning, (("", picture),), table)


def draw_histogram(histogram: Histogram) -> Figure | None:
    """Draw shares by bin: steps where bins have an order, a panel each where they are names.

    Returns None if there is no bin or no table. Of many names the commonest are drawn.
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
    title = capitalise(histogram.name)
    return Figure(title, explain_measure(histogram.name), tuple(panels), table)
