"""Several processes that form each clipped sum together.

They meet through a file in a folder of the user's own, and communicate over the loopback interface.
Rank 0 alone draws batches, adds noise, steps and keeps the ledger. The others get weights and the
numbers of records, and return sums without noise. The messages are as private as the records. They
consist of tensors and JSON (no pickle).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from twinset.config import RunConfig
from twinset.errors import InputError
from twinset.files.import_path import safe_environment
from twinset.models.base_model import load_base
from twinset.privacy.clipping import ClippingEngine, Scale, UnitReport
from twinset.progress import Silent
from twinset.table.tokenization import TokenisedRecords
from twinset.training.clipped_sum import Batch, ClippedSum, MismatchLoss, Trainer, join_reports

END = "end"
WORKER = "twinset.training.distributed"  # the module that another rank runs
ONLY_HERE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # the loopback
PATIENCE = timedelta(hours=12)  # rank 0 may write a checkpoint, or ask nothing, for long
ENDING = 20.0  # seconds, for a process whose connections are closed


class ProcessGroup:
    """The processes of `torch.distributed`'s default group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def broadcast_message(self, message: Any = None) -> Any:
        """Return rank 0's message, plain values, on every rank."""
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        data = torch.empty(int(length), dtype=torch.uint8) if self.rank else data
        dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Overwrite every rank's tensors with rank 0's."""
        with torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def gather(self, part: Tensor, columns: list[int]) -> list[Tensor]:
        """Return every rank's (r, columns[rank]) on rank 0, and nothing elsewhere."""
        padded = part.new_zeros(len(part), max(columns))  # gather wants equal shapes
        padded[:, : part.shape[1]] = part
        found = None if self.rank else [torch.empty_like(padded) for _ in columns]
        dist.gather(padded, found, 0)
        return [one[:, :n] for one, n in zip(found or [], columns, strict=not self.rank)]


@contextmanager
def process_group(count: int) -> Iterator[ProcessGroup | None]:
    """Start `count` - 1 more processes and yield the group, or None if one process is enough.

    Under `accelerate launch` or `torchrun` the processes exist already. Then `count` is ignored,
    and all but rank 0 call `run_worker`.

    Raises:
        InputError: sharded training was requested, or a process ended too early.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise InputError(
            "FSDP is not supported, because exact clipping needs whole parameters on each device. "
            "Remove it from the launcher's configuration, and train with `method=lora` or qlora."
        )
    if world_size(1) > 1:
        with join_group("env://") as group:
            yield group
        return
    if count == 1:
        yield None
        return
    # All ranks together use one thread per core.
    own, threads = torch.get_num_threads(), max(1, (os.cpu_count() or 1) // count)
    with TemporaryDirectory(prefix="twinset-group-") as folder:
        meeting = str(Path(folder, "meeting"))
        limited = safe_environment(finds_twinset=True) | {
            "OMP_NUM_THREADS": str(threads),
            **ONLY_HERE,
        }
        others = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER, meeting, str(rank), str(count)],
                env=limited | {"LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # and no output: a traceback may quote private text
                stderr=subprocess.DEVNULL,
            )
            for rank in range(1, count)
        ]
        try:
            torch.set_num_threads(threads)
            with join_group(f"file://{meeting}", 0, count) as group:
                yield group
        except RuntimeError as error:
            for process in others:
                with suppress(subprocess.TimeoutExpired):  # it waits: the error is rank 0's own
                    if process.wait(ENDING) != 0:
                        raise InputError(
                            "one of the processes ended early, perhaps out of memory. "
                            "Take fewer `processes`."
                        ) from error
            raise
        finally:
            torch.set_num_threads(own)
            for process in others:
                process.kill()
                process.wait()


def world_size(count: int) -> int:
    """Return how many processes `process_group(count)` would have."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))  # set by a launcher
    return launched if launched > 1 else count


@contextmanager
def join_group(meeting: str, rank: int = -1, size: int = -1) -> Iterator[ProcessGroup]:
    """Join a process group. Rank 0's last message says that the work is done.

    They meet at a URL of `torch.distributed`. For a rank and a size of -1 the launcher decides.
    """
    if size > 0:
        os.environ.update(ONLY_HERE)
    # Messages are on the CPU, weights and sums on GPUs.
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    carriers = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
    dist.init_process_group(
        carriers, init_method=meeting, timeout=PATIENCE, rank=rank, world_size=size
    )
    try:
        group = ProcessGroup()
        yield group
        if group.rank == 0:
            group.broadcast_message(END)
    finally:
        dist.destroy_process_group()


def sum_together(own: ClippedSum, group: ProcessGroup, batch: Batch) -> UnitReport:
    """Leave Σᵢ ĝᵢ of a batch in the sums of rank 0's engine. The others form parts of it.

    The others are in `run_worker`. A unit's content alone decides which process forms its part,
    because processes may round in different ways. An added record must not move other units to
    another process, which would change their gradients. So neither a unit's place in the batch
    decides, nor its number in the table, which changes with every row removed before it. The first
    of a unit's records decides.
    """
    dealt: list[list[int]] = [[] for _ in range(group.size)]
    for place, unit in enumerate(batch.units):
        dealt[own.records.digest(unit[0]) % group.size].append(place)
    parts = [batch.part(places) for places in dealt]
    factors = [(scale.columns, scale.rows) for scale in batch.scales]
    message = {
        "step": batch.step,
        "units": [part.units for part in parts],
        "limits": [part.limits.tolist() for part in parts if part.limits is not None],
        "scales": [[None if f is None else list(f.shape) for f in pair] for pair in factors],
    }
    group.broadcast_message(message)
    return _sum_part(parts[0], [len(part.units) for part in parts], own, group)


def _sum_part(batch: Batch, sizes: list[int], own: ClippedSum, group: ProcessGroup) -> UnitReport:
    """Do the part of the sum that every rank does. The report is complete on rank 0."""
    group.broadcast([parameter.data for parameter in own.engine.parameters])
    group.broadcast([f for s in batch.scales for f in (s.columns, s.rows) if f is not None])
    report = own.compute_clipped_sum(batch)
    for total in own.engine.sums:  # summed at rank 0 (undefined elsewhere)
        dist.reduce(total, 0)
    # (3, units) from the processor on every rank: one without units has no device to speak of
    figures = torch.stack([f.double().cpu() for f in (report.losses, report.norms, report.scales)])
    return join_reports([UnitReport(*each) for each in group.gather(figures, sizes)])


# --- the other ranks ----------------------------------------------------------------------------


def run_worker(meeting: str = "env://", rank: int = -1, size: int = -1) -> None:
    """Join a process group and form parts of clipped sums until there are no more.

    A worker draws no batch and no noise, and writes nothing. By default a launcher starts it.
    """
    with join_group(meeting, rank, size) as group:
        # Each message opens a training, see `loop.opening_message`.
        while (message := group.broadcast_message()) != END:
            config, norm = RunConfig.from_dict(message["config"]), message["max_grad_norm"]
            # rank 0's very weights, in its precision
            trainer = Trainer(load_base(config.training.base_model), config, [], Silent())
            if message["has_fallen_back"]:
                trainer.fall_back()
            engine = ClippingEngine(
                trainer.model, math.inf if norm is None else norm, trainer.execution
            )
            records, loss = TokenisedRecords.open(Path(message["tokens"])), message["loss"]
            speed, device = trainer.config.speed, engine.parameters[0].device
            own = ClippedSum(engine, records, MismatchLoss(**loss), speed, message["batch_size"])
            try:
                # Each of these asks for a part of a sum, see `sum_together`.
                while (asked := group.broadcast_message()) != END:
                    limits = [torch.tensor(some, dtype=torch.float64) for some in asked["limits"]]
                    pairs = [  # of rank 0's shapes: `_sum_part` fills them
                        [None if shape is None else torch.ones(shape, device=device) for shape in x]
                        for x in asked["scales"]
                    ]
                    batch = Batch(
                        asked["step"],
                        asked["units"][group.rank],
                        limits[group.rank] if limits else None,
                        [Scale(*pair) for pair in pairs],
                    )
                    _sum_part(batch, list(map(len, asked["units"])), own, group)
            finally:
                engine.close()


if __name__ == "__main__":
    run_worker(f"file://{sys.argv[1]}", int(sys.argv[2]), int(sys.argv[3]))
