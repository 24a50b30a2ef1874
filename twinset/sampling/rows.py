"""A twin's rows in groups. They are *anytime*: whenever drawing stops, what is there is a twin.

Each group has the labels in the proportions of the whole, and random numbers of its own. So the
first groups are a smaller twin, a stopped run draws only what is missing, and it does not matter
which process draws a group. On a processor a group is computed by one thread: with several, sums
would be rounded differently, and now and then another token would be drawn.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any

import torch

from twinset.config import SamplingConfig
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import whole_file, write_json
from twinset.models.device import computing_with, gpus, is_cpu, memory_for_rows, total_memory
from twinset.models.layers import packed_bytes
from twinset.progress import Progress
from twinset.sampling.row_pool import RowPool, ends_in_time
from twinset.sampling.sampler import COUNTED, Row, Sampler
from twinset.table.schema import Combination

# Small groups, so that little is lost at a deadline and all processes have some. A GPU writes more
# rows at once, and each group ends with a few that are written alone.
GROUP_ROWS, GROUP_ROWS_GPU = 256, 1024
GOLDEN = 0.618034  # multiples of it, without their whole parts, are spread evenly
SPEED_ONLY = ("batch_size",)  # with other values of these, rows that were drawn may stay
USABLE = 0.8  # of this machine's memory
PROCESS_BYTES = 600 << 20  # of Python with its libraries, before a model is loaded
LOOKS = 0.2  # seconds between looks at workers, in which a signal waits
LOST = (
    "one of the processes that write rows ended before its time, perhaps out of memory; its rows "
    "are written by this one"
)


def number_of_groups(rows: int, device: torch.device) -> int:
    """Return how many groups a twin of so many rows has.

    >>> [number_of_groups(rows, torch.device("cpu")) for rows in (0, 1, 511, 512, 3000)]
    [0, 1, 1, 2, 11]
    """
    return max(rows // (GROUP_ROWS if is_cpu(device) else GROUP_ROWS_GPU), min(rows, 1))


def groups_of(
    counts: Mapping[Combination, int], device: torch.device
) -> list[dict[Combination, int]]:
    """Return how many rows of each label combination every group has.

    The first groups together have each label in its proportion, to within one row.

    Args:
        counts: rows of each combination in the whole twin.
        device: that rows are written on.

    >>> groups_of({("bad",): 500, ("good",): 20}, torch.device("cpu"))
    [{('bad',): 250, ('good',): 10}, {('bad',): 250, ('good',): 10}]
    """
    # Row k of n of a label has the place (k + offset) / n among all rows. With one offset for all
    # labels, those of a single row would be in one group.
    places = [
        ((k + label * GOLDEN % 1) / rows, label, combination)
        for label, (combination, rows) in enumerate(counts.items())
        for k in range(rows)
    ]
    ordered = [combination for *_, combination in sorted(places, key=lambda place: place[:2])]
    number = number_of_groups(len(ordered), device)
    edges = [len(ordered) * i // number for i in range(number + 1)] if number else []
    groups = [Counter(ordered[start:end]) for start, end in pairwise(edges)]
    return [{c: group[c] for c in counts if group[c]} for group in groups]


class RowGroups:
    """The groups of rows that are finished.

    Args:
        folder: of a file for each, made with the first; None: they are in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[int, list[Row]] = {}

    @property
    def numbers(self) -> list[int]:
        """The numbers of the finished groups, in order."""
        if self._folder is None:
            return sorted(self._held)
        return sorted(int(path.stem[5:]) for path in self._folder.glob("rows-*.json"))

    def read(self, number: int) -> list[Row]:
        """Return the rows of a finished group.

        Raises:
            InputError: its file is damaged.
        """
        if self._folder is None:
            return self._held[number]
        path = self._folder / f"rows-{number:06}.json"
        try:
            rows = json.loads(path.read_text("utf-8"))
            return [Row(tuple(combination), *rest) for combination, *rest in rows]
        except DAMAGED:
            raise InputError(f"{path.name}: is damaged; remove it to draw its rows again") from None

    def rows(self) -> list[Row]:
        """Return all rows that are there, group by group."""
        return [row for number in self.numbers for row in self.read(number)]

    def redrawn(self) -> dict[str, int]:
        """Return why texts were drawn again, and how many, in the groups that are there."""
        rows = self.rows()
        return {why: sum(getattr(row, why) for row in rows) for why in COUNTED}

    def write(self, number: int, rows: list[Row]) -> None:
        """Keep a finished group; its file appears whole or not at all."""
        if self._folder is None:
            self._held[number] = rows
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        plain = [[list(r.combination), r.text, r.filtered, r.unfinished, r.denied] for r in rows]
        with whole_file(self._folder / f"rows-{number:06}.json") as file:
            json.dump(plain, file, ensure_ascii=False)


def open_row_groups(
    folder: Path,
    sampling: SamplingConfig,
    counts: Mapping[Combination, int],
    device: torch.device,
) -> RowGroups:
    """Return the groups that a folder holds; those of another twin are deleted first.

    Groups that were drawn with other settings, for other counts or grouped differently cannot be
    part of this twin.

    Args:
        folder: of the groups; made where there is none.
        sampling: decoding settings and seed.
        counts: rows of each label combination.
        device: that rows are written on.
    """
    drawn_with = {
        "sampling": {k: v for k, v in asdict(sampling).items() if k not in SPEED_ONLY},
        "counts": [[list(combination), rows] for combination, rows in counts.items()],
        "balanced groups": number_of_groups(sum(counts.values()), device),
    }
    path = folder / "drawn-with.json"
    with suppress(*DAMAGED):
        if json.loads(path.read_text("utf-8")) == json.loads(json.dumps(drawn_with)):
            return RowGroups(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(path, drawn_with)
    return RowGroups(folder)


def devices_for_rows(model: Any, groups: int, processes: int) -> list[str]:
    """Return the devices of all processes that draw rows, this one's first.

    Their number follows from public facts: the model's size, the threads or processes that were
    asked for, and all memory of this machine. What this process holds now depends on private texts.

    Args:
        model: causal LM, on the device of this process.
        groups: that are missing; there are no more processes than these.
        processes: that were asked for. On a processor 1 stands for one for each thread; on GPUs
            each has one of its own.
    """
    device = model.device
    if not is_cpu(device):
        others = [torch.device(device.type, i) for i in range(gpus()) if i != device.index]
        return [str(each) for each in [device, *others][: max(1, min(groups, processes))]]
    config = model.config
    weights = sum(p.nbytes for p in model.parameters())
    token = 2 * config.num_hidden_layers * config.hidden_size * next(model.parameters()).itemsize
    # One row is written even if it alone takes more than rows may.
    rows = max(memory_for_rows(device), token * config.max_position_embeddings)
    room = USABLE * total_memory() / (PROCESS_BYTES + weights + packed_bytes(model) + rows)
    return [str(device)] * max(1, min(groups, max(processes, torch.get_num_threads()), int(room)))


def draw_groups(
    sampler: Callable[[int], Sampler],
    counts: Mapping[Combination, int],
    device: torch.device,
    progress: Progress,
    groups: RowGroups,
    *,
    deadline: float | None = None,
    pool: RowPool | None = None,
) -> int:
    """Draw the groups that are missing, until all are there or the deadline has passed.

    One group is drawn whatever the deadline: a twin has rows. Workers of a pool draw along. What a
    lost worker leaves is drawn here.

    Args:
        sampler: called with a group's number, which is that of its stream of random numbers.
        counts: rows wanted of each label combination.
        device: that rows are written on.
        progress: is notified of how many rows there are.
        groups: finished groups; what is there is not drawn again.
        deadline: of `time.monotonic`; None: there is none.
        pool: workers with the same sampler, counts and device; None: there are none.

    Returns:
        How many rows there are now.

    Raises:
        InputError: rows of a label were unusable time after time.
    """
    wanted = groups_of(counts, device)
    drawing = _Drawing(sampler, wanted, groups, progress, deadline, pool)
    # One thread, see the top. What other threads of this machine do is left alone.
    with computing_with(1) if is_cpu(device) else nullcontext():
        return drawing.run()


class _Drawing:
    """One call of `draw_groups`.

    This process and its workers take groups from one queue. A worker's next group is submitted when
    its last one is done, by the thread that says so: the executor would prefetch what is submitted
    earlier, and this process would wait for it at the end.
    """

    def __init__(
        self,
        sampler: Callable[[int], Sampler],
        wanted: Sequence[Mapping[Combination, int]],
        groups: RowGroups,
        progress: Progress,
        deadline: float | None,
        pool: RowPool | None,
    ) -> None:
        self._sampler, self._wanted, self._groups = sampler, wanted, groups
        self._progress, self._deadline, self._pool = progress, deadline, pool
        self._sizes = [sum(group.values()) for group in wanted]
        self._there = sum(self._sizes[n] for n in groups.numbers)
        self._queue = deque(sorted(set(range(len(wanted))) - set(groups.numbers)))
        self._lock = RLock()  # of queue and futures
        self._futures: dict[int, Future[list[Row] | None]] = {}  # of groups that workers draw
        self._lost: list[int] = []  # groups of a worker that ended before its time
        self._seconds = 0.0  # that the last group took here
        self._shown = 0.0, 0.0  # rows and share of the work, never less than before

    def run(self) -> int:
        """Draw what is missing; return how many rows there are."""
        if not self._queue:
            return self._there
        own = self._queue.popleft()  # the first group is this process's
        for _ in range(self._pool.size if self._pool else 0):
            self._submit_next()
        self._draw_here(own)
        while (number := self._next()) is not None:
            self._draw_here(number)
        while self._futures:
            wait(self._futures.values(), LOOKS, return_when="FIRST_COMPLETED")
            self._collect()
            self._report(0, 0.0)
        if self._lost:
            self._progress.warn(LOST)
        for number in self._lost:
            self._draw_here(number)
        self._progress.count("rows", self._there, sum(self._sizes), 1.0)
        return self._there

    def _next(self) -> int | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def _submit_next(self, done: Future[list[Row] | None] | None = None) -> None:
        """Give a worker the next group; `done` is its last one."""
        if self._pool is None or (done is not None and (done.cancelled() or done.exception())):
            return
        # This process finds the queue empty only when all that was taken is among the futures.
        with self._lock, suppress(IndexError):
            number = self._queue.popleft()
            try:
                future = self._pool.submit(number, self._deadline)
            except RuntimeError:  # the pool is broken, or the block that uses it has ended
                self._lost.append(number)
            else:
                self._futures[number] = future
                future.add_done_callback(self._submit_next)

    def _draw_here(self, number: int) -> None:
        """Draw a group in this process, if it ends in time or is the first of all."""
        if self._there and not ends_in_time(self._deadline, self._seconds):
            return
        began, size = monotonic(), self._sizes[number]

        def on_rows(rows: int, share: float) -> None:
            self._collect()
            self._report(rows, share * size)

        rows = self._sampler(number).sample(self._wanted[number], on_rows)
        self._groups.write(number, rows)
        self._there += size
        self._seconds = monotonic() - began

    def _collect(self) -> None:
        """Keep the groups that workers have finished."""
        for number, future in list(self._futures.items()):
            if not future.done():
                continue
            error = future.exception()
            if isinstance(error, InputError):
                raise error  # it would be the same here
            if error is not None:
                self._lost.append(number)
            elif (rows := future.result()) is not None:  # None: the deadline has passed
                self._groups.write(number, rows)
                self._there += self._sizes[number]
            del self._futures[number]

    def _report(self, rows: int, work: float) -> None:
        """Report rows of the group under way, as if those of workers had come as far."""
        under_way, total = 1 + len(self._futures), sum(self._sizes)
        done = min(total, self._there + under_way * rows)
        share = min(1.0, (self._there + under_way * work) / total)
        self._shown = max(self._shown[0], done), max(self._shown[1], share)
        self._progress.count("rows", int(self._shown[0]), total, self._shown[1])
