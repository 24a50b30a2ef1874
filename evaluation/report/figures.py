"""From findings and training records to figures: what is drawn of each, and under which heading."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from evaluation.fidelity.measures import TRAIN
from evaluation.findings import Findings, Measured, Question, Score
from evaluation.leakage.one_run import BOUND
from evaluation.leakage.roc import AUROC
from evaluation.release import (
    BASELINE,
    PRIVATE_CLASSIFIER,
    REAL,
    REAL_SMALL,
    TWIN,
    TWIN_SMALL,
)
from evaluation.report.charts import (
    Point,
    Reference,
    draw_histogram,
    draw_intervals,
    draw_lines,
    find_domain,
)
from evaluation.report.tables import (
    CLAIM,
    COMMONEST,
    GUESSING,
    HELD_OUT,
    TRAIN_SAMPLE,
    Group,
    Table,
    explain_measure,
    find_claim,
    format_number,
    group_scores,
    list_curve,
    list_histogram,
    place_in_words,
)
from evaluation.report.verdicts import find_deciding
from twinset.privacy.accounting.events import Event, IndividualGaussian, SubsampledGaussian
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.training.metrics_log import OUTSIDE, noise_cells

_MOST_PANELS = 12
_MOST_ATTACKS = 4  # in the picture that represents all
_DETAILS = ("macro-F1", "TPR at 0.1 % FPR")  # not the first thing to look at
_DIAGONAL = "guessing"
_MOST_POINTS = 120  # of a curve over steps. Between them is the mean
_EPSILON_STEPS = 6  # where ε is computed: each takes as long as computing it for a card
_SHADES = 3  # of the map of noise, to each side of 1
_STEPS = (SubsampledGaussian, IndividualGaussian)

NoiseCell = tuple[str, int]  # a factor in words, and its shade: −3 (least noise) … 3 (most)


@dataclass(frozen=True)
class Figure:
    """One or several pictures that say one thing.

    Args:
        title: what is shown.
        meaning: one sentence for a reader who does not know the measure.
        panels: (heading or "", picture).
        table: the same in numbers, where the table of all scores does not have them.
        is_main: others are shown on request.
    """

    title: str
    meaning: str
    panels: tuple[tuple[str, Markup], ...]
    table: Table | None = None
    is_main: bool = True


def draw_section(question: Question, findings: Sequence[Findings]) -> Iterator[Figure]:
    """Yield all figures on a question: of scores, then of curves and histograms."""
    measured = [m for each in findings for m in each.of(question)]
    yield from draw_scores(measured)
    has_exposure = any(map(is_exposure, measured))
    for each in findings:
        for curve in each.curves:
            if curve.question != question:
                continue
            # The scores draw exposure themselves, with what an ignorant model would show.
            if has_exposure and curve.name.startswith("exposure"):
                continue
            name = curve.name
            is_roc = name.startswith("ROC") or _DIAGONAL in curve.series
            series = dict(curve.series)
            if is_roc:  # every such picture has the diagonal already
                series.pop(_DIAGONAL, None)
            picture = draw_lines(name, curve.x, curve.y, series, curve.log, is_roc=is_roc)
            if picture is not None:
                meaning = explain_measure("ROC" if is_roc else name)
                yield Figure(capitalise(name), meaning, (("", picture),), list_curve(curve))
        for histogram in each.histograms:
            picture = draw_histogram(histogram) if histogram.question == question else None
            if picture is not None:
                meaning, table = explain_measure(histogram.name), list_histogram(histogram)
                title = capitalise(histogram.name)
                yield Figure(title, meaning, (("", picture),), table)


def draw_scores(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Draw what can be compared: one figure for each measure and label, one panel for each group.

    Args:
        measured: scores on one question.
    """
    yield from _draw_exposure([m for m in measured if is_exposure(m)])
    yield from _draw_bounds(measured)
    figures: dict[tuple[str, str], list[Group]] = {}
    for group in _drawable_groups(measured):
        if group.is_drawn:
            figures.setdefault((group.name, group.place.get("label", "")), []).append(group)
    for panels in figures.values():
        yield _compare_groups(panels, measured)


def draw_headline(question: Question, measured: Sequence[Measured]) -> Figure | None:
    """Return the picture that matters most for a question, or None if nothing can be drawn."""
    found = _drawable_groups(measured)
    if question == "utility":
        # Accuracies of the first label, by the classifier that learns most from real rows.
        useful = [g for g in found if g.name == "accuracy" and {TWIN, BASELINE} <= {*g.members}]
        first = [g for g in useful if g.place.get("label") == useful[0].place.get("label")]
        best = max(
            first, key=lambda g: g.scores[REAL].value if REAL in g.scores else 0.0, default=None
        )
        names: Sequence[str] = (REAL, TWIN, TWIN_SMALL, BASELINE, PRIVATE_CLASSIFIER)
    elif question == "fidelity":
        best = next(iter(find_deciding(measured)), None)
        names = list(best.members) if best else []
    else:
        # The strongest attacks on this run, of those that saw most of it.
        attacks = [g for g in found if g.name == AUROC and "policy" not in g.place]
        seeing = (g for g in attacks if g.place.get("sees") == "model")
        best = next(seeing, next(iter(attacks), None))
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
    return m.score.name == "exposure" and _count_copies(m) is not None


def capitalise(title: str) -> str:
    """Return a title with a capital in front. All else stays.

    >>> capitalise("accuracy: DVD")
    'Accuracy: DVD'
    """
    return title[:1].upper() + title[1:]


def _count_copies(m: Measured) -> float | None:
    try:
        return float(m.place["copies"])
    except (KeyError, ValueError):
        return None


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
    reference = None
    if name in GUESSING:
        reference = Reference(GUESSING[name], _DIAGONAL, is_middle=GUESSING[name] == 0.5)
    for m in measured:
        place = m.place.get("rows"), m.place.get("label", "")
        if m.score.name == name and place == (COMMONEST, label) and math.isfinite(m.score.value):
            reference = reference or Reference(m.score.value, "always the commonest label")
    domain = find_domain([s for group in panels for s in group.scores.values()], reference)
    pictures = []
    for group in panels[:_MOST_PANELS]:
        # Of two samples of one table only the fairer one is drawn: training rows are cut to the
        # number of held-out rows, real rows to the twin's where that changed something.
        scores = dict(group.scores)
        if {TRAIN_SAMPLE, HELD_OUT} <= scores.keys():
            scores.pop(TRAIN, None)
        if REAL in scores and scores.get(REAL_SMALL) == scores[REAL]:
            del scores[REAL_SMALL]
        rows = {word or name: score for word, score in scores.items()}
        heading = place_in_words({k: v for k, v in group.place.items() if k != "label"})
        pictures.append((heading, draw_intervals(group.title, rows, domain, reference)))
    more = len(panels) - _MOST_PANELS
    note = f" The other {more} are in the table of all scores." if more > 0 else ""
    explained = explain_measure(name, next(iter(panels[0].scores.values()))) + note
    title = capitalise(f"{name}: {label}" if label else name)
    return Figure(title, explained, tuple(pictures), is_main=name not in _DETAILS)


def _draw_bounds(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Draw lower bounds of ε next to what is claimed."""
    rows: dict[str, dict[str, Score]] = {}
    for m in measured:
        if m.score.name == BOUND:
            claim = find_claim(measured, m)
            stated = math.nan if claim is None else claim
            kept = {k: v for k, v in m.place.items() if k not in ("attack", "sees")}
            rows[place_in_words(kept)] = {
                "at least, by attack": m.score,
                "claimed": replace(m.score, value=stated, low=math.nan, high=math.nan),
            }
    if rows:
        domain = find_domain([s for each in rows.values() for s in each.values()])
        pictures = tuple(
            (heading, draw_intervals(f"{BOUND}, {heading}", each, domain, None))
            for heading, each in rows.items()
        )
        yield Figure("Lower bound of ε beside what is claimed", explain_measure(BOUND), pictures)


def _draw_exposure(measured: Sequence[Measured]) -> Iterator[Figure]:
    """Draw exposure of planted secrets against repetitions, one line for each policy."""
    panels: dict[str, dict[str, list[Point]]] = {}
    for m in sorted(measured, key=lambda m: _count_copies(m) or 0):
        rest = {k: v for k, v in m.place.items() if k not in ("copies", "policy")}
        lines = panels.setdefault(place_in_words(rest), {})
        point = (_count_copies(m) or 0, m.score.value, m.score.low, m.score.high)
        lines.setdefault(m.place.get("policy", "model"), []).append(point)
    most = {m.score.maximum for m in measured if math.isfinite(m.score.maximum)}
    marks = [Reference(math.log2(math.e), "not known to the model")]
    marks += [Reference(bits, "the whole secret") for bits in sorted(most)[-1:]]
    pictures = []
    for heading, series in panels.items():
        title = f"exposure, {heading}" if heading else "exposure"
        x, y = "times that a secret was planted", "exposure in bits"
        drawn = draw_lines(title, x, y, series, "x", marks, least=0.0)
        if drawn is not None:
            pictures.append((heading, drawn))
    if pictures:
        title = "Exposure of planted secrets against repetitions"
        yield Figure(title, explain_measure("exposure"), tuple(pictures))


def draw_training(steps: Sequence[Mapping[str, Any]], ledger: Ledger | None) -> list[Figure]:
    """Draw loss and clipped share over steps, and the ε that they spent.

    Args:
        steps: figures of each training step.
        ledger: what was spent, if it is known.
    """
    made = []
    for title, field, y, least in (
        ("Loss", "loss", "mean loss of the batch", None),
        ("Clipped share", "clipped", "share of records", 0.0),
    ):
        series = {title.lower(): average_over_steps(steps, field)}
        picture = draw_lines(title, "step", y, series, least=least)
        if picture is not None:
            name = f"{title} while training"
            made.append(Figure(name, explain_measure(name), (("", picture),)))
    spent = spend_over_steps(ledger) if ledger else []
    if ledger and spent:
        asked = ledger.target_epsilon
        marks = () if asked is None else (Reference(asked, f"asked for: {asked:g}"),)
        picture = draw_lines("ε spent", "step", "ε", {"ε": spent}, "", marks, 0.0)
        rows = tuple((f"{step:,.0f}", format_number(eps)) for step, eps in spent)
        table, name = Table("ε spent by step", ("step", "ε"), rows), "ε spent while training"
        if picture is not None:
            made.append(Figure(name, explain_measure(name), (("", picture),), table))
    return made


def average_over_steps(steps: Sequence[Mapping[str, Any]], field: str) -> list[Point]:
    """Return (step, figure), which are means of neighbours where there are many steps."""

    def is_number(value: Any) -> bool:
        # NaN compares false, and so does what is infinite
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max

    known: list[tuple[Any, Any]] = [(s.get("step"), s.get(field)) for s in steps]
    points = [(float(x), float(y)) for x, y in known if is_number(x) and is_number(y)]
    size = max(1, math.ceil(len(points) / _MOST_POINTS))
    parts = (points[start : start + size] for start in range(0, len(points), size))
    return [tuple(sum(values) / len(part) for values in zip(*part, strict=True)) for part in parts]


def spend_over_steps(ledger: Ledger) -> list[Point]:
    """Return (step, ε) from the ledger alone. Empty where nothing is guaranteed."""
    total = sum(event.steps for event in ledger.events if isinstance(event, _STEPS))
    parts = range(1, _EPSILON_STEPS + 1)
    at = sorted({max(1, round(total * part / _EPSILON_STEPS)) for part in parts}) if total else []
    points: list[Point] = []
    for step in reversed(at):  # the whole run first: it decides about all
        left, events = step, list[Event]()
        for event in ledger.events:  # as they were after this step
            if isinstance(event, _STEPS):
                taken = min(event.steps, left)
                left -= taken
                events += [replace(event, steps=taken)] if taken else []
            else:
                events.append(event)
        spent = guarantee(replace(ledger, events=events)).epsilon
        if spent is None:
            return []
        points.insert(0, (float(step), spent))
    return points


def map_noise(mean_noise: Mapping[str, float]) -> dict[str, dict[str, NoiseCell | None]]:
    """Return factors of what `uniform` draws, by layer and kind of weight.

    Every layer has all kinds. The map is empty where there is nothing to tell, or no number.
    """
    cells = noise_cells({n: f for n, f in mean_noise.items() if math.isfinite(f) and f > 0})
    most = max([0.1, *(abs(math.log2(factor)) for factor in cells.values())])
    layers = sorted({layer for layer, _ in cells}, key=lambda x: (x == OUTSIDE, x.zfill(4)))
    kinds = dict.fromkeys(kind for _, kind in cells)
    found: dict[str, dict[str, NoiseCell | None]] = {}
    for layer in layers:
        row = found.setdefault("outside the layers" if layer == OUTSIDE else layer, {})
        for kind in kinds:
            factor = cells.get((layer, kind))
            shade = 0 if factor is None else round(_SHADES * math.log2(factor) / most)
            row[kind] = None if factor is None else (f"{factor:.2f}", shade)
    return found
