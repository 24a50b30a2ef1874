"""Rows of a twin written by several processes, one for each free core.

Threads of one process wait for one another at each operation, processes only at the end: on two
cores with AMX two of one thread wrote half as many rows again as one of two threads
(docs/performance.md). Which process draws a group changes no row but by rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.config import SamplingConfig
from twinset.data.schema import Combination
from twinset.distributed import ProcessGroup, process_group
from twinset.errors import InputError
from twinset.models.device import free_memory, is_cpu, peak_memory
from twinset.models.threads import on_free_cores
from twinset.progress import Progress
from twinset.sampling.row_shards import draw_groups, number_of_groups
from twinset.sampling.sampler import RowGroups
from twinset.sampling.twin_model import TwinModel

if TYPE_CHECKING:
    import torch


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

    def message(self) -> dict[str, Any]:
        """Return it as plain values, for the other ranks."""
        return {
            "task": "sample",
            "model": str(self.model),
            "device": self.device,
            "sampling": asdict(self.sampling),
            "counts": [[list(combination), rows] for combination, rows in self.counts.items()],
            "rows": str(self.folder),
        }

    @property
    def missing(self) -> int:
        """Number of groups that are not drawn yet."""
        kept, groups = RowGroups(self.folder), number_of_groups(sum(self.counts.values()))
        return sum(number not in kept for number in range(groups))


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
    if group is not None:
        _draw(model, rows, progress, group)
        return
    device = model.model.device
    with on_free_cores(progress.say) as threads:
        most = writers(threads, rows.sampling, device, peak_memory(device))
    count = min(most, rows.missing)
    if count < 2:
        return
    progress.say(f"{count} processes write the rows, one for each free core")
    try:
        with process_group(count, threads=1) as started:
            assert started is not None
            _draw(model, rows, progress, started)
    except InputError as error:
        progress.warn(f"{error}; this one goes on alone")


def writers(threads: int, sampling: SamplingConfig, device: torch.device, gigabytes: float) -> int:
    """Return how many processes may write rows, where a run is one process.

    Args:
        threads: that it has.
        sampling: decoding settings.
        device: that it writes on.
        gigabytes: that it needs.
    """
    if sampling.engine != "torch" or not is_cpu(device):
        return 1
    return min(threads, 1 + int(free_memory() / gigabytes))


def _draw(model: TwinModel, rows: RowsToDraw, progress: Progress, group: ProcessGroup) -> None:
    group.broadcast_message(rows.message())
    draw, kept = partial(model.sampler, rows.sampling), RowGroups(rows.folder)
    draw_groups(draw, rows.counts, progress, kept, group.rank, group.size)
    group.barrier()
