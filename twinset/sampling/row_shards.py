"""A twin's rows in groups that are drawn by themselves: what is drawn already is drawn no more.

Each group has random numbers of its own, so that the rows are the same, up to rounding, whether a
run was stopped or not, and whoever draws which group. Knows numbers of rows, and no row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from twinset.data.schema import Combination
from twinset.models.threads import on_free_cores
from twinset.progress import Progress
from twinset.sampling.sampler import RowGroups, Sampler

GROUP_ROWS = 2048


def groups_of(
    counts: Mapping[Combination, int],
) -> Iterator[dict[Combination, int]]:
    """Yield how many rows of each combination a group has, `GROUP_ROWS` together.

    >>> list(groups_of({("bad",): 3000, ("good",): 2}))
    [{('bad',): 2048}, {('bad',): 952, ('good',): 2}]
    """
    each = [combination for combination, count in counts.items() for _ in range(count)]
    for start in range(0, len(each), GROUP_ROWS):
        yield dict(Counter(each[start : start + GROUP_ROWS]))


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
    own = groups[rank::size]
    total, before = sum(sum(group.values()) for _, group in own), 0
    for number, group in own:
        if number not in kept:
            done = partial(_report, progress, before, sum(group.values()), total)
            with on_free_cores(progress.say):
                kept.draw(number, sampler(number), group, done)
        before += sum(group.values())
    return len(groups)


def _report(
    progress: Progress, before: int, of_group: int, total: int, rows: int, share: float
) -> None:
    progress.count("rows", before + rows, total, (before + share * of_group) / total)
