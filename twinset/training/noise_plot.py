"""A picture of where importance let noise go: layer × kind of weight.

Drawn from gradients that were released, so that it tells nothing more than the model does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LAYER = re.compile(r"\.(\d+)\.")
OUTSIDE = "-"  # parameters outside the layers


def noise_cells(mean_noise: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return the geometric mean factor of each (layer, kind).

    >>> cells = noise_cells({"h.0.attn.q.weight": 0.5, "h.0.attn.q.bias": 2.0, "wte.weight": 1.5})
    >>> {place: round(factor, 3) for place, factor in cells.items()}
    {('0', 'attn.q'): 1.0, ('-', 'wte'): 1.5}
    """
    found: dict[tuple[str, str], list[float]] = {}
    for name, factor in mean_noise.items():
        found.setdefault(_place(name), []).append(math.log(factor))
    return {place: math.exp(sum(logs) / len(logs)) for place, logs in found.items()}


def draw_noise_map(mean_noise: Mapping[str, float], path: Path) -> None:
    """Draw the factors of what `uniform` draws, on a logarithmic scale around 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    places = noise_cells(mean_noise)
    layers, kinds = ({place[i] for place in places} for i in (0, 1))
    figure = Figure(
        figsize=(2.5 + 0.9 * len(kinds), 1.8 + 0.28 * len(layers)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    draw_cells(figure.subplots(), places)
    figure.savefig(path, dpi=130)


def draw_cells(axes: Any, cells: Mapping[tuple[str, str], float]) -> None:
    """Draw the factors of `noise_cells`, or means of them, on axes of matplotlib."""
    import numpy as np

    layers = sorted({layer for layer, _ in cells}, key=lambda x: (x == OUTSIDE, x.zfill(4)))
    kinds = list(dict.fromkeys(kind for _, kind in cells))
    grid = np.array([[cells.get((layer, kind), math.nan) for kind in kinds] for layer in layers])
    most = max(0.1, float(np.nanmax(np.abs(np.log2(grid)))))
    image = axes.imshow(np.log2(grid), cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    axes.set_xticks(range(len(kinds)), kinds, rotation=40, ha="right")
    axes.set_yticks(range(len(layers)), layers)
    axes.set_ylabel("layer")
    axes.set_title("Noise as a multiple of uniform noise")
    ticks = np.linspace(-most, most, 5)
    bar = axes.figure.colorbar(image, ax=axes, ticks=ticks)
    bar.ax.set_yticklabels([f"{2**t:.2f}" for t in ticks])


def _place(name: str) -> tuple[str, str]:
    """Split a parameter's name into layer and kind, without what wraps it."""
    name = re.sub(r"^(base_model\.model\.)?(transformer\.|model\.)?", "", name)
    name = re.sub(r"(\.default)?\.(weight|bias)$", "", name)
    found = _LAYER.search(name)
    return (found[1], name[found.end() :]) if found else (OUTSIDE, name)
