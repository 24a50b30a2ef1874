"""The picture of the page: what a toolkit's rows teach, against the time that they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation.bench.panel_grid import panel_grid


class Point(NamedTuple):
    """One toolkit: its name, minutes, accuracy, and whether it is twinset."""

    name: str
    minutes: float
    accuracy: float
    ours: bool


def draw(path: Path, panels: Mapping[str, Sequence[Point]], measure: str) -> None:
    """Draw a panel for each title; time is logarithmic.

    Args:
        path: of the PNG.
        panels: points by title.
        measure: what accuracy is of.
    """
    names = list(dict.fromkeys(point.name for points in panels.values() for point in points))
    figure, axes = panel_grid(len(panels), most_columns=2, width=5)
    shown = {}  # in a legend, since names at points that lie together hide one another
    for panel, (title, points) in zip(axes, panels.items(), strict=False):
        for point in points:
            look = {"color": f"C{names.index(point.name)}", "marker": "o" if point.ours else "X"}
            at = (point.minutes, point.accuracy)
            (shown[point.name],) = panel.plot(*at, linestyle="", markersize=8, **look)
        panel.set(xscale="log", xlabel="processor minutes", ylabel=measure)
        panel.margins(x=0.15)
        panel.set_title(title, fontsize=9)
    legend = {name: shown[name] for name in names}
    figure.legend(legend.values(), legend, loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=100)
