"""From findings to figures: what is drawn of each, and under which heading."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from evaluation.fidelity.measures import TRAIN
from evaluation.findings import Curve, Histogram, Measured, Question, Score
from evaluation.leakage.one_run import BOUND
from evaluation.leakage.roc import AUROC
from evaluation.private_table import (
    BASELINE,
    PRIVATE_CLASSIFIER,
    REAL,
    REAL_SMALL,
    TWIN,
    TWIN_SMALL,
)
from evaluation.report.charts.histograms import histogram_chart
from evaluation.report.charts.interval_chart import Reference, domain_of, interval_chart
from evaluation.report.charts.lines import Lines, Point, line_chart
from evaluation.report.charts.styles import HELD_OUT, TRAIN_SAMPLE
from evaluation.report.groups import (
    CLAIM,
    COMMONEST,
    GUESSING,
    Group,
    claimed,
    groups,
    is_exposure,
    repetitions,
    words,
)
from evaluation.report.meanings import meaning
from evaluation.report.tables import Table, of_curve, of_histogram
from evaluation.report.verdicts import deciding_groups

_MOST_PANELS = 12
_MOST_ATTACKS = 4  # in the picture that stands for all
_DETAILS = ("macro-F1", "TPR at 0.1 % FPR")
_DIAGONAL = "guessing"
_UNKNOWN_SECRET = Reference(math.log2(math.e), "not known to the model")


@dataclass(frozen=True)
class Figure:
    """One or several pictures that say one thing.

    Args:
        title: what is shown.
        meaning: one sentence for somebody who does not know the measure.
        panels: (heading or "", picture).
        table: the same in numbers, where the table of all scores does not have them.
        is_main: others are shown on request.
    """

    title: str
    meaning: str
    panels: tuple[tuple[str, Markup], ...]
    table: Table | None = None
    is_main: bool = True


def figures_of(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Draw what can be compared: one figure a measure and label, one panel a group."""
    yield from _exposure([m for m in measured if is_exposure(m)])
    yield from _bounds(measured)
    figures: dict[tuple[str, str], list[Group]] = {}
    for group in _groups(measured):
        if group.is_drawn:
            figures.setdefault((group.name, group.place.get("label", "")), []).append(group)
    for (name, label), panels in figures.items():
        yield _compared(name, label, panels, _reference(name, label, measured))


def headline_figure(question: Question, measured: Sequence[Measured]) -> Figure | None:
    """Return the picture that matters most for a question; None where nothing can be drawn."""
    choose = {"utility": _most_useful, "fidelity": _first_deciding, "leakage": _strongest_attacks}
    group = choose[question](measured)
    if group is None:
        return None
    label = group.place.get("label", "")
    return _compared(group.name, label, [group], _reference(group.name, label, measured))


def _most_useful(measured: Sequence[Measured]) -> Group | None:
    """Return accuracies of the first label, by the classifier that learns most from real rows."""
    found = [
        g for g in _groups(measured) if g.name == "accuracy" and {TWIN, BASELINE} <= {*g.members}
    ]
    first = [g for g in found if g.place.get("label") == found[0].place.get("label")]
    best = max(first, key=lambda g: g.scores[REAL].value if REAL in g.scores else 0.0, default=None)
    shown = REAL, TWIN, TWIN_SMALL, BASELINE, PRIVATE_CLASSIFIER
    return None if best is None else _only(best, shown)


def _first_deciding(measured: Sequence[Measured]) -> Group | None:
    return next(iter(deciding_groups(measured)), None)


def _strongest_attacks(measured: Sequence[Measured]) -> Group | None:
    """Return the attacks on this run that saw most of it, the strongest ones."""
    found = [g for g in _groups(measured) if g.name == AUROC and "policy" not in g.place]
    seeing = next((g for g in found if g.place.get("sees") == "model"), next(iter(found), None))
    if seeing is None:
        return None
    ranked = sorted(seeing.members, key=lambda a: -seeing.scores[a].value)
    return _only(seeing, ranked[:_MOST_ATTACKS])


def _only(group: Group, names: Sequence[str]) -> Group:
    return replace(group, members={k: v for k, v in group.members.items() if k in names})


def not_drawn(measured: Sequence[Measured]) -> list[Measured]:
    """Return the scores that stand alone, so that no figure shows them."""
    return [m for g in _groups(measured) if not g.is_drawn for m in g.members.values()]


def curve_figure(curve: Curve) -> Figure | None:
    """Draw a curve with its numbers; None where it has no point."""
    is_roc = curve.name.startswith("ROC") or _DIAGONAL in curve.series
    series = {
        name: [tuple(point) for point in points]
        for name, points in curve.series.items()
        if not (is_roc and name == _DIAGONAL)  # drawn on every such picture
    }
    picture = line_chart(Lines(curve.name, curve.x, curve.y, series, curve.log, is_roc=is_roc))
    measure = "ROC" if is_roc else curve.name
    return of_one_picture(capital(curve.name), picture, of_curve(curve), measure)


def histogram_figure(histogram: Histogram) -> Figure | None:
    """Draw a histogram with its numbers; None where it is empty."""
    name, picture = histogram.name, histogram_chart(histogram)
    return of_one_picture(capital(name), picture, of_histogram(histogram), name)


def of_one_picture(
    title: str, picture: Markup | None, table: Table | None = None, measure: str = ""
) -> Figure | None:
    """Return a figure that is explained as its measure, or by its title; None without a picture."""
    if picture is None:
        return None
    return Figure(title, meaning(measure or title), (("", picture),), table)


def capital(title: str) -> str:
    """Return a title with a capital in front; all else stays.

    >>> capital("accuracy: DVD")
    'Accuracy: DVD'
    """
    return title[:1].upper() + title[1:]


def _groups(measured: Sequence[Measured]) -> list[Group]:
    elsewhere = (BOUND, CLAIM)
    return groups(
        m
        for m in measured
        if not (
            "value" in m.place
            or is_exposure(m)
            or m.score.name in elsewhere
            or m.place.get("rows") == COMMONEST
        )
    )


def _reference(name: str, label: str, measured: Sequence[Measured]) -> Reference | None:
    """Return what scores are held against: guessing, or always the commonest label."""
    if name in GUESSING:
        return Reference(GUESSING[name], "guessing", is_middle=GUESSING[name] == 0.5)
    for m in measured:
        place = m.place.get("rows"), m.place.get("label", "")
        if m.score.name == name and place == (COMMONEST, label) and math.isfinite(m.score.value):
            return Reference(m.score.value, "always the commonest label")
    return None


def _compared(
    name: str, label: str, panels: Sequence[Group], reference: Reference | None
) -> Figure:
    domain = domain_of([s for group in panels for s in group.scores.values()], reference)
    pictures = []
    for group in panels[:_MOST_PANELS]:
        heading = words({k: v for k, v in group.place.items() if k != "label"})
        rows = {word or name: score for word, score in _once(group.scores).items()}
        pictures.append((heading, interval_chart(group.title, rows, domain, reference)))
    more = len(panels) - _MOST_PANELS
    note = f" The other {more} are in the table of all scores." if more > 0 else ""
    first = next(iter(panels[0].scores.values()))
    title = f"{name}: {label}" if label else name
    explained = meaning(name, first) + note
    return Figure(capital(title), explained, tuple(pictures), is_main=name not in _DETAILS)


def _once(scores: Mapping[str, Score]) -> dict[str, Score]:
    """Leave out what would stand there twice: of two samples of one table, the less fair one.

    Training rows are shown cut to the number of the held-out rows, which they are held against;
    real rows cut to the twin's number only where that changed something.
    """
    double = {TRAIN} if {TRAIN_SAMPLE, HELD_OUT} <= scores.keys() else set()
    if REAL in scores and scores.get(REAL_SMALL) == scores[REAL]:
        double.add(REAL_SMALL)
    return {word: score for word, score in scores.items() if word not in double}


def _bounds(measured: Sequence[Measured]) -> Iterator[Figure]:
    rows: dict[str, dict[str, Score]] = {}
    for m in measured:
        if m.score.name == BOUND:
            claim = claimed(measured, m)
            stated = math.nan if claim is None else claim
            kept = {k: v for k, v in m.place.items() if k not in ("attack", "sees")}
            rows[words(kept)] = {
                "at least, by attack": m.score,
                "claimed": replace(m.score, value=stated, low=math.nan, high=math.nan),
            }
    if rows:
        domain = domain_of([s for each in rows.values() for s in each.values()])
        pictures = tuple(
            (heading, interval_chart(f"{BOUND}, {heading}", each, domain, None))
            for heading, each in rows.items()
        )
        yield Figure("Lower bound of ε beside what is claimed", meaning(BOUND), pictures)


def _exposure(measured: Sequence[Measured]) -> Iterator[Figure]:
    panels: dict[str, dict[str, list[Point]]] = {}
    for m in sorted(measured, key=lambda m: repetitions(m) or 0):
        rest = {k: v for k, v in m.place.items() if k not in ("copies", "policy")}
        lines = panels.setdefault(words(rest), {})
        point = (repetitions(m) or 0, m.score.value, m.score.low, m.score.high)
        lines.setdefault(m.place.get("policy", "model"), []).append(point)
    most = {m.score.maximum for m in measured if math.isfinite(m.score.maximum)}
    whole = tuple(Reference(bits, "the whole secret") for bits in sorted(most)[-1:])
    pictures = []
    for heading, series in panels.items():
        title = f"exposure, {heading}" if heading else "exposure"
        x, y = "times that a secret was planted", "exposure in bits"
        drawn = line_chart(Lines(title, x, y, series, "x", (_UNKNOWN_SECRET, *whole), 0.0))
        if drawn is not None:
            pictures.append((heading, drawn))
    if pictures:
        title = "Exposure of planted secrets against repetitions"
        yield Figure(title, meaning("exposure"), tuple(pictures))
