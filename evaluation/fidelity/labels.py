"""How often each label occurs. Rows without the label are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from evaluation.fidelity.jackknife import jackknife, leaving_out
from evaluation.findings import Histogram, Score
from twinset.table.labels import label_cells

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def label_values(column: Series) -> list[str]:
    """Return the labels of the rows that have one, written as strings."""
    cells = label_cells(column, f"column {str(column.name)!r}")
    return [str(cell) for cell in cells if cell is not None]


def label_histogram(tables: Mapping[str, DataFrame], attribute: str) -> Histogram:
    """Return the share of each label in each table; labels are in the order of their names."""
    found = {name: label_values(frame[attribute]) for name, frame in tables.items()}
    bins = sorted(set().union(*found.values()), key=_by_number)
    counted = {name: Counter(labels) for name, labels in found.items()}
    series = {
        name: [often[label] / max(1, often.total()) for label in bins]
        for name, often in counted.items()
    }
    return Histogram("fidelity", f"labels: {attribute}", attribute, bins, series)


def label_distance(labels: list[str], train: list[str]) -> Score:
    """Return the total variation distance of label shares: 0 where they agree, 1 if all differ.

    Rows are in random order. The interval is the jackknife's, over rows of both tables.

    >>> label_distance(["a", "a", "a", "b"], ["a", "a", "b", "b"]).value
    0.25
    """
    places = {label: place for place, label in enumerate(sorted({*labels, *train}))}
    ours, real = (np.array([places[label] for label in table]) for table in (labels, train))

    def distance(ours: np.ndarray, real: np.ndarray) -> float:
        shares = (np.bincount(ids, minlength=len(places)) / len(ids) for ids in (ours, real))
        return float(np.abs(np.subtract(*shares)).sum() / 2)

    kept = zip(leaving_out(len(ours)), leaving_out(len(real)), strict=False)
    without = [distance(ours[a], real[b]) for a, b in kept]
    return jackknife(
        "total variation distance of labels",
        distance(ours, real),
        without,
        "minimise",
        0.0,
        1.0,
        min(len(ours), len(real)),
    )


def _by_number(label: str) -> tuple[float, str]:
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label
