"""Which colour, dash and marker belong to which rows; the same on every figure of the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle

from markupsafe import Markup

from evaluation.fidelity.measures import SECOND, TRAIN
from evaluation.private_table import (
    BASELINE,
    NON_PRIVATE,
    PRIVATE_CLASSIFIER,
    REAL,
    REAL_SMALL,
    TWIN,
    TWIN_SMALL,
)
from evaluation.report.charts.svg import tag

HELD_OUT, TRAIN_SAMPLE = "held-out", "train, as many rows as held-out"

# In the order in which they are listed. What is compared most stands next to each other.
ROWS = {
    REAL: 1,
    TRAIN: 1,
    "train only": 1,
    TRAIN_SAMPLE: 1,
    SECOND: 5,
    HELD_OUT: 5,
    "held-out only": 5,
    REAL_SMALL: 5,
    PRIVATE_CLASSIFIER: 4,
    NON_PRIVATE: 3,
    TWIN: 0,
    TWIN_SMALL: 0,
    BASELINE: 2,
}
_COLOURS = 6
_DASHES = ("", "5 3", "1.5 2.5", "8 3 1.5 3")


@dataclass(frozen=True)
class Style:
    """A series' looks: colour by class, dash by pattern, marker by shape."""

    colour: int
    order: int

    @property
    def name(self) -> str:
        """The class that sets the colour."""
        return f"c{self.colour}"

    @property
    def dash(self) -> str:
        """The pattern of its lines."""
        return _DASHES[(self.order + self.order // len(_DASHES)) % len(_DASHES)]

    def marker(self, x: float, y: float) -> Markup:
        """Draw its marker."""
        path = f"M{x:.1f} {y:.1f}{_MARKERS[self.order % len(_MARKERS)]}"
        return tag("path", d=path, class_=f"mark {self.name}")

    def line(self, path: str) -> Markup:
        """Draw a line of its own along a path."""
        dash = self.dash or "none"
        return tag("path", d=path, class_=f"line {self.name}", stroke_dasharray=dash)

    def bar(self, name: str, x: float, y: float, width: float, height: float) -> Markup:
        """Draw a bar; that of the twin stands out."""
        shown = f"bar {self.name}{strong(name)}"
        return tag("rect", class_=shown, x=x, y=y, width=width, height=height)


PLAIN = Style(1, 0)  # where rows are told apart by their names alone
_MARKERS = (
    "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",  # disc
    "m-2.9 -2.9h5.8v5.8h-5.8z",  # square
    "m0 -3.9l3.7 6.6h-7.4z",  # triangle
    "m0 -4.1l4.1 4.1l-4.1 4.1l-4.1 -4.1z",  # diamond
    "m0 3.9l3.7 -6.6h-7.4z",  # triangle upside down
    "m-1.3 -4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",  # cross
)


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the looks of series by name: known rows keep their colour, others take what is free.

    >>> [style.name for style in styles(["twin, tfidf", "uniform", "none"]).values()]
    ['c0', 'c1', 'c2']
    """
    known = {name: ROWS.get(name, ROWS.get(name.partition(", ")[0])) for name in names}
    free = cycle([c for c in range(_COLOURS) if c not in known.values()] or range(_COLOURS))
    return {
        name: Style(next(free) if colour is None else colour, order)
        for order, (name, colour) in enumerate(known.items())
    }


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which rows are listed; unknown ones last, as they came."""
    known = list(ROWS)
    listed = list(dict.fromkeys(names))
    return sorted(listed, key=lambda n: known.index(n) if n in ROWS else len(known))


def strong(name: str) -> str:
    """Return the class by which the twin, which the page is about, stands out without colour."""
    return " strong" if name == TWIN else ""
