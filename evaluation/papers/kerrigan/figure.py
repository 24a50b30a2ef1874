"""Paper 003's figure: perplexity against noise, a panel for each model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluation.papers.axes import logarithmic
from evaluation.papers.kerrigan.found import Found, models
from evaluation.papers.kerrigan.published import BOTH, DELTA, PRIVATE, PUBLIC, SIGMAS, TABLE_1
from evaluation.papers.learning import perplexity
from evaluation.papers.rows import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {PRIVATE: "C3", BOTH: "C0"}


def draw(rows: Rows) -> Figure:
    """Draw every seed, the means, the public model, word counts, and the paper's own values."""
    from matplotlib.figure import Figure

    found = models(rows)
    figure = Figure(figsize=(1 + 3.2 * len(found), 3.6), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for panel, one in zip(panels, found, strict=True):
        _draw(panel, one)
    panels[0].set_ylabel("perplexity per token")
    panels[0].legend(fontsize=6)
    size = rows.settings["size"]
    figure.suptitle(f"Perplexity on private test lines, δ = {DELTA:g} ({size})", fontsize=10)
    return figure


def _draw(panel: Any, found: Found) -> None:
    for start, colour in _COLOURS.items():
        seeds = [_values(found, start, sigma) for sigma in SIGMAS]
        middles = [sum(values) / len(values) for values in seeds]
        panel.plot(range(len(SIGMAS)), middles, "o-", color=colour, label=start)
        for place, values in enumerate(seeds):
            panel.plot([place] * len(values), values, "_", color=colour, markersize=8)
    public = _values(found, PUBLIC, 0.0)
    panel.axhline(sum(public) / len(public), color="C2", linestyle="--", label=PUBLIC)
    counts = perplexity(found.counts)
    panel.axhline(counts, color="0.6", linestyle=":", label="word counts of public text")
    _draw_published(panel, found.network)
    panel.set_xticks(range(len(SIGMAS)), [f"σ = {sigma:g}" for sigma in SIGMAS], fontsize=8)
    logarithmic(panel, "y")
    panel.tick_params(axis="y", which="both", labelsize=7)
    panel.set_title(found.name, fontsize=9)


def _draw_published(panel: Any, network: str) -> None:
    """Mark the paper's test perplexities, of other words, where they are finite."""
    for start, colour in _COLOURS.items():
        known = [(i, TABLE_1.get((network, start, sigma))) for i, sigma in enumerate(SIGMAS)]
        points = [(i, pair[1]) for i, pair in known if pair and pair[1] < float("inf")]
        if points:
            places, values = zip(*points, strict=True)
            label = f"{start} (paper, other words)"
            panel.plot(places, values, "x", color=colour, alpha=0.6, label=label)


def _values(found: Found, start: str, sigma: float) -> list[float]:
    return [row["perplexity_test"] for row in found.of(start, sigma).values()]
