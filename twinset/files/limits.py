"""Limits on how much is read of a file from others. A small file could otherwise fill all memory.

Each limit is far above what any useful table, card or option file has.
"""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, cast

from twinset.errors import InputError

SMALL = 1_000_000  # bytes of a file that people write: options, a template
LARGE = 100_000_000  # bytes of a file that twinset writes: a ledger, a card, findings
MOST_COLUMNS = 2000  # of a table. A JSONL file may have others in each row.
MOST_NAME = 1000  # characters of a column's name
MOST_CELL = 10_000_000  # characters
MOST_LINE = 10 * MOST_CELL
MOST_COMBINATIONS = 10_000  # of labels: each has a prompt, a count and a share of the rows
MOST_TAGS = 1_000_000  # of the XML in an Excel file of few bytes: a cell has four
MOST_SHEET_ROWS = 2**20  # of an Excel file
MOST_ITEMS = 2_000_000  # cells of one row of text, or values in a row of JSON
MOST_REPEATED = 10_000_000  # rows, cells or items of a file that has few bytes for them
INFLATED = 2**28  # bytes that any compressed file may inflate to
RATIO = 100  # and how many times its own size a larger one may. Texts come to 3 to 10.


def read_text(path: Path, most: int = LARGE) -> str:
    """Read a UTF-8 file. One of more than `most` bytes is refused."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path}: is larger than {most // 1_000_000} MB. Is it the right file?")
    return data.decode("utf-8")


def check_names(names: Iterable[Any], source: str | Path) -> None:
    """Refuse repeated names, long names, and too many names. The message shows none of them."""
    names = list(names)
    if len(set(names)) < len(names):
        raise InputError(f"{source}: two columns have the same name. Rename one in the header.")
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{source}: has more than {MOST_COLUMNS} columns. Remove some.")
    for place, name in enumerate(names, start=1):
        if isinstance(name, str) and len(name) > MOST_NAME:
            long = f"{source}: the name of column {place} has more than {MOST_NAME} characters"
            raise InputError(f"{long}. Is the header row missing?")


def check_inflated(inflated: int, path: Path, rows: int = 0, cells: int = 0) -> None:
    """Refuse a file that expands to this many bytes, rows or cells, if that is beyond all reason.

    A cell that a file holds once, and that many rows have, counts once for each of them.
    """
    size = path.stat().st_size
    if inflated > max(INFLATED, RATIO * size):
        raise InputError(f"{path}: inflates to more than {RATIO} times its size. Save it as CSV.")
    # runs of one value take hardly any bytes
    if rows > max(MOST_REPEATED, size) or cells > most_items(path):
        counted = f"{rows} rows and {cells} cells in {size} bytes"
        raise InputError(f"{path}: has {counted}. Keep the columns that you need.")


def most_items(path: Path) -> int:
    """Return how many cells a file may have. A text of 50 times its size has no more."""
    return max(MOST_REPEATED, RATIO // 2 * path.stat().st_size)


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, decompressed if its ending says so. The caller checks how large it becomes."""
    ending = path.suffix.lower()
    if ending == ".zst":
        import pyarrow as pa

        return cast(IO[bytes], pa.input_stream(path, compression="zstd"))
    kinds: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    return cast(IO[bytes], kinds.get(ending, open)(path, "rb"))
