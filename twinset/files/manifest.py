"""A folder's checksum manifest: damage is found and named. Knows no content."""

from __future__ import annotations

import json
import os
from pathlib import Path

from twinset.files.atomic import sha256_file, write_json
from twinset.files.limits import read_text

CHECKSUMS = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Write the hashes of all files of a folder, which are safe from a power cut then."""
    names = sorted(path.name for path in folder.iterdir() if path.name != CHECKSUMS)
    for name in names:
        flush(folder / name)
    write_json(folder / CHECKSUMS, {name: sha256_file(folder / name) for name in names})
    flush(folder)


def has_checksums(folder: Path) -> bool:
    """Return whether all files of a folder were written."""
    return (folder / CHECKSUMS).is_file()


def fault(folder: Path) -> str | None:
    """Return what is wrong with a folder that has checksums, None where nothing is."""
    try:
        hashes = _hashes(folder)
    except (OSError, ValueError, TypeError):
        return f"{folder.name}/{CHECKSUMS} is missing or damaged"
    for name in sorted(hashes):
        path = folder / name
        if not path.is_file():
            return f"{folder.name}/{name} is missing"
        if sha256_file(path) != hashes[name]:
            return f"{folder.name}/{name} was cut off or altered"
    return None


def listed(folder: Path) -> set[str]:
    """Return the names of the files that a folder's checksums are of, and of theirs."""
    try:
        return {CHECKSUMS, *_hashes(folder)}
    except (OSError, ValueError, TypeError):
        return set()


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hashes by file; raises OSError, ValueError or TypeError where there are none."""
    return dict(json.loads(read_text(folder / CHECKSUMS)))


def flush(path: Path) -> None:
    """Have the disk write a file or a folder now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
