"""Rows of a twin written by several processes, one for each free core.

Threads of one process wait for one another at each operation, processes only at the end: two on two
cores took 28 % less time than one of two threads (docs/scaling.md). Each draws whole groups of
rows into files, and says nothing else, so that whoever is killed costs its groups alone. Which
process draws a group changes no row but by rounding.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.config import SamplingConfig
from twinset.models.device import free_memory, is_cpu, memory_for_rows, peak_memory
from twinset.models.packed_layers import packed_bytes
from twinset.models.threads import computing_with, free_threads
from twinset.progress import Progress, Silent
from twinset.sampling.row_shards import draw_groups, missing_groups
from twinset.sampling.sampler import RowGroups
from twinset.sampling.twin_model import TwinModel
from twinset.table.schema import Combination
from twinset.training.distributed import ProcessGroup, start_worker, world_size

if TYPE_CHECKING:
    import torch

USABLE = 0.9  # of the memory that is free
LOOKS = 0.2  # seconds between looks at processes that are waited for
LOST = (
    "one of the processes that write rows ended before its time, perhaps out of memory; its rows "
    "are written by this one"
)


@dataclass(frozen=True)
class RowsToDraw:
    """What several processes need to draw a twin's rows.

    Args:
        model: folder of the model.
        device: that each writes on.
        sampling: decoding settings and seed.
        counts: rows of each label combination.
        folder: of finished groups.
    """

    model: Path
    device: str
    sampling: SamplingConfig
    counts: Mapping[Combination, int]
    folder: Path

    def message(self, groups: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return it as plain values, with the groups that each process is to draw."""
        return {
            "task": "sample",
            "model": str(self.model),
            "device": self.device,
            "sampling": asdict(self.sampling),
            "counts": [[list(combination), rows] for combination, rows in self.counts.items()],
            "rows": str(self.folder),
            "groups": [list(some) for some in groups],
        }

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> RowsToDraw:
        """Return what a message says."""
        return cls(
            Path(message["model"]),
            message["device"],
            SamplingConfig(**message["sampling"]),
            {tuple(combination): rows for combination, rows in message["counts"]},
            Path(message["rows"]),
        )

    @property
    def missing(self) -> list[int]:
        """Numbers of the groups that are not drawn yet."""
        return missing_groups(self.counts, RowGroups(self.folder))

    def draw(self, model: TwinModel, groups: Sequence[int], progress: Progress) -> None:
        """Draw some groups into the folder."""
        draw = partial(model.sampler, self.sampling)
        draw_groups(draw, self.counts, progress, RowGroups(self.folder), groups)


def draw_by_processes(
    model: TwinModel, rows: RowsToDraw, progress: Progress, group: ProcessGroup | None
) -> None:
    """Draw rows into their folder by a run's processes or, on the processor, by one for each core.

    What is not drawn here, as there is one process alone or another one ended before its time, is
    left for whoever reads the folder.

    Args:
        model: that `rows.model` holds.
        rows: what is to be drawn.
        progress: is notified of how many there are.
        group: the run's processes; None: it has one.
    """
    missing = rows.missing
    if group is not None:
        shares = _shared(missing, group.size)
        group.broadcast_message(rows.message(shares))
        rows.draw(model, shares[group.rank], progress)
        group.barrier()
    elif len(missing) > 1 and is_cpu(model.model.device):
        threads = free_threads(progress.say)
        count = min(
            len(missing), writers(threads, rows.sampling, model.model.device, _needs(model))
        )
        if count > 1:
            _draw_together(model, rows, progress, _shared(missing, count), threads // count)


def writers(threads: int, sampling: SamplingConfig, device: torch.device, gigabytes: float) -> int:
    """Return how many processes may write rows, where a run is one process.

    Args:
        threads: that it has.
        sampling: decoding settings.
        device: that it writes on.
        gigabytes: that each needs.
    """
    if not is_cpu(device) or world_size(1) > 1:
        return 1
    return max(1, min(threads, int(1 + USABLE * free_memory() / gigabytes)))


def draw_share(message: Mapping[str, Any], rank: int) -> None:
    """Draw the groups that a message leaves to another process than the first."""
    rows = RowsToDraw.of(message)
    rows.draw(TwinModel.load(rows.model, rows.device), message["groups"][rank], Silent())


def _needs(model: TwinModel) -> float:
    """Return how many gigabytes a process that writes rows takes, the model's included."""
    device = model.model.device
    return peak_memory(device) + (memory_for_rows(device) + packed_bytes(model.model)) / 1e9


def _shared(groups: Sequence[int], count: int) -> list[list[int]]:
    """Return each process's groups; the first one has as many as any.

    >>> _shared([1, 3, 5, 7, 9], 2)
    [[1, 5, 9], [3, 7]]
    """
    return [list(groups[rank::count]) for rank in range(count)]


def _draw_together(
    model: TwinModel,
    rows: RowsToDraw,
    progress: Progress,
    shares: Sequence[Sequence[int]],
    threads: int,
) -> None:
    progress.say(f"{len(shares)} processes write the rows, one for each free core")
    message = rows.message(shares)
    with _workers(message, threads) as others, computing_with(threads):
        rows.draw(model, shares[0], progress)
        while any(process.poll() is None for process in others):
            time.sleep(LOOKS)  # and not in a library, which no signal would interrupt
        if any(process.returncode for process in others):
            progress.warn(LOST)


@contextmanager
def _workers(message: dict[str, Any], threads: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a process for each share but the first; what is left of them is killed."""
    others = [_start(message, rank, threads) for rank in range(1, len(message["groups"]))]
    try:
        yield others
    finally:
        for process in others:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _start(message: dict[str, Any], rank: int, threads: int) -> subprocess.Popen[bytes]:
    module = "twinset.run.row_worker"
    process = start_worker(module, [str(rank)], threads, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()  # and it stays open: a worker whose first process is gone ends with it
    return process
