"""Files that are written whole or not at all, as open as their folder. Knows nothing of content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from twinset.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into one line.

    Raises:
        InputError: any `OSError` of the block.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or type(error).__name__}); free some disk"
            " space or choose a folder you may write to"
        ) from error


@contextmanager
def whole_file(path: Path, mode: int | None = None) -> Iterator[IO[str]]:
    """Yield a text file that is written whole or not at all, and safe from a power cut.

    Args:
        path: of the file, which appears when the block has ended.
        mode: who may read and write it; None: whoever may its folder.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    with writing(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), _mode(path) if mode is None else mode)
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write all of a text file; see `whole_file`."""
    with whole_file(path, mode) as file:
        file.write(text)


def write_json(path: Path, data: Any, mode: int | None = None) -> None:
    """Write indented JSON as `write_text` does; NaN and infinity, which JSON lacks, are refused."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", mode)


def open_as_folder(folder: Path) -> None:
    """Let whoever may read a folder read its files: libraries give them modes of their own."""
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(_mode(path))


def synced(folder: Path) -> None:
    """Wait until the files of a folder are safe from a power cut."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


class JsonLines:
    """A file of one JSON object a line; every line is on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line."""
        with writing(self.path):
            mode = _mode(self.path)
            with open(
                self.path, "a", encoding="utf-8", opener=lambda p, f: os.open(p, f, mode)
            ) as f:
                f.write(json.dumps(row, ensure_ascii=False) + "\n")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` at the end, whole or not at all."""
    with TemporaryDirectory(dir=folder.parent, prefix=".new-") as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(Path(temporary) / "old")
        new.rename(folder)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mode(path: Path) -> int:
    return path.parent.stat().st_mode & 0o644


@contextmanager
def naming_full_disk(final: Path) -> Iterator[None]:
    """Turn a full disk, whoever meets it, into one line; safetensors raises its own error type."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in (errno.ENOSPC, errno.EDQUOT) and "(os error 28)" not in str(error):
            raise
        raise InputError(
            f"{final}: the disk is full; free some space or choose a `run` on another disk"
        ) from error
