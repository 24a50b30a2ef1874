"""Columns of which few cells are Python objects at once: texts, labels, rows of numbers.

Knows nothing of what cells mean. A file is as private as what was written.
"""

from __future__ import annotations

import mmap
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import pandas as pd

from twinset.data.memory_map import let_go
from twinset.data.schema import Combination

AT_ONCE = 10_000  # cells
ROWS_AT_ONCE = 1000  # of numbers
VALUES, ENDS = "values.bin", "ends.npy"

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


class LazySequence(Sequence[Cell]):
    """Cells that are made when they are asked for."""

    @abstractmethod
    def cell(self, index: int) -> Cell:
        """Return one of them."""

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> list[Cell]: ...
    def __getitem__(self, index: int | slice) -> Cell | list[Cell]:
        if isinstance(index, slice):
            return [self.cell(i) for i in range(*index.indices(len(self)))]
        return self.cell(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Texts(LazySequence[str]):
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

    def cell(self, index: int) -> str:
        """Return one text."""
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


class Labels(LazySequence[Combination]):
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
        for start in range(0, len(self), AT_ONCE):
            for number in self.numbers[start : start + AT_ONCE].tolist():
                yield self.known[number]

    def cell(self, index: int) -> Combination:
        """Return one record's combination."""
        return self.known[self.numbers[index]]


class Ragged(LazySequence[list[int]]):
    """Rows of whole numbers.

    Args:
        values: (M,) all rows, one after the other.
        ends: (N,) int64, where in `values` each row ends.
    """

    def __init__(self, values: np.ndarray, ends: np.ndarray) -> None:
        self._values, self._ends, self._seen = values, ends, 0

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], dtype: Any, folder: Path | None = None) -> Ragged:
        """Take rows in, some at a time.

        Args:
            rows: whole numbers.
            dtype: that holds each of them.
            folder: where they are written to and looked at from then on; None: in memory.
        """
        parts, lengths, source = [], list[np.ndarray](), iter(rows)
        raw = None if folder is None else open(folder / "values.part", "wb")
        while some := list(islice(source, ROWS_AT_ONCE)):
            lengths.append(np.fromiter(map(len, some), np.int64, len(some)))
            flat = np.fromiter(chain.from_iterable(some), dtype, int(lengths[-1].sum()))
            parts.append(flat) if raw is None else flat.tofile(raw)
        ends = np.concatenate([np.zeros(0, np.int64), *lengths]).cumsum()
        if raw is None or folder is None:
            return cls(np.concatenate([np.zeros(0, dtype), *parts]), ends)
        raw.close()
        np.save(folder / ENDS, ends)
        (folder / "values.part").rename(folder / VALUES)
        return cls.open(folder, dtype)

    @classmethod
    def open(cls, folder: Path, dtype: Any) -> Ragged:
        """Look at rows that `of` wrote."""
        ends = np.load(folder / ENDS, mmap_mode="r")
        empty = not len(ends) or not ends[-1]
        values = np.zeros(0, dtype) if empty else np.memmap(folder / VALUES, dtype, "r")
        return cls(values, ends)

    def __len__(self) -> int:
        return len(self._ends)

    def cell(self, index: int) -> list[int]:
        """Return one row."""
        self._seen += 1
        if self._seen % ROWS_AT_ONCE == 0:
            self._let_go()
        row = range(len(self))[index]
        start = self._ends[row - 1] if row else 0
        found: list[int] = self._values[start : self._ends[row]].tolist()
        return found

    def _let_go(self) -> None:
        """Give back the memory of pages that were looked at; the system may read them again."""
        for array in (self._values, self._ends):
            if isinstance(array, np.memmap):
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


class Picked(LazySequence[list[int]]):
    """Some rows of many.

    Args:
        rows: all of them.
        places: those that are meant.
    """

    def __init__(self, rows: Sequence[list[int]], places: Sequence[int]) -> None:
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._places)

    def cell(self, index: int) -> list[int]:
        """Return one row."""
        return self._rows[self._places[index]]
