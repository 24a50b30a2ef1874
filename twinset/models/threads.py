"""With how many threads a run computes: as many as there are cores that other work leaves free.

All threads wait for the slowest one at each operation. Beside one busy process two threads on two
cores take turns at waiting, and are several times slower than one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SECONDS, BETWEEN = 0.5, 1.5  # for which other work is looked at, and between two looks


@contextmanager
def on_free_cores(say: Callable[[str], object] = lambda line: None) -> Iterator[int]:
    """Compute with no more threads than there are free cores, and then with as many as before.

    Args:
        say: is told where there are fewer.

    Yields:
        How many threads there are.
    """
    threads = free_threads(say)
    with computing_with(threads):
        yield threads


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Compute with so many threads, and then with as many as before."""
    import torch

    own = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(own)


def free_threads(say: Callable[[str], object] = lambda line: None) -> int:
    """Return how many of this process's threads have a core that other work leaves free.

    Two looks count where the first one finds other work: it may have been a moment's. Of several
    processes, whose threads share the cores out, each keeps its own.

    Args:
        say: is told where there are fewer than there were.
    """
    import torch

    own = torch.get_num_threads()
    if own == 1 or _has_others():
        return own
    threads = _free_of(own)
    if threads < own:
        time.sleep(BETWEEN)
        threads = max(threads, _free_of(own))
    if threads < own:
        say(f"other work has cores of this machine: computing with {threads} of {own} threads")
    return threads


def _free_of(own: int) -> int:
    return max(1, min(own, round(_free_cores(own))))


def _has_others() -> bool:
    """Return whether this is one process of a group."""
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _free_cores(supposed: int) -> float:
    """Return how many cores' worth of time other work leaves, of those that may be used.

    Args:
        supposed: how many there are where the system does not tell.
    """
    import psutil

    own = time.process_time()  # of threads that still turn while they wait
    with suppress(OSError, NotImplementedError):
        busy = psutil.cpu_percent(SECONDS, percpu=True)
        own = time.process_time() - own
        usable = set(range(len(busy)))
        if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) <= usable:
            usable = os.sched_getaffinity(0)
        return sum(1 - busy[core] / 100 for core in usable) + own / SECONDS
    return supposed
