"""An environment for each toolkit: its own Python packages, pinned, beside the results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from twinset.errors import InputError
from twinset.files.atomic import write_text
from twinset.models.assets import Say

TORCH = "torch==2.13.0"  # first and by itself, so that no toolkit chooses another build
DONE = "requirements.txt"  # in an environment, once it is whole


def environment(folder: Path, requirements: Sequence[str], say: Say) -> Path:
    """Return an environment's Python, made where it is not there yet.

    Args:
        folder: of the environment.
        requirements: as pip takes them, pinned; "-NAME" is taken away again.
        say: called before something slow begins.

    Raises:
        InputError: pip cannot install them.
    """
    python, wanted = folder / "bin" / "python", "\n".join([TORCH, *requirements]) + "\n"
    if not (folder / DONE).is_file() or (folder / DONE).read_text("utf-8") != wanted:
        say(f"making the environment {folder.name}: minutes")
        _do(sys.executable, "-m", "venv", "--clear", str(folder))
        pip = str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
        _do(*pip, TORCH)
        _do(*pip, TORCH, *(name for name in requirements if not name.startswith("-")))
        if unwanted := [name[1:] for name in requirements if name.startswith("-")]:
            _do(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *unwanted)
        write_text(folder / DONE, wanted)
    return python


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"an environment cannot be made: {last[:200]}")
