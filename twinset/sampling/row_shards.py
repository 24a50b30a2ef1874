"""A twin's rows in groups that are drawn by themselves: what is drawn already is drawn no more.

Each group has random numbers of its own, so that the rows are the same, up to rounding, whether a
run was stopped or not, and whoever draws which group. Knows numbers of rows, and no row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from twinset.progress import Progress
from twinset.sampling.sampler import RowGroups, Sampler
from twinset.table.schema import Combination

GROUP_ROWS = 2048  # at most
LEAST_ROWS, LEAST_GROUPS = 512, 8  # so many groups, where they have so many rows each


def groups_of(
    counts: Mapping[Combination, int],
) -> Iterator[dict[Combination, int]]:
    """Yield how many rows of each combination a group has; all have about as many.

    >>> list(groups_of({("bad",): 1000, ("good",): 50}))
    [{('bad',): 525}, {('bad',): 475, ('good',): 50}]
    """
    each = [combination for combination, count in counts.items() for _ in range(count)]
    groups = number_of_groups(len(each))
    edges = [len(each) * number // groups for number in range(groups + 1)] if groups else []
    for start, end in pairwise(edges):
        yield dict(Counter(each[start:end]))


def number_of_groups(rows: int) -> int:
    """Return how many groups so many rows are in: a few for each process, where they are many.

    >>> [number_of_groups(rows) for rows in (0, 1, 1000, 1100, 3000, 6000, 20_000)]
    [0, 1, 1, 2, 5, 8, 10]
    """
    shared = min(LEAST_GROUPS, rows // LEAST_ROWS)
    return max(-(-rows // GROUP_ROWS), shared, int(rows > 0))


def missing_groups(counts: Mapping[Combination, int], kept: RowGroups) -> list[int]:
    """Return the numbers of the groups that are not kept yet."""
    return [n for n in range(number_of_groups(sum(counts.values()))) if n not in kept]


def draw_groups(
    sampler: Callable[[int], Sampler],
    counts: Mapping[Combination, int],
    progress: Progress,
    kept: RowGroups,
    numbers: Sequence[int] | None = None,
) -> int:
    """Draw the groups that are not kept, and keep them.

    Args:
        sampler: of a stream of random numbers; that of a group has its number.
        counts: rows wanted, exactly `counts[c]` of each combination c.
        progress: is notified of how many there are.
        kept: finished groups.
        numbers: of the groups that are drawn here, while others draw the rest; None: all.

    Returns:
        How many groups the rows are in, whoever draws them.
    """
    groups = list(groups_of(counts))
    own, before = range(len(groups)) if numbers is None else numbers, 0
    sizes = [sum(group.values()) for group in groups]
    here = sum(sizes[number] for number in own)
    for number in own:
        if number not in kept:
            part = _Part(progress, before, sizes[number], here, sum(sizes))
            kept.draw(number, sampler(number), groups[number], part.report)
        before += sizes[number]
    return len(groups)


@dataclass(frozen=True)
class _Part:
    """A group among all rows.

    Args:
        progress: is notified.
        before: rows of this process before the group.
        rows: of the group.
        here: rows that this process draws.
        of_all: rows, whoever draws them.
    """

    progress: Progress
    before: int
    rows: int
    here: int
    of_all: int

    def report(self, rows: int, share: float) -> None:
        """Report rows of the group, and the share of its tokens, as if others had come as far."""
        done = (self.before + rows) * self.of_all // self.here
        self.progress.count(
            "rows", done, self.of_all, (self.before + share * self.rows) / self.here
        )
