"""Paper 004's figure: exposure against perplexity while models learn, and what they end at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluation.papers.axes import legend_beside, logarithmic
from evaluation.papers.rows import Rows
from evaluation.papers.sdp.attacks import HELD_OUT, SWAPPED
from evaluation.papers.sdp.cases import LSTMS, TRANSFORMERS
from evaluation.papers.sdp.published import DELTA, TABLE_2, TABLE_3, TRANSFORMER, WIKITEXT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(rows: Rows) -> Figure:
    """Draw a row of panels for each text set, and one for transformers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.4 * (len(LSTMS) + 1)), layout="constrained")
    panels = figure.subplots(len(LSTMS) + 1, 3)
    for line, (text, models) in zip(panels, LSTMS.items(), strict=False):
        _perplexities(line[0], rows, text, models)
        _exposures(line[1], rows, text, models)
        _memberships(line[2], rows, text, models)
    _transformers(panels[-1][0], rows)
    for empty, drawn in zip(panels[-1][1:], panels[0][1:], strict=True):
        legend_beside(empty, drawn)
    size = rows.settings["size"]
    figure.suptitle(f"Selective DP, δ = {DELTA:g} ({size}); ε of S-DPSGD is nominal", fontsize=10)
    return figure


def _bars(panel: Any, names: list[str], values: list[list[float]]) -> None:
    means = [sum(some) / len(some) for some in values]
    panel.barh(range(len(names)), means, color=[f"C{i}" for i in range(len(names))], alpha=0.6)
    for place, some in enumerate(values):
        panel.plot(some, [place] * len(some), "k|", markersize=6)
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.invert_yaxis()
    panel.tick_params(axis="x", labelsize=7)


def _perplexities(panel: Any, rows: Rows, text: str, models: tuple[str, ...]) -> None:
    _bars(panel, list(models), [_of(rows, text, model, "perplexity") for model in models])
    for place, model in enumerate(models):
        if (text, model) in TABLE_2:
            panel.plot([TABLE_2[text, model][0]], [place], "rx")
    logarithmic(panel, "x")
    panel.set_title(f"{text}: perplexity (x: paper, other tokens)", fontsize=9)


def _exposures(panel: Any, rows: Rows, text: str, models: tuple[str, ...]) -> None:
    for place, model in enumerate(models):
        for number, row in enumerate(rows.by_seed(text, model).values()):
            pairs = [(p["perplexity"], p["exposure"]) for p in row["points"]]
            label = model if number == 0 else None
            xs, ys = zip(*pairs, strict=True)
            panel.plot(xs, ys, "o-", color=f"C{place}", label=label, markersize=3, linewidth=0.8)
    logarithmic(panel, "x")
    panel.set_title(f"{text}: the canary's exposure, bits, while learning", fontsize=9)
    panel.set_xlabel("perplexity", fontsize=8)
    panel.tick_params(labelsize=7)


def _memberships(panel: Any, rows: Rows, text: str, models: tuple[str, ...]) -> None:
    for shift, (side, mark) in enumerate(((SWAPPED, "o"), (HELD_OUT, "s"))):
        for place, model in enumerate(models):
            found = rows.by_seed(text, model).values()
            values = [row["membership"][side]["accuracy"] for row in found]
            label = side if place == 0 else None
            heights = [place + 0.2 * (shift - 0.5)] * len(values)
            panel.plot(values, heights, mark, color=f"C{shift}", label=label, markersize=4)
    panel.axvline(0.5, color="0.6", linestyle=":")
    panel.set_yticks(range(len(models)), models, fontsize=7)
    panel.invert_yaxis()
    panel.tick_params(axis="x", labelsize=7)
    panel.set_title(f"{text}: accuracy of membership inference", fontsize=9)


def _transformers(panel: Any, rows: Rows) -> None:
    names = [model.removeprefix(f"{TRANSFORMER}, ") for model in TRANSFORMERS]
    _bars(panel, names, [_of(rows, WIKITEXT, model, "perplexity") for model in TRANSFORMERS])
    for place, name in enumerate(names):
        kind, _, policy = name.partition(", ")
        panel.plot([TABLE_3[kind, policy][0]], [place], "rx")
    logarithmic(panel, "x")
    panel.set_title(f"{TRANSFORMER}s: perplexity (x: paper, other tokens)", fontsize=9)


def _of(rows: Rows, text: str, model: str, name: str) -> list[float]:
    return [row[name] for row in rows.by_seed(text, model).values()]
