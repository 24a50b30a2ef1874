"""Rows held out of a run, to judge its twin by: drawn before anything is trained, and kept apart.

For what holds of the whole table then see `twinset.privacy.statement.theorems`, HELD_OUT. They are
kept in `internal/`, and so is all that is measured with them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from twinset.files.atomic import write_json
from twinset.files.limits import read_text
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.sampling.twin_model import twin_frame
from twinset.table.read import write_frame
from twinset.table.records import Records

HELD_OUT, NUMBERS = "held-out.parquet", "held-out.json"  # in `internal/`: the rows, and which
SHARE, FROM = 0.2, 5_000  # where nobody says how many: of so many records, or owners


def share_of(asked: float | None, units: int) -> float:
    """Return which share is held out.

    >>> share_of(None, 5_000), share_of(None, 4_999), share_of(0.1, 60)
    (0.2, 0.0, 0.1)
    """
    if asked is not None:
        return asked
    return SHARE if units >= FROM else 0.0


def draw_held_out(units: int, asked: float | None) -> np.ndarray:
    """Return the rising numbers of those that are held out, of so many records, or owners.

    Each one's coin is the operating system's: a seeded one would follow its place in the table,
    and one row more would move the coins of those behind it.
    """
    share = share_of(asked, units)
    if not share:
        return np.zeros(0, np.int64)
    return next(poisson_batches(units, share, 1, Randomness.from_os()))


def held_out_line(rows: int) -> str:
    """Return what their owner should know."""
    return (
        f"holding {rows:,} rows out, to judge the twin by: nothing is trained on them; "
        "`hold_out=0` trains on all"
    )


def keep_held_out(folder: Path, held_out: Records) -> None:
    """Keep rows and their places in the table in a folder that is private to its owner."""
    frame = twin_frame(held_out.schema, held_out.texts, held_out.labels)
    write_frame(frame, folder / HELD_OUT)
    write_json(folder / NUMBERS, {"rows": held_out.rows.tolist()})


def kept_rows(folder: Path) -> list[int]:
    """Return the table's rows, from 0, that a run held out; none where it did not."""
    path = folder / NUMBERS
    found: list[int] = json.loads(read_text(path))["rows"] if path.is_file() else []
    return found
