"""The run folder: built out of sight and put in place whole.

A folder `share/` that may be handed over, `model/` that is as safe, and `internal/` that never
leaves the house. Knows paths, permissions and atomic writes; knows nothing of what is written.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from twinset.errors import InputError

# How open each part is. A file written by this module is as open as the folder it is in.
_PARTS = {"share": 0o755, "model": 0o755, "internal": 0o700}


def default_run_path(source_name: str) -> Path:
    """Return `runs/<table>-<n>` for a table's path or hub name, n the first that is free."""
    table = re.sub(r"[^\w.-]", "-", Path(source_name).name.split(".")[0]) or "table"
    n = 1
    while Path("runs", f"{table}-{n}").exists() or Path("runs", f".{table}-{n}.lock").exists():
        n += 1
    return Path("runs", f"{table}-{n}")


class RunFolder:
    """A run folder under construction, and after the `with` block the finished one.

    Attributes:
        final: where the finished folder stands.
        root: where it stands now: a hidden folder beside `final`, then `final` itself.
    """

    def __init__(self, root: Path, final: Path) -> None:
        self.root = root
        self.final = final

    @property
    def share(self) -> Path:
        """Return the part that may be handed over."""
        return self.root / "share"

    @property
    def model(self) -> Path:
        """Return the part that `twinset sample` works from."""
        return self.root / "model"

    @property
    def internal(self) -> Path:
        """Return the part that is computed from private records and stays."""
        return self.root / "internal"

    @classmethod
    @contextmanager
    def create(cls, path: str | Path, overwrite: bool = False) -> Iterator[RunFolder]:
        """Build a run folder that appears at `path` whole, or not at all.

        Everything that can be refused is refused on entry, before any training. Whatever ends the
        block early, an interrupt included, leaves no file behind and an older run untouched.

        Raises:
            InputError: the folder exists (and may not be replaced), another run is writing it, its
                parent is not writable, or the disk is full.
        """
        final = Path(path).resolve()
        with ExitStack() as stack:
            with writing(final):
                check_free(final, overwrite)
                stack.enter_context(_parents(final))
                stack.enter_context(_locked(final))
                _clear_leftovers(final)
                check_free(final, overwrite)  # again: it may hold an older run by now
                run = cls(_hidden_folder(final), final)
                stack.callback(shutil.rmtree, run.root, ignore_errors=True)
                run._make_parts()
            with room_on_disk(final):
                yield run
            with writing(final):
                run._put_in_place()

    def _make_parts(self) -> None:
        for name, mode in _PARTS.items():
            (self.root / name).mkdir()
            (self.root / name).chmod(mode)  # mkdir's own mode is subject to the umask

    def _put_in_place(self) -> None:
        replaced = _replaced(self.final)
        try:
            if self.final.exists():
                os.replace(self.final, replaced)
            os.replace(self.root, self.final)
        finally:
            _settle(replaced, self.final)
        self.root = self.final


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


def write_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file whole or not at all, and safe from a power cut.

    Args:
        path: of the file.
        text: all of it.
        mode: who may read and write it; None: whoever may its folder.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    with writing(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), _mode(path) if mode is None else mode)
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_json(path: Path, data: Any, mode: int | None = None) -> None:
    """Write indented JSON as `write_text` does; NaN and infinity, which JSON lacks, are refused."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", mode)


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


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_free(final: Path, overwrite: bool = False) -> None:
    """Refuse a place where no run folder may be made; writes nothing.

    Raises:
        InputError: it is a mount point, or something stands there that may not be replaced.
    """
    if os.path.ismount(final):
        raise InputError(f"{final}: is a mount point; give a folder inside it as --run")
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    if not _is_run(final):
        raise InputError(f"{final}: exists and is not a twinset run; choose another --run")
    if not overwrite:
        raise InputError(f"{final}: exists; --overwrite to replace it, or another --run")


def _is_run(path: Path) -> bool:
    """Tell a run from any other folder, which no option may delete."""
    return (path / "share" / "privacy.json").is_file() or all((path / p).is_dir() for p in _PARTS)


def _hidden_folder(final: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{final.name}.partial-", dir=final.parent))


def _replaced(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def _settle(replaced: Path, final: Path) -> None:
    """Put the older run back if nothing took its place, else remove it."""
    if not replaced.exists():
        return
    if final.exists():
        shutil.rmtree(replaced)
    else:
        os.replace(replaced, final)


def _clear_leftovers(final: Path) -> None:
    """Mend what a killed run left: the caller holds the lock, so no living run owns it."""
    _settle(_replaced(final), final)
    for path in final.parent.iterdir():
        if path.name.startswith(f".{final.name}.partial-"):
            shutil.rmtree(path)


@contextmanager
def _parents(final: Path) -> Iterator[None]:
    """Make the folders above `final`; on failure take away those it made."""
    missing = [folder for folder in final.parents if not folder.exists()]
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:  # innermost first
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def _locked(final: Path) -> Iterator[None]:
    """Hold the lock file beside `final`; the kernel frees it when its process dies, however."""
    path = final.with_name(f".{final.name}.lock")
    while True:
        with open(path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{final}: another run is writing it; wait for it, or choose another --run"
                ) from None
            if not _is_at(path, file.fileno()):
                continue  # its last holder removed the file between our open and our lock
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _mode(path: Path) -> int:
    return path.parent.stat().st_mode & 0o644


@contextmanager
def room_on_disk(final: Path) -> Iterator[None]:
    """Turn a full disk, whoever meets it, into one line; safetensors raises its own error type."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if number not in (errno.ENOSPC, errno.EDQUOT) and "(os error 28)" not in str(error):
            raise
        raise InputError(
            f"{final}: the disk is full; free some space or choose a --run on another disk"
        ) from error
