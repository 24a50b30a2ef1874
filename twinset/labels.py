"""Label combinations of many records, a number each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from twinset.schema import Combination

_AT_ONCE = 10_000


class Labels(Sequence[Combination]):
    """Label combinations by their numbers.

    Args:
        numbers: (N,) which of `known` each record has.
        known: all combinations.
    """

    def __init__(self, numbers: np.ndarray, known: Sequence[Combination]) -> None:
        self.numbers, self.known = numbers, list(known)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Combination]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> Combination: ...
    @overload
    def __getitem__(self, index: slice) -> list[Combination]: ...
    def __getitem__(self, index: int | slice) -> Combination | list[Combination]:
        if isinstance(index, slice):
            return [self.known[number] for number in self.numbers[index].tolist()]
        return self.known[self.numbers[index]]
