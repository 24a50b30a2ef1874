"""Further processes that draw groups of rows, in one `ProcessPoolExecutor`. Knows no model.

A worker loads once whatever it draws with, and ends with the process that started it: one that was
left behind would compute for nobody, and keep memory that the resumed run needs.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from time import monotonic
from types import ModuleType
from typing import Any

from twinset.files.import_path import worker_environment

Draw = Callable[[int], Any]  # number of a group → its rows

_draw: Draw | None = None  # in a worker: what it draws with
_seconds = 0.0  # in a worker: what its last group took


class RowPool:
    """Workers that draw groups.

    Args:
        executor: of the workers.
        size: how many there are.
    """

    def __init__(self, executor: ProcessPoolExecutor, size: int) -> None:
        self._executor, self.size = executor, size

    def submit(self, number: int, deadline: float | None = None) -> Future[Any]:
        """Ask for a group. Ask for no more at once than there are workers.

        Args:
            number: of the group.
            deadline: of `time.monotonic`, which all processes of a machine share; None: there is
                none.

        Returns:
            A future of what `Draw` returns, or of None if the group would have ended too late.

        Raises:
            BrokenProcessPool: a worker has ended before its time.
        """
        with _started_apart():  # the executor starts processes when something is submitted
            return self._executor.submit(_draw_group, number, deadline)


@contextmanager
def start_workers(load: Callable[[str], Draw], devices: Sequence[str]) -> Iterator[RowPool]:
    """Yield a pool with one worker for each device; none is left when the block ends.

    A block that ends by an error, by Ctrl-C or by SIGTERM does not wait: its workers end at once,
    in the middle of a group. So they do when this process is killed.

    Args:
        load: called once by each worker, with its device; must be importable by its name.
        devices: of the workers, as `device_of` takes them.

    Example:
        with start_workers(partial(load_model, folder), ["cpu"] * 3) as pool:
            futures = [pool.submit(number) for number in range(3)]
    """
    context = get_context("spawn")  # a fork would copy locks that threads of torch hold
    theirs, own = context.Pipe(duplex=False)
    places = context.SimpleQueue()
    for device in devices:
        places.put(device)
    executor = ProcessPoolExecutor(
        len(devices),
        context,
        initializer=_begin_worker,
        initargs=(theirs, places, pickle.dumps(load)),
    )
    try:
        yield RowPool(executor, len(devices))
        executor.shutdown()
    finally:
        own.close()  # workers read the other end: now they end, whatever they are doing
        executor.shutdown(cancel_futures=True)
        theirs.close()
        places.close()


@contextmanager
def _started_apart() -> Iterator[None]:
    """Start processes that run neither the caller's script again nor code of the working folder.

    The module multiprocessing has a new process import the script that the first one runs. A script
    without a guard would train a second time there, and spend ε. So it finds an empty one. One
    thread each is enough: a group's rows must not depend on how many cores there are.
    """
    main, environment = sys.modules["__main__"], dict(os.environ)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(worker_environment() | {"OMP_NUM_THREADS": "1"})
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        os.environ.clear()
        os.environ.update(environment)


def _begin_worker(parent: Connection, devices: Any, load: bytes) -> None:
    """Prepare a worker process: it says nothing, and ends when `parent` is closed.

    `load` is pickled. Unpickling it imports PyTorch, which takes seconds: by then the worker must
    be ready to end.
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


def _draw_group(number: int, deadline: float | None) -> Any:
    global _seconds
    assert _draw is not None
    if not ends_in_time(deadline, _seconds):
        return None
    began = monotonic()
    rows = _draw(number)
    _seconds = monotonic() - began
    return rows


def ends_in_time(deadline: float | None, seconds: float) -> bool:
    """Return whether a group may begin: more of it must come before the deadline than after.

    Args:
        deadline: of `time.monotonic`; None: there is none.
        seconds: that the last group took; 0: none was drawn yet.
    """
    return deadline is None or monotonic() + seconds / 2 < deadline
