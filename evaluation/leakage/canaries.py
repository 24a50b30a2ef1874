"""Canaries: made-up records, each with a secret drawn from a known space, planted among real ones.

Source: Carlini et al. 2019, "The Secret Sharer: Evaluating and Testing Unintended Memorization in
Neural Networks". Knows nothing of models: `evaluation.leakage.exposure` asks them for the secrets.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from twinset.table.schema import Combination, LabelValue

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


_STATED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_NUMBER = (tuple(f"{number:03d}" for number in range(1000)),)
_DIGITS = tuple("0123456789")
_NAME = tuple(tuple(_STATED[which].split()) for which in ("first_names", "last_names"))


def _formats(sentences: Sequence[str]) -> tuple[Format, ...]:
    return tuple(Format(s, _NAME if s.count("{}") == 2 else _NUMBER) for s in sentences)


FORMATS = _formats(_STATED["sentences"])
MORE_FORMATS = (*FORMATS, *_formats(_STATED["more_sentences"]))  # for audits that plant more


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
