"""A twin's rows in groups that are drawn by themselves: what is drawn already is drawn no more.

Each group has random numbers of its own, so that the rows are the same whether a run was stopped or
not, and whoever draws which group. Holds rows of the twin only, nothing private.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from twinset.data.schema import Combination
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import write_json
from twinset.progress import Progress
from twinset.sampling.sampler import Row, Sampler

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


def sample_groups(
    sampler: Callable[[int], Sampler],
    counts: Mapping[Combination, int],
    progress: Progress,
    kept: RowGroups | None = None,
) -> list[Row]:
    """Return exactly `counts[c]` rows of each combination c; groups that are kept are not drawn.

    Args:
        sampler: of a stream of random numbers; that of a group has its number.
        counts: rows wanted.
        progress: is notified of how many there are.
        kept: finished groups.
    """
    groups = RowGroups() if kept is None else kept
    draw_groups(sampler, counts, progress, groups)
    numbers = range(len(list(groups_of(counts))))
    return [row for number in numbers for row in groups.read(number)]


def draw_groups(
    sampler: Callable[[int], Sampler],
    counts: Mapping[Combination, int],
    progress: Progress,
    kept: RowGroups,
    rank: int = 0,
    size: int = 1,
) -> None:
    """Draw the groups that are not kept, and keep them; of several processes each every size-th."""
    groups = list(enumerate(groups_of(counts)))[rank::size]
    total, before = sum(sum(group.values()) for _, group in groups), 0
    for number, group in groups:
        if number not in kept:
            done = partial(_report, progress, before, total)
            kept.write(number, sampler(number).sample(group, done))
        before += sum(group.values())


def _report(progress: Progress, before: int, total: int, rows: int) -> None:
    progress.count("rows", before + rows, total)


class RowGroups:
    """Finished groups.

    Args:
        folder: of a file for each, made with the first; None: in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[int, list[Row]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._held if self._folder is None else self._path(number).is_file()

    def read(self, number: int) -> list[Row]:
        """Return a finished group.

        Raises:
            InputError: its file is damaged.
        """
        if self._folder is None:
            return self._held[number]
        path = self._path(number)
        try:
            rows = json.loads(path.read_text("utf-8"))
            return [Row(tuple(combination), text) for combination, text in rows]
        except DAMAGED:
            raise InputError(f"{path.name}: is damaged; remove it, and it is drawn anew") from None

    def write(self, number: int, rows: list[Row]) -> None:
        """Keep a finished group."""
        if self._folder is None:
            self._held[number] = rows
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        plain = [[list(row.combination), row.text] for row in rows]
        write_json(self._path(number), plain)

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"rows-{number:06}.json"
