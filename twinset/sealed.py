"""A folder with the hashes of its files, so that damage is found and named. Knows no content."""

from __future__ import annotations

import json
import os
from pathlib import Path

from twinset.artefact import sha256_file, write_json

SEAL = "seal.json"


def seal(folder: Path) -> None:
    """Write the hashes of all files of a folder, which are safe from a power cut then."""
    names = sorted(path.name for path in folder.iterdir() if path.name != SEAL)
    for name in names:
        flush(folder / name)
    write_json(folder / SEAL, {name: sha256_file(folder / name) for name in names})
    flush(folder)


def is_sealed(folder: Path) -> bool:
    """Tell whether all files of a folder were written."""
    return (folder / SEAL).is_file()


def fault(folder: Path) -> str | None:
    """Return what is wrong with a sealed folder, None where nothing is."""
    try:
        hashes = json.loads((folder / SEAL).read_text("utf-8"))
        names = sorted(hashes)
    except (OSError, ValueError, TypeError):
        return f"{folder.name}/{SEAL} is missing or damaged"
    for name in names:
        path = folder / name
        if not path.is_file():
            return f"{folder.name}/{name} is missing"
        if sha256_file(path) != hashes[name]:
            return f"{folder.name}/{name} was cut off or altered"
    return None


def flush(path: Path) -> None:
    """Have the disk write a file or a folder now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
