"""Files of plain text as lines: one line is one record. Knows no word and no model."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from twinset.errors import InputError
from twinset.formats import read_frame

PLAIN = (".txt", ".txt.gz")
COLUMN = "text"
_DRAW = 0  # seed of which lines are taken: the same for all rows


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, or of the column `text` of a table; blank ones left out.

    Raises:
        InputError: it is absent, unreadable, no UTF-8, or holds no such column or no text.
    """
    text = _plain(path) if path.name.endswith(PLAIN) else _column(path)
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise InputError(f"{path}: holds no text; name another file")
    return lines


def drawn(lines: list[str], most: int | None) -> list[str]:
    """Return at most so many lines, drawn at random, in the order of the file; None: all."""
    if most is None or most >= len(lines):
        return lines
    taken = np.random.default_rng(_DRAW).permutation(len(lines))[:most]
    return [lines[i] for i in sorted(taken)]


def _plain(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path}: the gzip data is damaged or cut off; copy it again") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8; convert it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None


def _column(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; check the path")
    frame = read_frame(path)
    if COLUMN not in frame:
        raise InputError(f"{path}: has no column {COLUMN!r}; rename one, or name a .txt file")
    return "\n".join(map(str, frame[COLUMN]))
