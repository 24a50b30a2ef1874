"""The user's cache folder, and who may write to it. Knows nothing of what is kept there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from twinset.errors import InputError


def cache_dir() -> Path:
    """Return the user's cache folder: TWINSET_CACHE, else XDG_CACHE_HOME/twinset, else ~/.cache."""
    if own := os.environ.get("TWINSET_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "twinset"


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold the right to replace the cache's `folder`; other processes wait.

    Raises:
        InputError: the cache cannot be written, now or during the block.
    """
    root = folder.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{folder.name}.lock"):
            yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"the cache folder {root} cannot be used ({reason}); "
            "free some space or set TWINSET_CACHE to another folder"
        ) from error
