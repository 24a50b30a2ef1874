"""What the figures of several papers do with their panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def logarithmic(panel: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with a few plain numbers at its ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter

    panel.set(**{f"{which}scale": "log"})
    axis = panel.xaxis if which == "x" else panel.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def legend_beside(empty: Axes, drawn: Axes) -> None:
    """Use a panel that nothing is drawn in for another's legend."""
    empty.set_axis_off()
    empty.legend(*drawn.get_legend_handles_labels(), loc="upper left", fontsize=8, frameon=False)
