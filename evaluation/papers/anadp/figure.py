"""Paper 001's figure: accuracy by method and noise, leakage, and where noise went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluation.papers.anadp.corpora import SETS, SST2
from evaluation.papers.anadp.found import MEASURES, Found
from evaluation.papers.anadp.noise import FORMS, IMPORTANCE, NO_DP, PUBLISHED, SOUND, UNIFORM
from evaluation.papers.anadp.training import PARTS
from evaluation.papers.anadp.tuning import LORA, METHODS
from twinset.noisemap import draw_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {NO_DP: "0.4", UNIFORM: "C3", PUBLISHED: "C1", SOUND: "C0"}
_MARKS = dict(zip(PARTS, ("o", "x"), strict=True))


def draw(found: Found) -> Figure:
    """Draw every seed and the means."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.5), layout="constrained")
    halves: Any = figure.subfigures(2, 1)
    above, below = halves
    panels = above.subplots(1, len(SETS) + len(MEASURES))
    for panel, dataset in zip(panels, SETS, strict=False):
        _draw_accuracies(panel, found, dataset)
    for panel, measure in zip(panels[len(SETS) :], MEASURES, strict=True):
        _draw_leakage(panel, found, measure)
    panels[0].legend(fontsize=6)
    for panel, form in zip(below.subplots(1, len(IMPORTANCE)), IMPORTANCE, strict=True):
        draw_cells(panel, found.cells(SST2, LORA, form))
        panel.set_title(f"noise ÷ uniform, {SST2}, {LORA}: {form}", fontsize=8)
        panel.tick_params(labelsize=6)
    figure.suptitle(f"Noise by importance ({found.rows.settings['size']})", fontsize=10)
    return figure


def _draw_accuracies(panel: Any, found: Found, dataset: str) -> None:
    for shift, form in enumerate(FORMS):
        places = [place + 0.15 * (shift - 1.5) for place in range(len(METHODS))]
        middles = [found.accuracy(dataset, method, form).value for method in METHODS]
        panel.plot(places, middles, "o", color=_COLOURS[form], label=form, markersize=4)
        for place, method in zip(places, METHODS, strict=True):
            values = [row["accuracy"] for row in found.of(dataset, method, form)]
            panel.plot([place] * len(values), values, "_", color=_COLOURS[form], markersize=8)
    guess = found.rows.facts["sets"][dataset]["guess"]
    panel.axhline(guess, color="0.6", linestyle=":", label="a guess")
    panel.set_xticks(range(len(METHODS)), METHODS, fontsize=7, rotation=20)
    panel.tick_params(axis="y", labelsize=7)
    panel.set_title(f"accuracy, {dataset}", fontsize=8)


def _draw_leakage(panel: Any, found: Found, measure: str) -> None:
    for part in PARTS:
        for place, form in enumerate(FORMS):
            values = [row["known"][part][measure] for row in found.leaking(form)]
            known = [value for value in values if value is not None]
            label = part if form == NO_DP else None
            mark = _MARKS[part]
            places = [place] * len(known)
            panel.plot(places, known, mark, color=_COLOURS[form], label=label, markersize=5)
    panel.legend(fontsize=6)
    panel.set_xticks(range(len(FORMS)), FORMS, fontsize=6, rotation=25)
    panel.tick_params(axis="y", labelsize=7)
    panel.set_title(MEASURES[measure], fontsize=7)
