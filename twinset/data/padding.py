"""Padded lengths: how far a row is padded, and batches of rows that are padded alike.

It is a function of the row alone. Were rows padded to the longest of their batch, a row more
would change how its neighbours are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

_STEP = 16  # tokens


def padded(length: int, longest: int) -> int:
    """Round a length up to a whole number of steps, but not beyond what the model reads.

    >>> padded(3, 100), padded(16, 100), padded(97, 100)
    (16, 16, 100)
    """
    return min(-(-length // _STEP) * _STEP, longest)


def batches_of_one_length(
    rows: Iterable[int], length: Callable[[int], Any], at_once: Callable[[Any], int]
) -> Iterator[tuple[Any, list[int]]]:
    """Yield lengths, short ones first, with at most `at_once(length)` rows of that length.

    A length may be anything that can be ordered, and that rows must have in common.

    >>> list(batches_of_one_length(range(5), lambda row: 16 + row % 2 * 16, lambda length: 2))
    [(16, [0, 2]), (16, [4]), (32, [1, 3])]
    """
    for common, same in groupby(sorted(rows, key=length), key=length):
        members = list(same)
        size = at_once(common)
        for start in range(0, len(members), size):
            yield common, members[start : start + size]
