"""Several processes: starting them, here or under a launcher, and what passes between them.

They find one another through a file in a folder of the user's own, and talk over the loopback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from twinset.errors import InputError
from twinset.files.import_path import worker_environment

if TYPE_CHECKING:
    from torch import Tensor

END = "end"
ONLY_HERE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # the loopback
PATIENCE = timedelta(hours=12)  # rank 0 may write a checkpoint, or ask nothing, for long
ENDING = 20.0  # seconds, for a process whose connections are closed


class ProcessGroup:
    """The processes of `torch.distributed`'s default group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process draws batches, adds noise and writes."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all have come so far, by connections that are always there."""
        import torch

        self._dist.all_reduce(torch.zeros(1))

    def broadcast_message(self, message: Any = None) -> Any:
        """Return rank 0's message, plain values, on every rank."""
        import torch

        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        self._dist.broadcast(length, 0)
        data = data if self.is_rank_zero else torch.empty(int(length), dtype=torch.uint8)
        self._dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Overwrite every rank's tensors with rank 0's."""
        import torch

        with torch.no_grad():
            for tensor in tensors:
                self._dist.broadcast(tensor.detach(), 0)

    def reduce(self, tensors: list[Tensor]) -> None:
        """Overwrite rank 0's tensors with sums over all ranks; the others' are undefined then."""
        for tensor in tensors:
            self._dist.reduce(tensor, 0)

    def gather(self, part: Tensor, columns: list[int]) -> list[Tensor]:
        """Return every rank's (r, columns[rank]) on rank 0; nothing elsewhere."""
        import torch

        padded = part.new_zeros(len(part), max(columns))
        padded[:, : part.shape[1]] = part
        found = [torch.empty_like(padded) for _ in columns] if self.is_rank_zero else None
        self._dist.gather(padded, found, 0)
        return [one[:, :n] for one, n in zip(found or [], columns, strict=self.is_rank_zero)]


@contextmanager
def process_group(count: int) -> Iterator[ProcessGroup | None]:
    """Start `count` - 1 more processes and yield the group; None where this one is alone.

    Under `accelerate launch` or `torchrun` the processes are there already, `count` is not looked
    at, and all but rank 0 are to call `twinset.run.worker.worker_loop`.

    Raises:
        InputError: sharded training was asked for, or a process ended before its time.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise InputError(
            "exact clipping needs whole parameters on each device: FSDP is not supported; leave it "
            "out of the launcher's configuration, and train adapters (`method=lora`, or "
            "qlora, which keeps the model in four bits once it is loaded)"
        )
    if _launched() > 1:
        with joined("env://") as group:
            yield group
    elif count == 1:
        yield None
    else:
        with _started(count) as group:
            yield group


def is_worker() -> bool:
    """Return whether a launcher started this process as another rank than 0."""
    return _launched() > 1 and os.environ.get("RANK", "0") != "0"


def world_size(count: int) -> int:
    """Return how many processes `process_group` would have."""
    launched = _launched()
    return launched if launched > 1 else count


def threads_each(count: int) -> int:
    """Return how many threads each process has of a group that is started here."""
    return max(1, (os.cpu_count() or 1) // count)


def _launched() -> int:
    """Return how many processes a launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def _started(count: int) -> Iterator[ProcessGroup]:
    import torch

    own, threads = torch.get_num_threads(), threads_each(count)
    with TemporaryDirectory(prefix="twinset-group-") as folder:
        meeting = str(Path(folder, "meeting"))
        others = [_start(meeting, rank, count, threads) for rank in range(1, count)]
        try:
            torch.set_num_threads(threads)
            with joined(f"file://{meeting}", 0, count) as group:
                yield group
        except RuntimeError as error:
            if any(map(_has_failed, others)):
                raise InputError(
                    "one of the processes ended before its time, perhaps out of memory; "
                    "take fewer `processes`"
                ) from error
            raise
        finally:
            torch.set_num_threads(own)
            for process in others:
                process.kill()
                process.wait()


def _has_failed(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(ENDING) != 0
    return False


def _start(meeting: str, rank: int, count: int, threads: int) -> subprocess.Popen[bytes]:
    more = {"LOCAL_RANK": str(rank), **ONLY_HERE}
    arguments = meeting, str(rank), str(count)
    return start_worker("twinset.run.worker", arguments, threads, more)


def start_worker(
    module: str,
    arguments: Sequence[str],
    threads: int,
    more: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a module of this very twinset; what goes wrong there is for the caller to report.

    Args:
        module: its name.
        arguments: of its command line.
        threads: that it computes with.
        more: variables of its environment; None: there are none.
        stdin: as `subprocess.Popen` takes it.
    """
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        env=worker_environment() | {"OMP_NUM_THREADS": str(threads), **(more or {})},
        stdin=stdin,
        stdout=silent,
        stderr=silent,
    )


@contextmanager
def joined(meeting: str, rank: int = -1, size: int = -1) -> Iterator[ProcessGroup]:
    """Join a process group; rank 0's last message is that there is nothing more to do.

    Args:
        meeting: where they find one another, a URL of `torch.distributed`.
        rank: of this process; -1: as a launcher says.
        size: of the group; -1: as a launcher says.
    """
    import torch.distributed as dist

    if size > 0:
        os.environ.update(ONLY_HERE)
    dist.init_process_group(
        _backends(), init_method=meeting, timeout=PATIENCE, rank=rank, world_size=size
    )
    try:
        group = ProcessGroup()
        yield group
        if group.is_rank_zero:
            group.broadcast_message(END)
    finally:
        dist.destroy_process_group()


def _backends() -> str:
    """Return what carries tensors: messages lie on the processor, weights and sums on GPUs."""
    import torch
    import torch.distributed as dist

    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
