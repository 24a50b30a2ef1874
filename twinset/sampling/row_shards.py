"""A twin's rows in groups that are drawn by themselves: what is drawn already is drawn no more.

Each group has random numbers of its own, so that the rows are the same, up to rounding, whether a
run was stopped or not, and whoever draws which group. Knows numbers of rows, and no row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise

from twinset.data.schema import Combination
from twinset.models.threads import on_free_cores
from twinset.progress import Progress
from twinset.sampling.sampler import RowGroups, Sampler

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
    """Return how many groups so many rows are in: enough for processes to share them evenly.

    >>> [number_of_groups(rows) for rows in (0, 1, 1000, 1100, 3000, 6000, 20_000)]
    [0, 1, 1, 2, 5, 8, 10]
    """
    shared = min(LEAST_GROUPS, rows // LEAST_ROWS)
    return max(-(-rows // GROUP_ROWS), shared, int(rows > 0))


def draw_groups(
    sampler: Callable[[int], Sampler],
    counts: Mapping[Combination, int],
    progress: Progress,
    kept: RowGroups,
    rank: int = 0,
    size: int = 1,
) -> int:
    """Draw the groups that are not kept, and keep them; of several processes each every size-th.

    Args:
        sampler: of a stream of random numbers; that of a group has its number.
        counts: rows wanted, exactly `counts[c]` of each combination c.
        progress: is notified of how many there are.
        kept: finished groups.
        rank: of this process.
        size: how many processes there are.

    Returns:
        How many groups the rows are in, whoever draws them.
    """
    groups = list(enumerate(groups_of(counts)))
    own, before = groups[rank::size], 0
    total, of_all = (sum(sum(group.values()) for _, group in some) for some in (own, groups))
    for number, group in own:
        if number not in kept:
            done = partial(_report, progress, before, sum(group.values()), total, of_all)
            with on_free_cores(progress.say):
                kept.draw(number, sampler(number), group, done)
        before += sum(group.values())
    return len(groups)


def _report(
    progress: Progress,
    before: int,
    of_group: int,
    total: int,
    of_all: int,
    rows: int,
    share: float,
) -> None:
    """Report rows as if other processes had come as far with theirs."""
    done = (before + rows) * of_all // total
    progress.count("rows", done, of_all, (before + share * of_group) / total)
