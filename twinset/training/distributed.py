"""Several processes that form each clipped sum together.

Rank 0 alone draws batches, adds noise, steps and keeps the ledger. The others get weights and the
numbers of records, and return sums without noise. The messages are as private as the records. They
consist of tensors and JSON (no pickle).

Rank 0 starts the others, and speaks with each through a pair of sockets that both inherit. No other
process can connect to these, so no other user of the machine can listen or take part. The
processes of a launcher, also of several machines, use `torch.distributed`. There anyone who reaches
their ports can, so their network has to be trusted.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

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
PATIENCE = timedelta(hours=12)  # rank 0 may write a checkpoint, or ask nothing, for long


class ProcessGroup(Protocol):
    """What the processes of a group do together."""

    rank: int
    size: int

    def broadcast_message(self, message: Any = None) -> Any:
        """Return rank 0's message, plain values, on every rank."""

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Overwrite every rank's tensors with rank 0's."""

    def add_up(self, tensors: list[Tensor]) -> None:
        """Leave the sum of all ranks' tensors in rank 0's. The others' have no meaning then."""

    def gather(self, part: Tensor, columns: list[int]) -> list[Tensor]:
        """Return every rank's (r, columns[rank]) on rank 0, and nothing elsewhere."""


class Disconnected(Exception):
    """Another process of the group is gone."""


class End:
    """This process's end of a pair of sockets, given by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes. Raise `Disconnected` if no one is there."""
        try:
            self._connection.send_bytes(data)
        except OSError as error:
            raise Disconnected from error

    def receive(self) -> bytes:
        """Return the next message. Raise `Disconnected` if no one is there."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise Disconnected from error

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()


@dataclass
class InheritedGroup:
    """Processes that rank 0 has started, and a pair of sockets to each of them."""

    rank: int
    size: int
    ends: Sequence[End]  # on rank 0 one to each other rank, elsewhere the one to rank 0

    def broadcast_message(self, message: Any = None) -> Any:
        """See `ProcessGroup`."""
        data = json.dumps(message).encode()
        if self.rank:
            data = self.ends[0].receive()
        else:
            for end in self.ends:
                end.send(data)
        return json.loads(data)

    def broadcast(self, tensors: list[Tensor]) -> None:
        """See `ProcessGroup`."""
        for tensor in tensors:
            if self.rank:
                self._receive(self.ends[0], tensor)
            else:
                data = _bytes_of(tensor)
                for end in self.ends:
                    end.send(data)

    def add_up(self, tensors: list[Tensor]) -> None:
        """See `ProcessGroup`. Ranks are added in their order."""
        for tensor in tensors:
            if self.rank:
                self.ends[0].send(_bytes_of(tensor))
                continue
            for end in self.ends:
                tensor += self._receive(end, torch.empty_like(tensor))

    def gather(self, part: Tensor, columns: list[int]) -> list[Tensor]:
        """See `ProcessGroup`."""
        if self.rank:
            self.ends[0].send(_bytes_of(part))
            return []
        others = zip(self.ends, columns[1:], strict=True)
        return [part, *(self._receive(end, part.new_empty(len(part), n)) for end, n in others)]

    def _receive(self, end: End, tensor: Tensor) -> Tensor:
        """Overwrite a tensor with one of its shape and type, and return it."""
        received = torch.empty(tensor.shape, dtype=tensor.dtype)
        _bytes_of(received)[:] = end.receive()
        with torch.no_grad():
            tensor.copy_(received)
        return tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor on any device, in a row. On the CPU they are not copied."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass
class LaunchedGroup:
    """The processes of `torch.distributed`'s default group, which a launcher has started."""

    rank: int = field(default_factory=dist.get_rank)
    size: int = field(default_factory=dist.get_world_size)

    def broadcast_message(self, message: Any = None) -> Any:
        """See `ProcessGroup`."""
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        data = torch.empty(int(length), dtype=torch.uint8) if self.rank else data
        dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def broadcast(self, tensors: list[Tensor]) -> None:
        """See `ProcessGroup`."""
        with torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def add_up(self, tensors: list[Tensor]) -> None:
        """See `ProcessGroup`."""
        for tensor in tensors:
            dist.reduce(tensor, 0)

    def gather(self, part: Tensor, columns: list[int]) -> list[Tensor]:
        """See `ProcessGroup`."""
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
        with join_launched() as launched:
            yield launched
        return
    if count == 1:
        yield None
        return
    # All ranks together use one thread per core.
    own, threads = torch.get_num_threads(), max(1, (os.cpu_count() or 1) // count)
    environment = safe_environment(finds_twinset=True) | {"OMP_NUM_THREADS": str(threads)}
    others: list[subprocess.Popen[bytes]] = []
    ends: list[End] = []
    try:
        for rank in range(1, count):
            here, there = socket.socketpair()
            ends.append(End(here.detach()))
            with there:
                command = [sys.executable, "-P", "-m", WORKER, str(there.fileno())]
                worker = subprocess.Popen(
                    [*command, str(rank), str(count)],
                    env=environment | {"LOCAL_RANK": str(rank)},
                    pass_fds=[there.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # no output: a traceback may quote private text
                    stderr=subprocess.DEVNULL,
                )
                others.append(worker)
        torch.set_num_threads(threads)
        group = InheritedGroup(0, count, ends)
        try:
            yield group
            group.broadcast_message(END)
        except Disconnected as error:
            raise InputError(
                "one of the processes ended early, perhaps out of memory. Take fewer `processes`."
            ) from error
    finally:
        torch.set_num_threads(own)
        for end in ends:
            end.close()
        for worker in others:
            worker.kill()
            worker.wait()


def world_size(count: int) -> int:
    """Return how many processes `process_group(count)` would have."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))  # set by a launcher
    return launched if launched > 1 else count


@contextmanager
def join_launched() -> Iterator[LaunchedGroup]:
    """Join the group of a launcher. Rank 0's last message says that the work is done."""
    # Messages are on the CPU, weights and sums on GPUs.
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo", timeout=PATIENCE)
    try:
        group = LaunchedGroup()
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
    group.add_up(own.engine.sums)
    # (3, units) from the processor on every rank: one without units has no device to speak of
    figures = torch.stack([f.double().cpu() for f in (report.losses, report.norms, report.scales)])
    return join_reports([UnitReport(*each) for each in group.gather(figures, sizes)])


# --- the other ranks ----------------------------------------------------------------------------


def run_worker(group: ProcessGroup | None = None) -> None:
    """Form parts of clipped sums until there are no more. None: join the group of a launcher.

    A worker draws no batch and no noise, and writes nothing.
    """
    if group is None:
        with join_launched() as launched:
            return run_worker(launched)
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
    return None


if __name__ == "__main__":
    end, own_rank, processes = map(int, sys.argv[1:])
    with suppress(Disconnected):  # rank 0 is gone
        run_worker(InheritedGroup(own_rank, processes, [End(end)]))
