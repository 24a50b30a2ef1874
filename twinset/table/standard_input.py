"""A table from standard input, which can be read once only: kept where it can be read again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, Any

from twinset.errors import InputError

STDIN = "-"
UNNAMED = "FILE"  # in commands to paste, which cannot read it again
_OPEN_FILES = Path("/proc/self/fd")


@contextmanager
def spooled(folder: Path | None = None) -> Iterator[tuple[Path, str]]:
    """Yield a file that holds standard input, and its format: csv or json.

    The file has no name where the system allows that, and is gone with the process.

    Args:
        folder: private to its owner, where the file is made; None: where the system keeps such.

    Raises:
        InputError: there is nothing on standard input; or whatever is wrong with the table.
    """
    with _file(folder) as (file, path):
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("-: nothing comes by standard input; pipe a table in, or name a file")
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        file.seek(0)
        start = file.read(1000).lstrip(b"\xef\xbb\xbf \r\n\t\0\xff\xfe")
        try:
            yield path, "json" if start.startswith((b"{", b"[")) else "csv"
        except InputError as error:
            raise InputError(str(error).replace(str(path), "standard input")) from None


@contextmanager
def _file(folder: Path | None) -> Iterator[tuple[IO[Any], Path]]:
    if _OPEN_FILES.is_dir():
        with TemporaryFile(dir=folder) as file:
            yield file, _OPEN_FILES / str(file.fileno())
    else:
        with NamedTemporaryFile(dir=folder) as named:
            yield named, Path(named.name)
