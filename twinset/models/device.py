"""Which device a run computes on, in which process, with how much memory and how many threads.

Only this module names devices. All other code follows the model's device. Sampling of batches,
noise, counts and the ledger stay on the CPU, whatever computes the gradients.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinset.errors import InputError

if TYPE_CHECKING:
    import torch

AUTO, CPU, CUDA, MPS = "auto", "cpu", "cuda", "mps"
# Environment variables of launchers.
LOCAL_RANK, LOCAL_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
# Memory limits of a container: control groups of version 2, then of version 1.
CONTAINER_MEMORY = ("memory.max", "memory/memory.limit_in_bytes")
# Bytes that the rows that are written at once may take. What is free would make the rows of two
# machines differ.
ROWS_BYTES, ROWS_BYTES_GPU = 768 << 20, 8 << 30
# Rows that are written at once by default. A GPU takes about as long for many as for few.
ROWS_TOGETHER, ROWS_TOGETHER_GPU = 256, 1024
GPU_TOKENS = 16384  # tokens in one batch: a GPU waits for the start of each kernel, however small
# Settings of libraries, where the user has made none. Without the first a matrix product of a GPU
# may add in another order from one call to the next. The others say how many products of a CPU
# stay prepared. Each has memory of its own, and rows come and go, so most tokens need new ones.
LIBRARIES = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",  # 1,024 by default
    "LRU_CACHE_CAPACITY": "64",  # PyTorch's own, likewise
}
# Other work is watched for SECONDS. A second look follows BETWEEN seconds later.
SECONDS, BETWEEN = 0.5, 1.5


def device_of(asked: str = AUTO) -> torch.device:
    """Return the device that an option names.

    "auto" is a GPU if there is one, else the CPU. Each of several processes has its own GPU, chosen
    by local rank.
    """
    for name, value in LIBRARIES.items():  # read when a library first multiplies
        os.environ.setdefault(name, value)
    import torch

    if asked == MPS:
        raise InputError(
            "`device=mps`: GPUs of Apple have no float64, which the norms of gradients need. Take "
            "`device=cpu`."
        )
    if asked == CPU or (asked == AUTO and not gpus()):
        return torch.device(CPU)
    number = int(asked.partition(":")[2] or os.environ.get(LOCAL_RANK, "0"))
    if number >= gpus():
        lacks = f"there is no GPU that PyTorch {torch.__version__} can use"
        if gpus():
            lacks = f"there is no GPU number {number}, counted from 0"
        raise InputError(f"`device={asked}`: {lacks}. Take `device=cpu`.")
    return torch.device(CUDA, number)


def gpus() -> int:
    """Return how many GPUs PyTorch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_device(asked: str, processes: int) -> None:
    """Refuse a device that some process of a run lacks, before anything slow starts.

    A launcher's own number of processes overrides `processes`.

    Raises:
        InputError: the device is missing, or there are fewer GPUs than processes.
    """
    size = int(os.environ.get(LOCAL_SIZE, processes))
    if is_cpu(device_of(asked)) or size == 1:
        return
    if ":" in asked:
        raise InputError(f"`device={asked}`: is one GPU for {size} processes. Take `device=cuda`.")
    if size > gpus():
        raise InputError(
            f"there are {size} processes and {gpus()} GPUs on this machine, and each needs one. "
            "Take fewer `processes`, or `device=cpu`."
        )


def is_cpu(device: torch.device) -> bool:
    """Return whether a device is the CPU."""
    return device.type == CPU


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device has its own instructions for bfloat16 products.

    Emulated products would be slower than those in float32.
    """
    import torch

    if is_cpu(device):
        supported: bool = torch.cpu._is_avx512_bf16_supported()
        return supported
    return torch.cuda.is_bf16_supported(including_emulation=False)


def record_graph(work: Callable[[], object], device: torch.device, pool: Any = None) -> Any:
    """Record the kernels that some work starts on a GPU. `replay()` of the result repeats them.

    The work must not wait for the GPU. It must have run once before, because the first run
    allocates memory. `pool` is that of an earlier recording whose results are no longer read.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, pool):
        work()
    return graph


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished, so that a clock may be read."""
    import torch

    if device.type == CUDA:
        torch.cuda.synchronize(device)


# --- memory -------------------------------------------------------------------------------------


def total_memory() -> int:
    """Return how many bytes of memory this machine or container has, a public number.

    Free memory depends on what this process holds, and so on private texts.
    """
    import psutil

    found: int = psutil.virtual_memory().total
    for limit in CONTAINER_MEMORY:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            found = min(found, int(Path("/sys/fs/cgroup", limit).read_text()))
    return found


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error says that memory ran out, so that a smaller batch may help."""
    import torch

    # A processor's allocator and a GPU's libraries have no class of their own for it.
    said = ("allocate memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(some in str(error) for some in said)


def give_memory_back(device: torch.device) -> None:
    """Free memory that a phase no longer needs, for the next phase and for other programs.

    glibc keeps most of many small pieces, half a gigabyte after some phases of a default run.
    """
    import gc

    import torch

    gc.collect()
    if device.type == CUDA:
        torch.cuda.empty_cache()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


# --- threads ------------------------------------------------------------------------------------


@contextmanager
def on_free_cores(
    say: Callable[[str], object] = lambda line: None, is_shared: bool = False
) -> Iterator[int]:
    """Limit threads to the number of free cores inside the block, and yield that number.

    All threads wait for the slowest one at each operation. Next to one busy process, two threads on
    two cores wait for each other in turn and are several times slower than one. If other work is
    found, a second look decides, because the work may have been short. If processes have already
    shared the cores out (`is_shared`), nothing changes.
    """
    import psutil
    import torch

    own = threads = torch.get_num_threads()
    looks = 1 if own == 1 or is_shared else 3
    for look in range(1, looks):
        time.sleep(BETWEEN if look == 2 else 0)
        used = time.process_time()
        try:
            busy = psutil.cpu_percent(SECONDS, percpu=True)  # of each core, in percent
        except (OSError, NotImplementedError):  # the system does not tell
            break
        used = time.process_time() - used  # idle threads of this process may still spin
        usable = set(range(len(busy)))
        if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) <= usable:
            usable = os.sched_getaffinity(0)
        free = sum(1 - busy[core] / 100 for core in usable) + used / SECONDS
        counted = max(1, min(own, round(free)))
        threads = counted if look == 1 else max(threads, counted)
        if threads == own:
            break
    if threads < own:
        say(f"other programs use this machine: computing with {threads} of {own} threads")
    with computing_with(threads):
        yield threads


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Compute with a number of threads inside the block, and with the former number after it."""
    import torch

    own = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(own)
