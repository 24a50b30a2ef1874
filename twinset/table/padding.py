"""Padded lengths: how far a row is padded, and batches of rows that are padded alike.

It is a function of the row alone. Were rows padded to the longest of their batch, a row more
would change how its neighbours are rounded. There are few padded lengths, four between a length
and its double, because a batch is filled up for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

_SHORTEST_STEP = 16  # tokens


def padded(length: int, longest: int) -> int:
    """Round a length up to a whole number of steps, but not beyond what the model reads.

    >>> padded(3, 100), padded(16, 100), padded(97, 100), padded(130, 500), padded(300, 500)
    (16, 16, 100, 160, 320)
    """
    step = max(_SHORTEST_STEP, 1 << max(0, (length - 1).bit_length() - 3))
    return min(-(-length // step) * step, longest)


def padded_lengths(most: int, longest: int) -> list[int]:
    """Return all padded lengths of rows of up to `most` tokens, where a model reads `longest`.

    >>> padded_lengths(170, 180)
    [16, 32, 48, 64, 80, 96, 112, 128, 160, 180]
    """
    return sorted({padded(length, longest) for length in range(1, most + 1)})


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
