"""Worker processes that draw groups of rows. Knows no model and no PyTorch.

A worker imports this module first. It must be able to end before it imports anything heavy.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from time import monotonic
from types import ModuleType
from typing import Any

from twinset.files.import_path import safe_environment

Draw = Callable[[int], Any]  # number of a group → its rows
# Number of a group, latest moment to begin → its rows, or None if it is too late.
Worker = Callable[[int, float], Any]

_draw: Draw | None = None  # in a worker: the function that draws


@contextmanager
def start_workers(load: Callable[[str], Draw], devices: Sequence[str]) -> Iterator[list[Worker]]:
    """Yield one worker for each device. All of them have ended when the block ends.

    If the block ends by an error, by Ctrl-C or by SIGTERM, its workers end at once, in the middle
    of a group. They also end if this process is killed. A worker that survived would compute for no
    purpose, and keep memory that the resumed run needs.

    `load` is called once by each worker, with its device. It must be importable by its name.
    """
    context = get_context("spawn")  # a fork would copy locks that threads of torch hold
    theirs, own = context.Pipe(duplex=False)
    places = context.SimpleQueue()
    executor = ProcessPoolExecutor(
        len(devices),
        context,
        initializer=_begin_worker,
        initargs=(theirs, places, pickle.dumps(load)),
    )

    def draw(number: int, latest: float) -> Any:
        return executor.submit(_draw_group, number, latest).result()

    # multiprocessing has a new process import the script that the first one runs. A script without
    # a guard would train a second time there, and spend ε. So it finds an empty one. It imports no
    # code of the working folder. One thread each is enough, see the top.
    main, environment = sys.modules["__main__"], dict(os.environ)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(safe_environment(finds_twinset=True) | {"OMP_NUM_THREADS": "1"})
    try:
        # The executor starts a process for each task while no process is idle. A process is not
        # idle before it has a device, so all are started here.
        with suppress(BrokenProcessPool):
            for _ in devices:
                executor.submit(int)
    finally:
        sys.modules["__main__"] = main
        os.environ.clear()
        os.environ.update(environment)
    try:
        for device in devices:
            places.put(device)
        yield [draw] * len(devices)
        executor.shutdown()
    finally:
        own.close()  # workers read the other end: now they end, whatever they are doing
        executor.shutdown(cancel_futures=True)
        theirs.close()
        places.close()


def _begin_worker(parent: Connection, devices: Any, load: bytes) -> None:
    """Prepare a worker process. It prints nothing, and ends when `parent` is closed.

    `load` is pickled, because unpickling it imports PyTorch, which takes seconds. By then the
    worker must be able to end.
    """
    global _draw
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which closes the pipe

    def end_with_parent() -> None:
        try:
            parent.recv()
        except (EOFError, OSError):
            os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what goes wrong here is reported by the parent, which has a console
        os.dup2(silence, stream)
    _draw = pickle.loads(load)(devices.get())


def _draw_group(number: int, latest: float) -> Any:
    assert _draw is not None
    return _draw(number) if monotonic() < latest else None
