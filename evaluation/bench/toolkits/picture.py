"""The picture of the page: what a toolkit's rows teach, against the time that they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 * len(panels), 4.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, (title, points) in zip(axes, panels.items(), strict=True):
        for point in points:
            at, colour = (point.minutes, point.accuracy), "C0" if point.ours else "C1"
            panel.plot(*at, "o" if point.ours else "x", color=colour)
            panel.annotate(point.name, at, (4, 3), textcoords="offset points", fontsize=8)
        panel.set(xscale="log", xlabel="processor minutes", ylabel=measure)
        panel.margins(x=0.45)
        panel.set_title(title, fontsize=9)
    figure.savefig(path, dpi=100)
