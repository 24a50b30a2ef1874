"""Signals that wait: what a stop must not cut in two is finished first. Knows only signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM take effect after the block; keep it short.

    Handlers belong to the main thread: in any other the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    previous = {
        number: signal.signal(number, lambda *call: waiting.append(call)) for number in STOPPING
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for call in waiting[:1]:
        handler = previous[signal.Signals(call[0])]
        if callable(handler):
            handler(*call)
        elif handler is signal.SIG_DFL:
            signal.raise_signal(call[0])
