"""How the twin was made: training curves, what they cost, and where the noise went."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evaluation.report.charts.interval_chart import Reference
from evaluation.report.charts.lines import Lines, Point, line_chart
from evaluation.report.charts.numbers import number
from evaluation.report.figures import Figure, of_one_picture
from evaluation.report.tables import Table
from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    SubsampledGaussian,
)
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.training.metrics_log import OUTSIDE, noise_cells

_MOST_POINTS = 120  # of a curve over steps; between them is the mean
_SPENT_AT = 6  # steps at which ε is computed: each costs about as long as it does for a card
_LEVELS = 3  # shades to each side of 1


NoiseCell = tuple[str, int]  # a factor in words, and its shade: −3 (least noise) … 3 (most)


def training_figures(steps: Sequence[Mapping[str, Any]], ledger: Ledger | None) -> list[Figure]:
    """Draw loss and clipped share over steps, and the ε that they spent."""
    loss = {"loss": over_steps(steps, "loss")}
    clipped = {"clipped share": over_steps(steps, "clipped")}
    drawn = [
        of_one_picture(f"{lines.title} while training", line_chart(lines))
        for lines in (
            Lines("Loss", "step", "mean loss of the batch", loss),
            Lines("Clipped share", "step", "share of records", clipped, least=0.0),
        )
    ]
    if ledger and (spent := spent_over_steps(ledger)):
        asked = ledger.target_epsilon
        marks = () if asked is None else (Reference(asked, f"asked for: {asked:g}"),)
        picture = line_chart(Lines("ε spent", "step", "ε", {"ε": spent}, "", marks, 0.0))
        rows = tuple((f"{step:,.0f}", number(eps)) for step, eps in spent)
        table = Table("ε spent by step", ("step", "ε"), rows)
        drawn.append(of_one_picture("ε spent while training", picture, table))
    return [figure for figure in drawn if figure is not None]


def is_untrained(ledger: Ledger | None) -> bool:
    """Return whether a run took no step: all that its ledger has was released once."""
    events = ledger.events if ledger else []
    return bool(events) and all(isinstance(event, GaussianRelease) for event in events)


def over_steps(steps: Sequence[Mapping[str, Any]], figure: str) -> list[Point]:
    """Return (step, figure), the means of neighbours where there are many steps."""
    known: list[tuple[Any, Any]] = [(s.get("step"), s.get(figure)) for s in steps]
    points = [(float(x), float(y)) for x, y in known if _is_number(x) and _is_number(y)]
    size = max(1, math.ceil(len(points) / _MOST_POINTS))
    slices = (points[start : start + size] for start in range(0, len(points), size))
    return [(_mean([x for x, _ in part]), _mean([y for _, y in part])) for part in slices]


def spent_over_steps(ledger: Ledger) -> list[Point]:
    """Return (step, ε) from the ledger alone; nothing where nothing is guaranteed."""
    total = sum(event.steps for event in ledger.events if isinstance(event, _STEPS))
    at = sorted({max(1, round(total * part / _SPENT_AT)) for part in range(1, _SPENT_AT + 1)})
    points: list[Point] = []
    for step in reversed(at if total else []):  # the whole run first: it decides about all
        spent = guarantee(replace(ledger, events=_first(ledger.events, step))).epsilon
        if spent is None:
            break
        points.insert(0, (float(step), spent))
    return points if len(points) == len(at) else []


def noise_map(mean_noise: Mapping[str, float]) -> dict[str, dict[str, NoiseCell | None]]:
    """Return factors of what `uniform` draws, by layer and kind of weight; a layer has all kinds.

    Empty where there is nothing to tell, or no number.
    """
    cells = noise_cells({n: f for n, f in mean_noise.items() if math.isfinite(f) and f > 0})
    most = max([0.1, *(abs(math.log2(factor)) for factor in cells.values())])
    layers = sorted({layer for layer, _ in cells}, key=lambda x: (x == OUTSIDE, x.zfill(4)))
    kinds = dict.fromkeys(kind for _, kind in cells)
    return {
        "outside the layers" if layer == OUTSIDE else layer: {
            kind: _cell(cells.get((layer, kind)), most) for kind in kinds
        }
        for layer in layers
    }


_STEPS = (SubsampledGaussian, IndividualGaussian)


def _first(events: Sequence[Event], steps: int) -> list[Event]:
    """Return the events as they were after so many steps."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, _STEPS):
            taken = min(event.steps, steps)
            steps -= taken
            found += [replace(event, steps=taken)] if taken else []
        else:
            found.append(event)
    return found


def _cell(factor: float | None, most: float) -> NoiseCell | None:
    if factor is None:
        return None
    return f"{factor:.2f}", round(_LEVELS * math.log2(factor) / most)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # no NaN either


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
