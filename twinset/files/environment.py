"""What a figure was measured with: command, versions, machine; imports nothing of what they are."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib import metadata
from typing import Any

from twinset.files.import_path import is_command

LIBRARIES = (
    "twinset numpy opacus pandas peft scikit-learn torch transformers".split()  # alphabetical
)


def versions(libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Return Python's version and those of the libraries."""
    return {"python": platform.python_version()} | {name: _version(name) for name in libraries}


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def machine() -> dict[str, Any]:
    """Return the processor's model and the number of cores at hand; no name of the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu_model(), "cores": cores}


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line.partition(":")[2].strip() for line in file if line.startswith("model na")]
    except OSError:
        lines = []
    return lines[0] if lines else platform.processor() or platform.machine()


def run_line(*without: str) -> str:
    """Return the line that makes the run that this command plans or makes; "" in other programs.

    Args:
        without: options that are left out, with their values, named as parameters.
    """
    name, *words = [*sys.argv[1:], ""]
    named = any(word.startswith("--records") for word in words)  # there is no table yet
    if not is_command() or name not in ("generate", "finetune", "plan") or named:
        return ""
    rest = ["FILE" if w == "-" else w for w in words if w not in ("", "--dry-run", "--json")]
    kept = _without(rest, without)
    return shlex.join(["twinset", "generate" if name == "plan" else name, *kept])


def _without(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Leave options out of a command line, and the value that follows each or stands in it.

    >>> _without(["t.csv", "--steps", "4", "--rows=9", "--seed", "1"], ["steps", "rows"])
    ['t.csv', '--seed', '1']
    """
    flags = {f"--{name.replace('_', '-')}" for name in options}
    before = ["", *words]
    return [
        word
        for last, word in zip(before, words, strict=False)
        if last not in flags and word.partition("=")[0] not in flags
    ]


def shell_line(*program: str) -> str:
    """Return the line that a shell would run again, of a program that goes by this name."""
    return shlex.join([*program, *sys.argv[1:]])
