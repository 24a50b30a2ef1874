"""What the figures of several papers have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def make_panels(
    title: str, rows: int, columns: int, size: tuple[float, float]
) -> tuple[Figure, Any]:
    """Return a figure of a size in inches, and its panels in an array (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=10)
    return figure, figure.subplots(rows, columns, squeeze=False)


def seed_line(
    panel: Axes,
    seeds: Sequence[Mapping[int, float]],
    *,
    middle: Callable[[Sequence[float]], float] = fmean,
    places: Sequence[float] | None = None,
    form: str = "o-",
    **style: Any,
) -> None:
    """Draw a line through the means over seeds, and a dash for every seed.

    Args:
        panel: drawn in.
        seeds: at each place the values by seed.
        middle: of the values at a place; the geometric mean for perplexities.
        places: on the x-axis; 0, 1, … where left out.
        form: of the line, in matplotlib's words; "o" leaves the line out.
        style: of the line; it must name a colour.
    """
    at = range(len(seeds)) if places is None else places
    panel.plot(at, [middle(list(values.values())) for values in seeds], form, **style)
    for place, values in zip(at, seeds, strict=True):
        dashes = [place] * len(values)
        panel.plot(dashes, list(values.values()), "_", color=style["color"], markersize=8)


def crosses(panel: Axes, reported: Sequence[str | None], **style: Any) -> None:
    """Draw a cross for each number that the paper reports, at the places 0, 1, …."""
    import pandas as pd

    known = pd.to_numeric(pd.Series(reported), errors="coerce")  # some are words: no cross
    panel.plot(range(len(known)), known, "x", alpha=0.6, **style)


def name_panel(
    panel: Axes, title: str, names: Sequence[str], *, logarithmic: bool = False, **style: Any
) -> None:
    """Write a title, and a name at each of the places 0, 1, … on the x-axis."""
    panel.set_title(title, fontsize=9)
    panel.set_xticks(range(len(names)), names, **{"fontsize": 8, **style})
    if logarithmic:
        make_logarithmic(panel, "y")
    panel.tick_params(axis="y", which="both", labelsize=7)


def make_logarithmic(panel: Axes, which: Literal["x", "y"]) -> None:
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
