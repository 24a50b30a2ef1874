"""States of a run on the disk: each whole or not there, and what is wrong with one is named."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinset.files import atomic as manifest

KEPT = 2  # should the newest be damaged later, there is one more
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """One state.

    Args:
        folder: of its files.
        step: steps done until then.
        fault: what is wrong with it, in words; None where it can be resumed from.
    """

    folder: Path
    step: int
    fault: str | None


class Checkpoints:
    """A folder of checkpoints.

    Args:
        folder: is made with the first of them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> list[Checkpoint]:
        """Return those there are, the newest first."""
        return [Checkpoint(path, step, manifest.fault(path)) for step, path in self._found()]

    def newest(self) -> Checkpoint | None:
        """Return the newest that is whole."""
        return next((found for found in self.all() if not found.fault), None)

    def write(self, step: int, save: Callable[[Path], object]) -> None:
        """Write one, which `save` fills, and remove all but the last two; killed, it leaves those.

        Args:
            step: steps done.
            save: is given the folder to fill.
        """
        new = self._folder / f".new-{step}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        save(new)
        manifest.write_checksums(new)
        final = self._folder / f"step-{step}"
        shutil.rmtree(final, ignore_errors=True)
        new.rename(final)
        manifest.flush(self._folder)
        for _, old in self._found()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def _found(self) -> list[tuple[int, Path]]:
        """Return steps and folders, the newest first."""
        paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
        names = [(path, _NAME.fullmatch(path.name)) for path in paths]
        return sorted(((int(name[1]), path) for path, name in names if name), reverse=True)


def save_state(state: Any, path: Path) -> None:
    """Write tensors and plain values, for `torch.load` with `weights_only`.

    Raises:
        OSError: they cannot be written; torch reports a full disk by an error without a number.
    """
    import torch

    try:
        torch.save(state, path)
    except RuntimeError as error:
        raise OSError(errno.ENOSPC, "No space left on device") from error
