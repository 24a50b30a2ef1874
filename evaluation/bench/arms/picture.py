"""The picture of the page: what each arm's rows teach, table by table, over ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Line(NamedTuple):
    """One arm: its values of each seed by ε; `everywhere`: it has no ε, and is drawn across."""

    name: str
    values: Mapping[float, Sequence[float]]
    everywhere: bool


def draw(path: Path, panels: Mapping[str, Sequence[Line]], measure: str) -> None:
    """Draw a panel for each title: each seed a point, their mean a line.

    Args:
        path: of the PNG.
        panels: lines by title.
        measure: what the values are.
    """
    names = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    figure, axes = panel_grid(len(panels), most_columns=3, width=4)
    shown = {}
    for panel, (title, lines) in zip(axes, panels.items(), strict=False):
        for line in lines:
            shown[line.name] = _line(panel, line, f"C{names.index(line.name) % 10}")
        panel.set(xscale="log", xlabel="ε", ylabel=measure)
        asked = sorted({epsilon for line in lines for epsilon in line.values if epsilon})
        panel.set_xticks(asked, [f"{epsilon:g}" for epsilon in asked])
        panel.minorticks_off()
        panel.margins(x=0.2)
        panel.set_title(title, fontsize=9)
    figure.legend([shown[name] for name in names], names, loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=100)


def panel_grid(panels: int, most_columns: int, width: float) -> tuple[Any, list[Any]]:
    """Return a figure with room for a legend, and its panels; those left over show nothing.

    Args:
        panels: how many are drawn in.
        most_columns: panels side by side, at most.
        width: of each, in inches.
    """
    from matplotlib.figure import Figure

    columns = min(most_columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns + 3, 3.6 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in axes[panels:]:
        panel.set_axis_off()
    return figure, axes


def _line(panel: Any, line: Line, colour: str) -> Any:
    """Draw one arm; return what stands for it in the legend."""
    if line.everywhere:
        (values,) = line.values.values()
        return panel.axhline(sum(values) / len(values), color=colour, linestyle="--")
    asked = sorted(line.values)
    for epsilon in asked:
        points = line.values[epsilon]
        panel.plot([epsilon] * len(points), points, "o", color=colour, markersize=4, alpha=0.5)
    means = [sum(line.values[epsilon]) / len(line.values[epsilon]) for epsilon in asked]
    (found,) = panel.plot(asked, means, "-o", color=colour, markersize=5)
    return found
