"""Paper 000's figure: perplexity against noise, and exposure against how often a canary stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluation.exposure import UNKNOWN
from evaluation.papers.adp.cases import FORMS, MODELS, PLANTED
from evaluation.papers.adp.found import LARGEST_EXPOSURE, Found
from evaluation.papers.adp.noise import DP_SGD, LOGARITHMIC, NO_DP, PUBLISHED, SOUND
from evaluation.papers.adp.published import ADP, SIGMAS, TABLE_1
from evaluation.papers.axes import logarithmic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {NO_DP: "0.4", DP_SGD: "C3", PUBLISHED: "C1", LOGARITHMIC: "C4", SOUND: "C0"}
_PAPER = {DP_SGD: "C3", ADP: "C1"}


def draw(found: Found) -> Figure:
    """Draw every seed, the means, and the paper's own perplexities."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * (1 + len(SIGMAS)), 3.8), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(SIGMAS))
    _draw_perplexities(first, found)
    for panel, sigma in zip(others, SIGMAS, strict=True):
        _draw_exposures(panel, found, sigma)
    first.legend(fontsize=6)
    figure.suptitle(f"Adaptive noise ({found.rows.settings['size']})", fontsize=10)
    return figure


def _draw_perplexities(panel: Any, found: Found) -> None:
    places = range(len(SIGMAS))
    for form in FORMS:
        middles = [found.perplexity(form, sigma).value for sigma in SIGMAS]
        panel.plot(places, middles, "o-", color=_COLOURS[form], label=form)
        for place, sigma in enumerate(SIGMAS):
            values = [row["perplexity_test"] for row in found.of(form, sigma)]
            panel.plot([place] * len(values), values, "_", color=_COLOURS[form], markersize=8)
    quiet = found.perplexity(NO_DP, 0.0).value
    panel.axhline(quiet, color=_COLOURS[NO_DP], linestyle="--", label=NO_DP)
    guess = found.rows.facts["vocabulary"]
    panel.axhline(guess, color="0.6", linestyle=":", label="a blind guess")
    for model, colour in _PAPER.items():
        values = [TABLE_1[model, sigma].perplexity for sigma in SIGMAS]
        label = f"{model} (paper, other tokens)"
        panel.plot(places, values, "x", color=colour, alpha=0.6, label=label)
    panel.set_xticks(places, [f"σ = {sigma:g}" for sigma in SIGMAS], fontsize=8)
    logarithmic(panel, "y")
    panel.tick_params(axis="y", which="both", labelsize=7)
    panel.set_title("test perplexity per token", fontsize=9)


def _draw_exposures(panel: Any, found: Found, sigma: float) -> None:
    places = range(len(PLANTED))
    for form, noise in MODELS:
        if noise not in (0.0, sigma):
            continue
        middles = [found.exposure(form, noise, copies).value for copies in PLANTED]
        panel.plot(places, middles, "o-", color=_COLOURS[form])
        for place, copies in enumerate(PLANTED):
            values = [row["exposure"] for row in found.of(form, noise, copies)]
            panel.plot([place] * len(values), values, "_", color=_COLOURS[form], markersize=8)
    panel.axhline(UNKNOWN, color="0.6", linestyle=":")
    panel.set_xticks(places, [f"{copies}×" for copies in PLANTED], fontsize=8)
    panel.set_ylim(0, 1.03 * LARGEST_EXPOSURE)
    panel.tick_params(axis="y", labelsize=7)
    panel.set_title(f"exposure, bits, σ = {sigma:g}", fontsize=9)
