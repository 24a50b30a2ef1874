"""Texts as words and n-grams. A row is taken for a list of words; nothing here knows of tables.

A word is a run of letters and digits, an apostrophe inside it included, in lower case. Scripts that
put no space between words give long ones: rows are still comparable, numbers are not those of
other tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

_WORD = re.compile(r"\w+(?:['’]\w+)*")

Row = Sequence[str]  # its words


def words(text: str) -> list[str]:
    """Return the words of a text.

    >>> words("It's fine - a 2nd look!")
    ["it's", 'fine', 'a', '2nd', 'look']
    """
    return _WORD.findall(text.casefold())


@dataclass(frozen=True)
class Grams:
    """All n-grams of some rows, in their order.

    Args:
        types: (T,) number of each n-gram; the same n-gram has the same number.
        rows: (T,) number of the row it stands in.
        size: more than the largest number of a type.
    """

    types: np.ndarray
    rows: np.ndarray
    size: int

    def count(self, chosen: np.ndarray | None = None) -> np.ndarray:
        """Return how often each type occurs (size,): anywhere, or where `chosen` (T,) is true."""
        types = self.types if chosen is None else self.types[chosen]
        return np.bincount(types, minlength=self.size)


def numbering(*tables: Sequence[Row]) -> dict[str, int]:
    """Return a number for each word of the tables."""
    seen = dict.fromkeys(word for table in tables for row in table for word in row)
    return {word: number for number, word in enumerate(seen)}


def ngrams(rows: Sequence[Row], longest: int, numbers: Mapping[str, int]) -> Iterator[Grams]:
    """Yield the 1-grams, 2-grams … of the rows; none reaches from one row into the next.

    >>> [grams.types.tolist() for grams in ngrams([["a", "b", "a", "b"]], 2, {"a": 0, "b": 1})]
    [[0, 1, 0, 1], [0, 1, 0]]
    """
    heads = np.fromiter((numbers[word] for word in chain(*rows)), np.int64)  # of n-grams so far
    flat, size = heads, len(numbers)
    row = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    for n in range(1, longest + 1):
        if n > 1:
            codes = heads[: len(flat) - n + 1] * len(numbers) + flat[n - 1 :]
            known, heads = np.unique(codes, return_inverse=True)
            size = len(known)
        within = row[: len(heads)] == row[n - 1 :]
        yield Grams(heads[within], row[: len(heads)][within], size)
