"""Memory that this process keeps when it is freed, because it will ask for it again."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory, and return whether it will (only glibc can be asked).

    By default it maps each large tensor anew, and the system hands over every page of it zeroed,
    which was a third of a small model's training step. What is kept is the most that was in use
    at one time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # Windows, macOS, musl
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MOST) and mallopt(_TRIM_THRESHOLD, _MOST))
