"""What the figures of several papers have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def seed_line(
    panel: Axes,
    seeds: Sequence[Sequence[float]],
    *,
    middle: Callable[[Sequence[float]], float] = fmean,
    places: Sequence[float] | None = None,
    form: str = "o-",
    **style: Any,
) -> None:
    """Draw a line through the means over seeds, and a dash for every seed.

    Args:
        panel: drawn in.
        seeds: the values at each place, one for each seed.
        middle: of the values at a place; the geometric mean for perplexities.
        places: on the x-axis; 0, 1, … where left out.
        form: of the line, in matplotlib's words; "o" leaves the line out.
        style: of the line; it must name a colour.
    """
    at = range(len(seeds)) if places is None else places
    panel.plot(at, [middle(values) for values in seeds], form, **style)
    for place, values in zip(at, seeds, strict=True):
        panel.plot([place] * len(values), values, "_", color=style["color"], markersize=8)


def name_ticks(panel: Axes, names: Sequence[str], **style: Any) -> None:
    """Write a name at each of the places 0, 1, … on the x-axis."""
    panel.set_xticks(range(len(names)), names, fontsize=style.pop("fontsize", 8), **style)
    panel.tick_params(axis="y", which="both", labelsize=7)


def seed_bars(panel: Axes, values: Mapping[str, Sequence[float]]) -> None:
    """Draw a bar as long as the mean over seeds for each name, the first on top, and each seed."""
    for place, seeds in enumerate(values.values()):
        panel.barh([place], [fmean(seeds)], color=f"C{place}", alpha=0.6)
        panel.plot(seeds, [place] * len(seeds), "k|", markersize=6)
    name_rows(panel, list(values))


def name_rows(panel: Axes, names: Sequence[str]) -> None:
    """Write a name at each of the places 0, 1, … of the y-axis, the first on top."""
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.invert_yaxis()
    panel.tick_params(axis="x", labelsize=7)


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
