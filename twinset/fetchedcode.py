"""No code from the hub: libraries that would fetch machine code when they are imported do not."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FETCHER = "kernels"  # a package; bitsandbytes, and peft that imports it, ask it for faster products


@contextmanager
def no_fetched_code() -> Iterator[None]:
    """Hide the package that fetches code from what is imported inside a block, or a function.

    Once imported so, a library does not ask again.
    """
    modules: dict[str, Any] = sys.modules
    known = {FETCHER: modules[FETCHER]} if FETCHER in modules else {}
    modules[FETCHER] = None
    logger = logging.getLogger("bitsandbytes")  # which would advise to install it
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        del modules[FETCHER]
        modules.update(known)
