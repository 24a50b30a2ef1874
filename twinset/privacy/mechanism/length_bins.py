"""Which of a few bins the length of a text lies in: what is counted of lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SHORTEST, BINS = 4, 14  # tokens at which the second bin begins; bins of texts that end


@dataclass(frozen=True)
class LengthBins:
    """Bins of about equal ratio, and one of texts that go on past the longest.

    Args:
        longest: tokens that are kept of a text; public.
        end: id of the token that a text ends with which was kept whole.
    """

    longest: int
    end: int

    @cached_property
    def edges(self) -> np.ndarray:
        """(B,) least length of each bin; the last bin is of texts that do not end.

        >>> LengthBins(64, end=0).edges.tolist()
        [1, 4, 5, 6, 8, 9, 12, 14, 18, 22, 27, 34, 42, 52, 64]
        """
        ends = np.geomspace(min(SHORTEST, self.longest), self.longest, BINS)
        return np.unique([1, *ends.round().astype(np.int64)])

    def __len__(self) -> int:
        return len(self.edges)

    def of(self, ids: Sequence[int]) -> int:
        """Return the number of the bin that a text lies in.

        >>> bins = LengthBins(64, end=0)
        >>> [bins.of(text) for text in ([0], [7] * 12 + [0], [7] * 64)]
        [0, 6, 14]
        """
        ends = len(ids) > 0 and ids[-1] == self.end
        if not ends:
            return len(self) - 1
        last_whole = max(0, len(self) - 2)
        return min(last_whole, int(np.searchsorted(self.edges, max(1, len(ids) - 1), "right")) - 1)

    @cached_property
    def means(self) -> np.ndarray:
        """(B,) mean length of each bin, as `draw` returns them.

        >>> LengthBins(64, end=0).means[[0, 1, -1]].tolist()
        [2.0, 4.0, 64.0]
        """
        return np.append((self.edges[:-1] + self.edges[1:] - 1) / 2, float(self.longest))

    def draw(self, number: int, rng: np.random.Generator) -> int:
        """Return a length of a bin; `longest` of the last."""
        if number == len(self) - 1:
            return self.longest
        return int(rng.integers(self.edges[number], self.edges[number + 1]))
