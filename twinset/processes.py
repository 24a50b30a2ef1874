"""Starting and ending the processes of a team, on this machine or under a launcher.

They find one another through a file in a folder of the user's own, and talk over the loopback.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from twinset.errors import InputError
from twinset.team import END, Team

LOOPBACK = "lo"
PATIENCE = timedelta(hours=12)  # the leader may write a checkpoint, or ask nothing, for long
ENDING = 20.0  # seconds, for a process whose connections are closed


@contextmanager
def team_of(count: int) -> Iterator[Team | None]:
    """Start `count` - 1 more processes and yield the team; None where this one is alone.

    Under `accelerate launch` or `torchrun` the processes are there already, `count` is not looked
    at, and those that are led are to call `twinset.worker.serve`.

    Raises:
        InputError: sharded training was asked for, or a process ended before its time.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise InputError(
            "exact clipping needs whole parameters on each device: FSDP is not supported; leave it "
            "out of the launcher's configuration, and train adapters (--method lora, or "
            "qlora, which keeps the model in four bits once it is loaded)"
        )
    if _launched() > 1:
        with joined("env://") as team:
            yield team
    elif count == 1:
        yield None
    else:
        with _started(count) as team:
            yield team


def is_led() -> bool:
    """Tell whether a launcher started this process to follow another."""
    return _launched() > 1 and os.environ.get("RANK", "0") != "0"


def team_size(count: int) -> int:
    """Return how many processes `team_of` would have."""
    launched = _launched()
    return launched if launched > 1 else count


def _launched() -> int:
    """Return how many processes a launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def _started(count: int) -> Iterator[Team]:
    import torch

    threads = max(1, (os.cpu_count() or 1) // count)
    own = torch.get_num_threads()
    with TemporaryDirectory(prefix="twinset-team-") as folder:
        meeting = str(Path(folder, "meeting"))
        others = [_start(meeting, rank, count, threads) for rank in range(1, count)]
        try:
            torch.set_num_threads(threads)
            with joined(f"file://{meeting}", 0, count) as team:
                yield team
        except RuntimeError as error:
            if any(map(_has_failed, others)):
                raise InputError(
                    "one of the processes ended before its time, perhaps out of memory; "
                    "take fewer --processes"
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
    command = [sys.executable, "-m", "twinset.worker", meeting, str(rank), str(count)]
    home = str(Path(__file__).resolve().parent.parent)
    paths = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    more = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": LOOPBACK}
    silent = subprocess.DEVNULL  # what goes wrong there is told here
    return subprocess.Popen(
        command, env=os.environ | more, stdin=silent, stdout=silent, stderr=silent
    )


@contextmanager
def joined(meeting: str, rank: int = -1, size: int = -1) -> Iterator[Team]:
    """Join a group of processes; the leader's last word is that there is nothing more to do.

    Args:
        meeting: where they find one another, a URL of `torch.distributed`.
        rank: of this process; -1: as a launcher says.
        size: of the group; -1: as a launcher says.
    """
    import torch.distributed as dist

    if size > 0:
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    dist.init_process_group(
        "gloo", init_method=meeting, timeout=PATIENCE, rank=rank, world_size=size
    )
    try:
        team = Team()
        yield team
        if team.leads:
            team.tell(END)
    finally:
        dist.destroy_process_group()
