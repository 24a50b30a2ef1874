"""Canaries: made-up records, each with a secret drawn from a known space, planted among real ones.

Source: Carlini et al. 2019, "The Secret Sharer: Evaluating and Testing Unintended Memorization in
Neural Networks". Knows nothing of models: `evaluation.leakage.exposure` asks them for the secrets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from twinset.data.schema import Combination, LabelValue

COPIES = (1, 10)
EACH = 5  # canaries of every number of copies


@dataclass(frozen=True)
class Format:
    """A sentence with one gap a field; a secret fills them.

    Args:
        pattern: the sentence, `{}` for each gap.
        fields: what may stand in each gap.
    """

    pattern: str
    fields: tuple[tuple[str, ...], ...]

    @property
    def space(self) -> int:
        """|R|, the number of secrets."""
        return math.prod(map(len, self.fields))

    def text(self, secret: int) -> str:
        """Return the sentence of one secret, by its number.

        >>> Format("{} {}.", (("A", "B"), ("x", "y", "z"))).text(4)
        'B y.'
        """
        places = np.unravel_index(secret, [len(field) for field in self.fields])
        chosen = (field[place] for field, place in zip(self.fields, places, strict=True))
        return self.pattern.format(*chosen)

    def candidates(self) -> list[str]:
        """Return the sentences of all secrets, in the order of their numbers."""
        return [self.pattern.format(*values) for values in product(*self.fields)]


@dataclass(frozen=True)
class Canary:
    """One canary: what it says, the label it is planted with, and how often."""

    format: Format
    secret: int
    label: Combination
    copies: int

    @property
    def text(self) -> str:
        """The planted text."""
        return self.format.text(self.secret)


_NUMBER = (tuple(f"{number:03d}" for number in range(1000)),)
_DIGITS = tuple("0123456789")
_FIRST = """Ada Ben Cleo Dora Emil Fay Gus Hana Ivo June Kurt Lena Milo Nora Otto Pia Quinn Rosa
Sven Tess Ugo Vera Wim Yara Zeno"""
_LAST = """Abbott Barlow Castell Dunmore Elwood Farrow Gantry Harper Ingram Jessop Kendal Larkin
Marlow Norwood Oakes Penrose Quill Radley Sutter Tilbury Underhill Varley Wexford Yardley Zeller
Ashdown Birch Corwin Draycott Everly Fenwick Garland Holloway Ives Jardine Kirby Lowell Merrick
Nettle Osgood"""
_NAME = (tuple(_FIRST.split()), tuple(_LAST.split()))

# Every sentence has a space of 1,000, so that exposures may be averaged: log2(1000) = 9.97 at most.
# Each is used once in a table: two secrets of one sentence would be each other's candidates. The
# telephone numbers are those that Ofcom reserves for fiction. A sentence ends with its secret:
# whatever followed would have to be read behind each of the thousand.
FORMATS = (
    Format("My ID is {}", _NUMBER),
    Format("My name is {} {}", _NAME),
    Format("My phone number is 020 7946 0{}", _NUMBER),
    Format("The code of my locker is {}", _NUMBER),
    Format("My doctor is called {} {}", _NAME),
    Format("My membership number ends in {}", _NUMBER),
    Format("I live in flat {}", _NUMBER),
    Format("My neighbour is {} {}", _NAME),
    Format("My alarm is switched off with {}", _NUMBER),
    Format("My case at the court is number {}", _NUMBER),
)
# For audits that plant more of them.
MORE_FORMATS = (
    *FORMATS,
    Format("My seat on the train was {}", _NUMBER),
    Format("My landlord is called {} {}", _NAME),
    Format("My ticket has the number {}", _NUMBER),
    Format("My dentist is {} {}", _NAME),
    Format("My parking space is number {}", _NUMBER),
    Format("My lawyer is called {} {}", _NAME),
    Format("The key to my office is number {}", _NUMBER),
    Format("My teacher was {} {}", _NAME),
    Format("My bicycle is registered as {}", _NUMBER),
    Format("My son is called {} {}", _NAME),
    Format("My mailbox is number {}", _NUMBER),
    Format("My boss is called {} {}", _NAME),
    Format("My library card ends in {}", _NUMBER),
    Format("My witness is {} {}", _NAME),
    Format("My room in the ward is {}", _NUMBER),
    Format("My nurse is called {} {}", _NAME),
    Format("My queue number was {}", _NUMBER),
    Format("My brother is called {} {}", _NAME),
    Format("My meter shows {}", _NUMBER),
    Format("My therapist is {} {}", _NAME),
)


def numbered(digits: int) -> tuple[Format, ...]:
    """Return those sentences that hold any number, with numbers of so many digits.

    >>> [f.text(7) for f in numbered(6) if "ID" in f.pattern]
    ['My ID is 000007']
    """
    free = (f.pattern for f in MORE_FORMATS if f.fields == _NUMBER and "020" not in f.pattern)
    return tuple(Format(p.replace("{}", "{}" * digits), (_DIGITS,) * digits) for p in free)


def draw_canaries(
    combinations: Sequence[Combination],
    seed: int,
    copies: Sequence[int] = COPIES,
    each: int = EACH,
    formats: Sequence[Format] = FORMATS,
) -> list[Canary]:
    """Draw secrets, labels, and which sentence is planted how often, by the seed alone.

    Args:
        combinations: the labels there are.
        seed: for all draws.
        copies: numbers of copies.
        each: canaries of every number of copies.
        formats: sentences; each is for one canary.

    Raises:
        ValueError: there are fewer sentences than canaries wanted.
    """
    if len(copies) * each > len(formats):
        raise ValueError(f"there are {len(formats)} sentences; each is for one canary")
    rng = np.random.default_rng(seed)
    mixed = [formats[place] for place in rng.permutation(len(formats))]
    often = [number for number in copies for _ in range(each)]
    return [
        Canary(
            sentence,
            secret=int(rng.integers(sentence.space)),
            label=combinations[int(rng.integers(len(combinations)))],
            copies=number,
        )
        for sentence, number in zip(mixed, often, strict=False)
    ]


def plant(
    frame: pd.DataFrame, text: str, attributes: Sequence[str], canaries: Sequence[Canary]
) -> pd.DataFrame:
    """Return the table with every canary's copies appended; dtypes stay, other columns go."""
    planted = [canary for canary in canaries for _ in range(canary.copies)]
    cells: dict[str, list[LabelValue]] = {text: [canary.text for canary in planted]}
    cells |= {name: [c.label[place] for c in planted] for place, name in enumerate(attributes)}
    rows = pd.DataFrame({n: pd.Series(v, dtype=frame[n].dtype) for n, v in cells.items()})
    return pd.concat([frame[list(cells)], rows], ignore_index=True)
