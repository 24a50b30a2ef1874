"""On which device a run computes. The one module that names devices: all else follows the model's.

Draws, noise, counts and the ledger stay on the processor, whatever computes the gradients.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.errors import InputError

if TYPE_CHECKING:
    import torch

AUTO, CPU, CUDA, MPS = "auto", "cpu", "cuda", "mps"
LOCAL_RANK, LOCAL_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"  # of a process, as launchers call it
CONTAINER_MEMORY = (  # limit and use, by control groups of version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
GPU_TOKENS = 16384  # at once: a GPU waits for the start of each kernel, however small it is
# Else a matrix product may add in another order from one call to the next.
REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def device_of(asked: str = AUTO) -> torch.device:
    """Return the device that an option names; of several processes each has a GPU of its own.

    Args:
        asked: auto (a GPU where there is one, else the processor), cpu, cuda, cuda:N or mps.

    Raises:
        InputError: it is not there, or cannot train.
    """
    import torch

    if asked == MPS:
        raise InputError(
            "`device=mps`: GPUs of Apple have no float64, in which norms of gradients are added "
            "up; take `device=cpu`"
        )
    if asked == CPU or (asked == AUTO and not gpus()):
        return torch.device(CPU)
    number = int(asked.partition(":")[2] or os.environ.get(LOCAL_RANK, "0"))
    if number >= gpus():
        raise InputError(f"`device={asked}`: {_lacks(number)}; take `device=cpu`")
    os.environ.update(REPEATABLE | os.environ)
    return torch.device(CUDA, number)


def gpus() -> int:
    """Return how many GPUs there are that PyTorch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _lacks(number: int) -> str:
    import torch

    if gpus():
        return f"there is no GPU number {number}, counted from 0"
    return f"there is no GPU that PyTorch {torch.__version__} can use"


def check_device(asked: str, processes: int) -> None:
    """Refuse, before anything slow, a device that is not there for each of a run's processes.

    Args:
        asked: see `device_of`.
        processes: of the run, unless a launcher has started them.

    Raises:
        InputError: so it is.
    """
    size = int(os.environ.get(LOCAL_SIZE, processes))
    if is_cpu(device_of(asked)) or size == 1:
        return
    if ":" in asked:
        raise InputError(f"`device={asked}`: is one GPU for {size} processes; take `device=cuda`")
    if size > gpus():
        raise InputError(
            f"there are {size} processes and {gpus()} GPUs on this machine, and each needs one; "
            "take fewer `processes`, or `device=cpu`"
        )


def is_cpu(device: torch.device) -> bool:
    """Return whether it is the processor."""
    return device.type == CPU


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies in bfloat16, and fast."""
    import torch

    if is_cpu(device):
        supported: bool = torch.cpu._is_avx512_bf16_supported()
        return supported
    return torch.cuda.is_bf16_supported(including_emulation=False)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was given, so that a clock may be read."""
    import torch

    if device.type == CUDA:
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> float:
    """Return the most gigabytes that this process has held there."""
    import resource
    import sys

    import torch

    if device.type == CUDA:
        return torch.cuda.max_memory_allocated(device) / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in kilobytes, on macOS bytes
    return peak / (1e9 if sys.platform == "darwin" else 1e6)


def free_memory() -> float:
    """Return how many gigabytes this machine, or this container of it, has left."""
    import psutil

    found = psutil.virtual_memory().available
    for most, used in CONTAINER_MEMORY:
        with suppress(OSError, ValueError):  # there is none, or without a limit
            found = min(found, int(Path(most).read_text()) - int(Path(used).read_text()))
    return max(0, found) / 1e9


def has_graphs(device: torch.device) -> bool:
    """Return whether what a device did can be recorded and done again at one call."""
    import torch

    return device.type == CUDA and torch.cuda.is_available()


def recorded(work: Callable[[], object], device: torch.device, pool: Any = None) -> Any:
    """Have a GPU note what it is asked to do, and return what does it at each `replay()`.

    Args:
        work: is called once; the GPU has done the same before.
        device: the GPU.
        pool: `pool()` of an earlier recording, whose results are no longer read; None: its own.

    Raises:
        RuntimeError: the work waits for the GPU in between.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, pool):
        work()
    return graph


def memory_for_rows(device: torch.device) -> int:
    """Return how many bytes rows may take while they are written, whatever machine it is.

    A number that follows from what is free would make the rows of two machines differ.
    """
    return (1 if is_cpu(device) else 8) << 30


def give_memory_back(device: torch.device) -> None:
    """Give what a phase of a run has left free back to the system, for others and the next phase.

    A C library that keeps freed memory keeps it in pieces, too small for what comes next.
    """
    import ctypes
    import gc

    import torch

    gc.collect()
    if device.type == CUDA:
        torch.cuda.empty_cache()
    with suppress(OSError, TypeError, AttributeError):  # only glibc can be asked
        ctypes.CDLL(None).malloc_trim(0)


def device_name(device: torch.device) -> str:
    """Return what its maker calls a GPU; of the processor nothing is known here."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == CUDA else device.type


def unique_name(device: torch.device) -> str:
    """Return what its maker's tools call one GPU of several."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
