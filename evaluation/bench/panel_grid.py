"""A figure of panels beside and below one another, with room for a legend."""

from __future__ import annotations

from typing import Any


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
