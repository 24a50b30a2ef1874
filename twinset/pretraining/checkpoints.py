"""States of a run on the disk: each whole or not there, the newest is the one to go on from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"step-(\d+)")


class Checkpoints:
    """A folder of checkpoints.

    Args:
        folder: is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def newest(self) -> tuple[Path, int] | None:
        """Return the newest, and the steps done until then."""
        return max(self._all(), key=lambda found: found[1], default=None)

    def write(self, step: int, save: Callable[[Path], object]) -> None:
        """Write one, which `save` fills, then remove those before; killed, it leaves the older."""
        new = self._folder / f".new-{step}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        save(new)
        final = self._folder / f"step-{step}"
        shutil.rmtree(final, ignore_errors=True)
        new.rename(final)
        for old, _ in self._all():
            if old != final:
                shutil.rmtree(old, ignore_errors=True)

    def _all(self) -> list[tuple[Path, int]]:
        found = [(path, _NAME.fullmatch(path.name)) for path in self._folder.iterdir()]
        return [(path, int(name[1])) for path, name in found if name]
