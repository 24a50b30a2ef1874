"""A twin's rows in groups, drawn by one or several processes.

Groups work at *any time*: whenever drawing stops, the finished groups are a twin. Each group has
the labels in the proportions of the whole, and its own random numbers. So the first groups are a
smaller twin, a resumed run draws only the missing groups, and any process may draw a group. On a
CPU, one thread computes a group. With several threads, sums would be rounded differently, and
sometimes another token would be drawn.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, astuple, dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic, sleep
from typing import Any

import torch

from twinset.config import SamplingConfig
from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import whole_file, write_json
from twinset.models.device import ROWS_BYTES, computing_with, gpus, is_cpu, total_memory
from twinset.models.layers import packable_layers
from twinset.progress import Progress
from twinset.sampling.row_pool import Worker
from twinset.sampling.sampler import COUNTED, Row, Sampler
from twinset.table.schema import Combination

# Small groups, so that little is lost at a deadline and all processes have some. A GPU writes more
# rows at once, and each group ends with a few that are written alone.
GROUP_ROWS, GROUP_ROWS_GPU = 256, 4096
GOLDEN = 0.618034  # multiples of it, without their whole parts, are spread evenly
SPEED_ONLY = ("batch_size",)  # options that may differ from those of rows that are there
USABLE = 0.8  # of this machine's memory
PROCESS_BYTES = 600 << 20  # of Python with its libraries, before a model is loaded
LOOKS = 0.2  # seconds between looks at workers, in which a signal waits
LOST = (
    "one of the processes that write rows ended early, perhaps out of memory. This process writes "
    "its rows."
)

# -- groups ----------------------------------------------------------------------------------------


def groups_of(
    counts: Mapping[Combination, int], device: torch.device
) -> list[dict[Combination, int]]:
    """Return how many rows of each label combination every group has.

    The first groups together have each label in its proportion, to within one row.

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
    number = max(len(ordered) // (GROUP_ROWS if is_cpu(device) else GROUP_ROWS_GPU), 1)
    edges = [len(ordered) * i // number for i in range(number + 1)]
    groups = [Counter(ordered[start:end]) for start, end in pairwise(edges) if end > start]
    return [{c: group[c] for c in counts if group[c]} for group in groups]


@dataclass
class RowGroups:
    """The finished groups of rows."""

    folder: Path | None = None  # has a file for each group, and is made with the first
    held: dict[int, list[Row]] = field(default_factory=dict)  # without a folder: in memory

    @property
    def numbers(self) -> list[int]:
        """The numbers of the finished groups, in order."""
        if self.folder is None:
            return sorted(self.held)
        return sorted(int(path.stem[5:]) for path in self.folder.glob("rows-*.json"))

    def read(self, number: int) -> list[Row]:
        """Return the rows of a finished group.

        Raises:
            InputError: its file is damaged.
        """
        if self.folder is None:
            return self.held[number]
        path = self.folder / f"rows-{number:06}.json"
        try:
            rows = json.loads(path.read_text("utf-8"))
            return [Row(tuple(c), *rest, others=tuple(more)) for c, *rest, more in rows]
        except DAMAGED:
            raise InputError(f"{path.name}: is damaged. Remove it to redraw its rows.") from None

    def rows(self) -> list[Row]:
        """Return all finished rows, group by group."""
        return [row for number in self.numbers for row in self.read(number)]

    def redrawn(self) -> dict[str, int]:
        """Return why texts were drawn again, and how many, in the finished groups."""
        rows = self.rows()
        return {why: sum(getattr(row, why) for row in rows) for why in COUNTED}

    def write(self, number: int, rows: list[Row]) -> None:
        """Save a finished group. Its file appears whole or not at all."""
        if self.folder is None:
            self.held[number] = rows
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        plain = [astuple(row) for row in rows]
        with whole_file(self.folder / f"rows-{number:06}.json") as file:
            json.dump(plain, file, ensure_ascii=False)


def open_row_groups(
    folder: Path,
    sampling: SamplingConfig,
    counts: Mapping[Combination, int],
    device: torch.device,
) -> RowGroups:
    """Return the groups in a folder. Those of another twin are deleted first.

    Groups that were drawn with other settings, for other counts or with other group sizes can't be
    part of this twin. The folder is created if it is missing.
    """
    drawn_with = {
        "sampling": {k: v for k, v in asdict(sampling).items() if k not in SPEED_ONLY},
        "counts": [[list(combination), rows] for combination, rows in counts.items()],
        "balanced groups": len(groups_of(counts, device)),
    }
    path = folder / "drawn-with.json"
    with suppress(*DAMAGED):
        if json.loads(path.read_text("utf-8")) == json.loads(json.dumps(drawn_with)):
            return RowGroups(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(path, drawn_with)
    return RowGroups(folder)


# -- drawing ---------------------------------------------------------------------------------------


def draw_groups(
    sampler: Callable[[int], Sampler],
    counts: Mapping[Combination, int],
    device: torch.device,
    progress: Progress,
    groups: RowGroups,
    *,
    deadline: float | None = None,
    workers: Sequence[Worker] = (),
) -> int:
    """Draw the missing groups, and return how many rows there are then.

    It ends when all are finished or the deadline has passed. At least one group is drawn. Workers
    take groups from the same queue. Groups of a lost worker are drawn here. With a deadline,
    progress counts towards as many rows as there will be by then.

    `sampler` is called with a group's number, which is also that of its stream of random numbers. A
    group begins only if most of it would come before the deadline (`time.monotonic`).
    """
    wanted = groups_of(counts, device)
    sizes = [sum(group.values()) for group in wanted]
    there, total = sum(sizes[n] for n in groups.numbers), sum(sizes)
    missing = iter(sorted(set(range(len(wanted))) - set(groups.numbers)))  # for all threads
    finished: SimpleQueue[tuple[int, list[Row] | Exception]] = SimpleQueue()  # by workers
    lost: list[int] = []  # groups of a worker that ended before its time
    shown = 0.0, 0.0  # rows, and their share of the work. Neither ever falls.
    latest = math.inf if deadline is None else deadline  # by a clock that all processes share
    began, at_first = monotonic(), there

    def follow(worker: Worker) -> None:
        """Let a worker draw one group after another, in a thread that waits for each."""
        seconds = 0.0
        for number in missing:
            began = monotonic()
            try:
                rows = worker(number, latest - seconds / 2)
            except Exception as error:
                finished.put((number, error))
                return
            if rows is None:  # too late
                return
            finished.put((number, rows))
            seconds = monotonic() - began

    def report(rows: int, work: float) -> None:
        """Save what workers have finished. Report their progress and that of this process.

        The group here has `rows` rows, and `work` is the finished share of its tokens. Workers
        are assumed to be equally far with theirs.
        """
        nonlocal there, shown
        while not finished.empty():
            number, found = finished.get()
            if isinstance(found, InputError):
                raise found  # it would be the same here
            if isinstance(found, Exception):
                lost.append(number)
            else:
                groups.write(number, found)
                there += sizes[number]
        under_way = 1 + sum(thread.is_alive() for thread in threads)
        done = min(total, there + under_way * rows)
        shown = max(shown[0], done), max(shown[1], min(1.0, (there + under_way * work) / total))
        rows, most = int(shown[0]), total
        if rows > at_first:  # as many as there will be in time, at this pace
            pace = (rows - at_first) / max(monotonic() - began, 1e-9)
            most = int(min(total, max(rows, at_first + pace * (latest - began))))
        progress.count("rows", rows, most, min(1.0, shown[1] * total / most))

    seconds = 0.0  # that the last group took here

    def draw(number: int) -> None:
        """Draw a group in this process, if it ends in time or is the first of all."""
        nonlocal there, seconds
        started, size = monotonic(), sizes[number]
        if there and started >= latest - seconds / 2:  # more than half would come too late
            return
        rows = sampler(number).sample(wanted[number], lambda n, share: report(n, share * size))
        groups.write(number, rows)
        there += size
        seconds = monotonic() - started

    own = next(missing, None)
    if own is None:
        return there
    threads = [Thread(target=follow, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    # What other threads of this machine do is left alone.
    with computing_with(1) if is_cpu(device) else nullcontext():
        for number in chain([own], missing):
            draw(number)
        while any(thread.is_alive() for thread in threads):
            sleep(LOOKS)
            report(0, 0.0)
        report(0, 0.0)
        if lost:
            progress.warn(LOST)
        for number in lost:
            draw(number)
    progress.count("rows", there, total, 1.0)
    return there


def devices_for_rows(model: Any, groups: int, processes: int) -> list[str]:
    """Return the devices of all processes that draw rows, this process first.

    Their number follows from public facts: the model's size, the missing groups, the requested
    threads or processes, and the total memory of this machine. The memory that this process uses
    now depends on private texts. On a CPU there is one process per thread, and on GPUs one process
    per GPU.
    """
    device = model.device
    if not is_cpu(device):
        others = [torch.device(device.type, i) for i in range(gpus()) if i != device.index]
        return [str(each) for each in [device, *others][: max(1, min(groups, processes))]]
    config = model.config
    weights = sum(p.nbytes for p in model.parameters())
    weights += sum(layer.weight.nbytes for layer in packable_layers(model))  # laid out once more
    token = 2 * config.num_hidden_layers * config.hidden_size * next(model.parameters()).itemsize
    # One row is written even if it alone takes more than rows may.
    rows = max(ROWS_BYTES, token * config.max_position_embeddings)
    room = USABLE * total_memory() / (PROCESS_BYTES + weights + rows)
    return [str(device)] * max(1, min(groups, max(processes, torch.get_num_threads()), int(room)))
