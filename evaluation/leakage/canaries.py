"""Canaries: made-up records planted among real ones, to see what training remembers.

There are two kinds. Secrets are drawn from a known space (Carlini et al. 2019, "The Secret Sharer:
Evaluating and Testing Unintended Memorization in Neural Networks") and are ranked among all that
they could have been. Coins' canaries are records of their own that a coin puts in or leaves out:
the table's own beginning of a sentence, which a twin's prompt leads to, and an end that no one
would write (Meeus et al. 2025, "The Canary's Echo", section 4). Knows nothing of models.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twinset.table.schema import Combination, LabelValue

COPIES = (1, 10)
EACH = 5  # canaries of every number of copies
PREFIX_WORDS, SUFFIX_TOKENS = 8, 12  # of a coin's canary


@dataclass(frozen=True)
class Format:
    """A sentence with one gap a field. A secret fills them.

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
# A space of a thousand too, so that names and numbers can be averaged.
_NAME = tuple(tuple(_STATED[which].split()) for which in ("first_names", "last_names"))
MORE_FORMATS = tuple(
    Format(sentence, _NAME if sentence.count("{}") == 2 else _NUMBER)
    for sentence in (*_STATED["sentences"], *_STATED["more_sentences"])
)
"""All sentences, for audits that plant many."""
FORMATS = MORE_FORMATS[: len(_STATED["sentences"])]


def numbered_formats(digits: int) -> tuple[Format, ...]:
    """Return those sentences that hold any number, with numbers of so many digits.

    >>> [f.text(7) for f in numbered_formats(6) if "ID" in f.pattern]
    ['My ID is 000007']
    """
    free = (f.pattern for f in MORE_FORMATS if f.fields == _NUMBER and "020" not in f.pattern)
    return tuple(
        Format(p.replace("{}", "{}" * digits), (tuple("0123456789"),) * digits) for p in free
    )


def draw_canaries(
    combinations: Sequence[Combination],
    seed: int,
    copies: Sequence[int] = COPIES,
    each: int = EACH,
    formats: Sequence[Format] = FORMATS,
) -> list[Canary]:
    """Draw secrets, labels, and which sentence is planted how often, by the seed alone.

    Args:
        combinations: label combinations that canaries may have.
        seed: of the draw.
        copies: how often canaries are planted.
        each: canaries of every number of copies.
        formats: the sentences, each of which is for one canary.

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
    """Return the table with every canary's copies appended. Dtypes stay, other columns go."""
    planted = [canary for canary in canaries for _ in range(canary.copies)]
    cells: dict[str, list[LabelValue]] = {text: [canary.text for canary in planted]}
    cells |= {name: [c.label[place] for c in planted] for place, name in enumerate(attributes)}
    rows = pd.DataFrame({n: pd.Series(v, dtype=frame[n].dtype) for n, v in cells.items()})
    return pd.concat([frame[list(cells)], rows], ignore_index=True)


def write_coin_canaries(openings: Sequence[str], tokenizer: Any, many: int, seed: int) -> list[str]:
    """Return distinct texts, each to be a record of its own.

    Args:
        openings: texts whose first words begin the canaries. They must be public.
        tokenizer: words of it end them: of at least four letters, and one token each.
        many: how many.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    decoded = (tokenizer.decode([token]).strip() for token in range(len(tokenizer)))
    known = {word for word in decoded if word.isascii() and word.isalpha() and len(word) > 3}
    words = np.array(sorted(known))
    found = []
    for number in range(many):
        opening = openings[number % len(openings)].split()[:PREFIX_WORDS]
        found.append(" ".join([*opening, *rng.choice(words, SUFFIX_TOKENS)]))
    return found
