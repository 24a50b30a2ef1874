"""The picture of the page: panels of lines, one line an arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.bench.panel_grid import panel_grid

COLOURS = [*(f"C{n}" for n in range(10)), "black", "gold", "navy"]  # of more arms than there are


class Line(NamedTuple):
    """One arm: its values of each seed by x; `everywhere`: at all x, and drawn across."""

    name: str
    values: Mapping[float, Sequence[float]]
    everywhere: bool


class Panel(NamedTuple):
    """One table over one axis, with the names of its values."""

    title: str
    axis: str
    ticks: Mapping[Any, str]
    lines: Sequence[Line]


def draw(path: Path, panels: Sequence[Panel], measure: str) -> None:
    """Draw panels: each seed a point, their mean a line.

    Args:
        path: of the PNG.
        panels: in order.
        measure: what the values are.
    """
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    figure, axes = panel_grid(len(panels), most_columns=3, width=4)
    shown = {}
    for axis, panel in zip(axes, panels, strict=False):
        for line in panel.lines:
            shown[line.name] = _line(axis, line, COLOURS[names.index(line.name)])
        axis.set(xscale="log", xlabel=panel.axis, ylabel=measure)
        axis.set_xticks(list(panel.ticks), list(panel.ticks.values()))
        axis.minorticks_off()
        axis.margins(x=0.2)
        axis.set_title(panel.title, fontsize=9)
    figure.legend([shown[name] for name in names], names, loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=100)


def _line(axis: Any, line: Line, colour: str) -> Any:
    """Draw one arm; return what stands for it in the legend."""
    if line.everywhere:
        (values,) = line.values.values()
        return axis.axhline(sum(values) / len(values), color=colour, linestyle="--")
    asked = sorted(line.values)
    for x in asked:
        points = line.values[x]
        axis.plot([x] * len(points), points, "o", color=colour, markersize=4, alpha=0.5)
    means = [sum(line.values[x]) / len(line.values[x]) for x in asked]
    (found,) = axis.plot(asked, means, "-o", color=colour, markersize=5)
    return found
