"""A column's cells, of which few are Python objects at once. Knows nothing of what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar, overload

import numpy as np
import pandas as pd

from twinset.mapped import let_go

AT_ONCE = 10_000

Cell = TypeVar("Cell")


def blocks(column: pd.Series) -> Iterator[pd.Series]:
    """Yield a column in pieces, and let go of what lies on the disk after each."""
    for start in range(0, len(column), AT_ONCE):
        yield column.iloc[start : start + AT_ONCE]
        let_go()


def some_at_once(cells: Iterable[Cell], length: int = AT_ONCE) -> Iterator[list[Cell]]:
    """Yield all cells, in lists of a fixed length but for the last."""
    source = iter(cells)
    while some := list(islice(source, length)):
        yield some


class Texts(Sequence[str]):
    """Some cells of a column, all of them texts.

    Args:
        column: of a table, in memory or on the disk.
        rows: rising numbers of those that are meant, from 0; None: all.
    """

    def __init__(self, column: pd.Series, rows: np.ndarray | None = None) -> None:
        self._column = column
        self._rows = range(len(column)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(cells for _, cells in self._blocks())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        found: str = self._column.iat[int(self._rows[index])]
        return found

    @property
    def rows(self) -> np.ndarray:
        """Their rows in the table, from 0."""
        return np.asarray(self._rows)

    def rows_where(self, holds: Callable[[str], bool]) -> list[int]:
        """Return the table's rows, from 0, of texts of which something holds.

        Args:
            holds: true of what contains a text of which it is true; so a block is asked first.
        """
        return [
            row
            for rows, cells in self._blocks()
            if holds(" ".join(cells))
            for row, cell in zip(rows, cells, strict=True)
            if holds(cell)
        ]

    def repeats(self) -> int:
        """Return how many texts occurred before: by 64 bits of each, so one in 10⁷ tables errs."""
        found = np.fromiter(map(hash, self), np.int64, len(self))
        found.sort()
        return int((found[1:] == found[:-1]).sum())

    def _blocks(self) -> Iterator[tuple[Sequence[int], list[str]]]:
        for start in range(0, len(self), AT_ONCE):
            rows: Any = self._rows[start : start + AT_ONCE]
            first = rows[0]
            cells = self._column.iloc[first : rows[-1] + 1].tolist()
            yield rows, cells if len(cells) == len(rows) else [cells[row - first] for row in rows]
            let_go()
