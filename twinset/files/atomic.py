"""Files written whole or not at all, checksums, the user's cache, and signals that wait.

A file written here is as readable as its folder. Nothing here knows what files contain.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO, Any

from filelock import FileLock

from twinset.errors import DAMAGED, InputError
from twinset.files.limits import read_text

CHECKSUMS = "checksums.json"
STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def writing(path: Path, only_full_disk: bool = False) -> Iterator[None]:
    """Turn errors of the file system, or only a full disk, into an `InputError` of one line."""
    try:
        yield
    except Exception as error:
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        # safetensors raises an error of its own, with the number in its message
        is_full = is_full or "(os error 28)" in str(error)
        if not is_full and (only_full_disk or not isinstance(error, OSError)):
            raise
        reason = getattr(error, "strerror", "No space left on device") or type(error).__name__
        raise InputError(
            f"{path}: cannot be written ({reason}). Free some disk space, or choose a folder that "
            "you may write to."
        ) from error


@contextmanager
def whole_file(path: Path, mode: int | None = None) -> Iterator[IO[str]]:
    """Yield a text file that is written whole or not at all, and survives a power cut.

    It appears when the block has ended. `mode` says who may read and write it. By default it is
    everyone who may read its folder.
    """
    with writing(path):
        # in the same folder: a file is replaced in one step within one file system only
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                usual = path.parent.stat().st_mode & 0o644
                os.fchmod(file.fileno(), usual if mode is None else mode)
                os.fsync(file.fileno())  # the content is on disk before the name is
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write all of a text file, as `whole_file` does."""
    with whole_file(path, mode) as file:
        file.write(text)


def write_json(path: Path, data: Any, mode: int | None = None) -> None:
    """Write indented JSON as `write_text` does. JSON lacks NaN and infinity: they are refused."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", mode)


def append_json(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file. It is on the disk when this returns."""
    with writing(path):
        mode = path.parent.stat().st_mode & 0o644  # of a new file: an old one keeps its own
        opener = partial(os.open, mode=mode)
        with open(path, "a", encoding="utf-8", opener=opener) as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` at the end, whole or not at all."""
    with TemporaryDirectory(dir=folder.parent, prefix=".new-") as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        yield new
        if folder.exists():  # a folder that is not empty cannot be replaced in one step
            folder.rename(Path(temporary) / "old")
        new.rename(folder)


def flush(path: Path) -> None:
    """Force a file or a folder to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_as_folder(folder: Path) -> None:
    """Give files the read permissions of their folder. Libraries use modes of their own."""
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(folder.stat().st_mode & 0o644)


# -- checksums -------------------------------------------------------------------------------------


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path) -> None:
    """Write the hashes of all files of a folder. The files are then safe from a power cut."""
    names = sorted(path.name for path in folder.iterdir() if path.name != CHECKSUMS)
    for name in names:
        flush(folder / name)
    # the hashes come last: they say that everything else is there
    write_json(folder / CHECKSUMS, {name: sha256_file(folder / name) for name in names})
    flush(folder)


def has_checksums(folder: Path) -> bool:
    """Return whether all files of a folder were written."""
    return (folder / CHECKSUMS).is_file()


def fault(folder: Path) -> str | None:
    """Return what is wrong with a folder that has checksums, or None if nothing is."""
    hashes = listed(folder)
    if not hashes:
        return f"{folder.name}/{CHECKSUMS} is missing or damaged"
    for name in sorted(hashes.keys() - {CHECKSUMS}):
        path = folder / name
        if not path.is_file() or leads_away(path):
            return f"{folder.name}/{name} is missing, or a link to another folder"
        if sha256_file(path) != hashes[name]:
            return f"{folder.name}/{name} was cut off or altered"
    return None


def leads_away(path: Path) -> bool:
    """Return whether a file is a link that leaves its folder.

    The hub's cache keeps files under `blobs` and links to them under `snapshots`.
    """
    home = path.parent.resolve()
    homes = [home, home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [home]
    return not any(path.resolve().is_relative_to(each) for each in homes)


def listed(folder: Path) -> dict[str, str]:
    """Return the hashes of the files that a folder's checksums list. Their own file has none.

    If that file is missing or damaged, or lists a file of another folder, nothing is listed.
    """
    try:
        hashes = json.loads(read_text(folder / CHECKSUMS))
        is_right = all(Path(n).name == n and isinstance(h, str) for n, h in hashes.items())
        return {CHECKSUMS: "", **hashes} if is_right else {}
    except DAMAGED:
        return {}


# -- the cache, and signals ------------------------------------------------------------------------


def cache_dir() -> Path:
    """Return the user's cache folder: TWINSET_CACHE, else XDG_CACHE_HOME/twinset, else ~/.cache."""
    if own := os.environ.get("TWINSET_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "twinset"


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold the right to replace the cache's `folder`. Other processes wait."""
    root = folder.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        # the lock goes with the process, so a killed one does not block the next
        with FileLock(root / f".{folder.name}.lock"):
            yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"the cache {root} cannot be used ({reason}). Free some space or set TWINSET_CACHE."
        ) from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until after the block. Keep it short.

    Handlers belong to the main thread. In any other thread the block runs unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    previous = {
        number: signal.signal(number, lambda *call: waiting.append(call)) for number in STOPPING
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for call in waiting[:1]:  # a second signal must not disturb the clearing up
        handler = previous[signal.Signals(call[0])]
        if callable(handler):
            handler(*call)
        elif handler is signal.SIG_DFL:
            signal.raise_signal(call[0])
