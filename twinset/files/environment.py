"""What a figure was measured with: command, versions, machine. Imports none of the libraries."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from typing import Any

LIBRARIES = "twinset numpy opacus pandas peft scikit-learn torch transformers".split()


def versions(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return Python's version and those of the libraries."""
    found = {"python": platform.python_version()}
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def machine() -> dict[str, Any]:
    """Return the processor's model and the number of usable cores, but not the machine's name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    models: list[str] = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model na")]
    return {"cpu": (models or [platform.processor() or platform.machine()])[0], "cores": cores}


def shell_line(*program: str) -> str:
    """Return the command line of this process, under the program's own name."""
    return shlex.join([*program, *sys.argv[1:]])
