"""Paper 002's figure: accuracy by records and ε, and label fidelity by the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluation.papers.axes import legend_beside
from evaluation.papers.mattern.cases import (
    BASELINE,
    BUDGETS,
    COMPARED,
    DATA,
    REAL,
    RECORDS,
    RIVAL,
    TWIN,
    Level,
    baseline,
    by_loss,
    names,
)
from evaluation.papers.mattern.found import Found, joint, wanted
from evaluation.papers.mattern.published import GAP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = dict(zip(BUDGETS, ("C3", "C1", "C0"), strict=True))


def draw(found: Found) -> Figure:
    """Draw every seed and the means; dashed: a DP classifier of the real rows at the same ε."""
    from matplotlib.figure import Figure

    panels = [(data, target) for data in DATA for target in wanted(data)]
    figure = Figure(figsize=(3.3 * len(panels), 7), layout="constrained")
    above, below = figure.subplots(2, len(panels))
    for panel, (data, target) in zip(above, panels, strict=True):
        _draw_accuracies(panel, found, data, target)
    for panel, data in zip(below, DATA, strict=False):
        _draw_losses(panel, found, data)
    legend_beside(below[-1], above[0])
    name, size = found.size.neural[0], found.rows.settings["size"]
    figure.suptitle(f"Twins of reviews, classifier {name} ({size})", fontsize=10)
    return figure


def _draw_accuracies(panel: Any, found: Found, data: str, target: str) -> None:
    name = found.size.neural[0]
    for epsilon, colour in _COLOURS.items():
        said = f"ε = {names(epsilon, None)[0]}"
        twins = {r: Level(data, TWIN, r, epsilon, found.size.mismatch) for r in RECORDS}
        _line(panel, found, twins, (target, name), color=colour, label=f"twin, {said}")
        if epsilon is not None:
            rivals = {r: Level(data, RIVAL, r, epsilon) for r in RECORDS}
            style = {"color": colour, "linestyle": "--", "label": f"DP classifier, {said}"}
            _line(panel, found, rivals, (target, name), **style)
    real = {r: Level(data, REAL, r) for r in RECORDS}
    _line(panel, found, real, (target, name), color="0.3", linestyle=":", label="real rows")
    all_real = _mean(found.accuracy(real[None], target, name))
    panel.axhspan(all_real - GAP, all_real, color="0.9", label=f"paper: within {GAP} of all")
    least = _mean(found.accuracy(baseline(data), target, name))
    panel.axhline(least, color="C2", label=BASELINE)
    panel.set_xticks(range(len(RECORDS)), [names(None, r)[1] for r in RECORDS])
    panel.set_xlabel("records")
    panel.set_title(f"{data}: accuracy, {target}", fontsize=9)


def _line(
    panel: Any,
    found: Found,
    by_records: Mapping[int | None, Level],
    what: tuple[str, str],
    **style: Any,
) -> None:
    seeds = [list(found.accuracy(level, *what).values()) for level in by_records.values()]
    panel.plot(range(len(seeds)), [sum(v) / len(v) for v in seeds], marker="o", **style)
    for place, values in enumerate(seeds):
        panel.plot([place] * len(values), values, "_", color=style["color"], markersize=8)


def _draw_losses(panel: Any, found: Found, data: str) -> None:
    """Draw label fidelity, a place for each loss."""
    name, target = found.size.neural[0], joint(data)
    for epsilon in (COMPARED, None):
        every = [found.fidelity(x, target, name) for x in by_loss(data, found.size, epsilon)]
        colour = _COLOURS[epsilon]
        panel.plot(range(len(every)), list(map(_mean, every)), "o-", color=colour)
        for place, values in enumerate(every):
            panel.plot([place] * len(values), list(values.values()), "_", color=colour)
    least = _mean(found.fidelity(baseline(data), target, name))
    panel.axhline(least, color="C2")
    losses = [str(loss) for loss in found.size.losses]
    panel.set_xticks(range(len(losses)), losses, rotation=60, fontsize=7)
    panel.set_title(f"{data}: label fidelity, all records", fontsize=9)


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)
