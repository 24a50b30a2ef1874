"""Shares by bin for several tables: steps where bins have an order, bars where they are names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from evaluation.findings import Histogram
from evaluation.report.charts.axes import Scale, round_above
from evaluation.report.charts.legends import bar_legend, line_legend
from evaluation.report.charts.numbers import number, short
from evaluation.report.charts.styles import Style, in_order, styles
from evaluation.report.charts.svg import WIDTH, drawing, line, shortened, tag, text

MOST_BARS = 20
_LEFT, _RIGHT, _PLOT, _FOOT = 42, 8, 160, 40
_ORDERED = re.compile(r"^\W*\d")  # "10–19", "≥ 200", "< 5"


def histogram_chart(histogram: Histogram) -> Markup | None:
    """Draw it; None where it has no bin or no table."""
    series = {
        name: [v if v is not None and math.isfinite(v) else 0.0 for v in histogram.series[name]]
        for name in in_order(histogram.series)
    }
    bins = [str(name) for name in histogram.bins]
    if not bins or not series:
        return None
    if all(map(_ORDERED.match, bins)):
        return _steps(histogram, bins, series)
    return _bars(histogram, bins, series)


def commonest(
    bins: Sequence[str], series: Mapping[str, list[float]]
) -> tuple[list[str], dict[str, list[float]]]:
    """Keep the bins with the greatest shares, in their order, and add up the others.

    >>> bins = [f"label {n}" for n in range(25)]
    >>> few, series = commonest(bins, {"twin": [0.04] * 25})
    >>> len(few), few[-1], round(series["twin"][-1], 2)
    (20, '6 others', 0.24)
    """
    if len(bins) <= MOST_BARS:
        return list(bins), dict(series)
    size = [max(shares[place] for shares in series.values()) for place in range(len(bins))]
    largest = sorted(range(len(bins)), key=lambda place: -size[place])[: MOST_BARS - 1]
    kept, rest = sorted(largest), sorted(set(range(len(bins))) - set(largest))
    return (
        [*(bins[place] for place in kept), f"{len(rest)} others"],
        {n: [*(s[p] for p in kept), sum(s[p] for p in rest)] for n, s in series.items()},
    )


def _describe(bins: Sequence[str], series: Mapping[str, list[float]]) -> str:
    return "; ".join(
        f"{name}: most in {bins[place]} ({number(shares[place])})"
        for name, shares in series.items()
        for place in [shares.index(max(shares))]
    )


def _highest(series: Mapping[str, list[float]]) -> float:
    return round_above(max(max(shares) for shares in series.values()) or 1.0)


def _steps(histogram: Histogram, bins: Sequence[str], series: Mapping[str, list[float]]) -> Markup:
    looks = styles(series)
    key, top = line_legend(looks, marked=False)
    top += 26
    foot = top + _PLOT
    up = Scale(0, _highest(series), foot, top)
    across = Scale(0, len(bins), _LEFT, WIDTH - _RIGHT)
    parts = [*key, *_step_frame(histogram.x, bins, across, up)]
    for name, shares in series.items():
        parts.append(_outline(shares, looks[name], across, up))
    return drawing(foot + _FOOT, histogram.name, _describe(bins, series), *parts)


def _outline(shares: list[float], look: Style, across: Scale, up: Scale) -> Markup:
    path = f"M{across(0):.1f} {up.start:.1f}" + "".join(
        f"V{up(share):.1f}H{across(place + 1):.1f}" for place, share in enumerate(shares)
    )
    band = tag("path", d=f"{path}V{up.start:.1f}Z", class_=f"band {look.name}")
    return band + look.line(f"{path}V{up.start:.1f}")


def _step_frame(x: str, bins: Sequence[str], across: Scale, up: Scale) -> Iterator[Markup]:
    for tick in up.ticks(4):
        yield line(across.start, up(tick), across.end, up(tick), "grid")
        yield text(short(tick), across.start - 6, up(tick) + 4, "tick", "end")
    yield line(across.start, up.start, across.end, up.start, "axis")
    wide = max(map(len, bins)) * 6 + 10
    every = max(1, math.ceil(wide * len(bins) / (across.end - across.start)))
    for place in range(0, len(bins), every):
        label = shortened(bins[place], across.end - across.start)
        at, anchor = across(place + 0.5), "middle"
        if at + 3 * len(label) > across.end:  # the last one
            at, anchor = across.end, "end"
        yield text(label, at, up.start + 16, "tick", anchor)
    yield text("share of rows", 0, up.end - 10, "name")
    yield text(shortened(x, WIDTH - _LEFT), across.end, up.start + 34, "name", "end")


def _bars(histogram: Histogram, bins: Sequence[str], series: Mapping[str, list[float]]) -> Markup:
    bins, series = commonest(bins, series)
    looks = styles(series)
    key, y = bar_legend(looks)
    across = Scale(0, _highest(series), 1, WIDTH - 44)
    parts = list(key)
    for place, name in enumerate(bins):
        parts.append(text(shortened(name, WIDTH - 50), 0, y + 11, "label"))
        y += 16
        for table, shares in series.items():
            width = max(across(shares[place]) - 1, 0.5)
            parts.append(looks[table].bar(table, 1, y, width, 7))
            parts.append(text(number(shares[place]), width + 6, y + 7.5, "tick"))
            y += 11
        y += 6
    return drawing(y, histogram.name, _describe(bins, series), *parts)
