"""Rows of numbers of different lengths, end to end in one array, in memory or mapped from a file.

Knows nothing of what the numbers mean. A file is as private as what was written.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, overload

import numpy as np

VALUES, ENDS = "values.bin", "ends.npy"
ROWS_AT_ONCE = 1000


class Ragged(Sequence[list[int]]):
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

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
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


class Picked(Sequence[list[int]]):
    """Some rows of many.

    Args:
        rows: all of them.
        places: those that are meant.
    """

    def __init__(self, rows: Sequence[list[int]], places: Sequence[int]) -> None:
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self._rows[place] for place in self._places[index]]
        return self._rows[self._places[index]]
