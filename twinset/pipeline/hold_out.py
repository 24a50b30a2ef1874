"""Rows held out of a run, to judge its twin by: drawn before anything is trained, and kept apart.

For what holds of the whole table then see `twinset.privacy.statement.theorems`, HELD_OUT. They are
kept in `internal/`, and so is all that is measured with them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from twinset.config import RunConfig
from twinset.data.formats import write_frame
from twinset.data.lazy_columns import Labels, Texts
from twinset.data.records import Records
from twinset.errors import InputError
from twinset.files.atomic import write_json
from twinset.files.limits import read_text
from twinset.privacy.mechanism.poisson import poisson_batches
from twinset.privacy.mechanism.randomness import Randomness
from twinset.sampling.twin_model import twin_frame

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


def draw_held_out(records: Records, config: RunConfig, asked: float | None) -> list[int]:
    """Return rising numbers of the table's rows that are held out: of an owner's all or none.

    Each unit's coin is the operating system's: a seeded one would follow its place in the table,
    and one row more would move the coins of those behind it.
    """
    units = records.units(config)
    share = share_of(asked, len(units))
    if not share:
        return []
    chosen = next(poisson_batches(len(units), share, 1, Randomness.from_os()))
    numbers = chosen if records.owners is None else np.flatnonzero(np.isin(records.owners, chosen))
    rows: list[int] = _texts(records).rows[numbers].tolist()
    return rows


def split(records: Records, rows: Sequence[int]) -> tuple[Records, Records | None]:
    """Return the records in other rows of the table than these, and those in these; None: none."""
    if not rows:
        return records, None
    is_held = np.isin(_texts(records).rows, rows)
    if is_held.all():
        raise InputError("`hold_out` leaves no row to train on; make it smaller, or 0")
    return _part(records, ~is_held), _part(records, is_held)


def _part(records: Records, chosen: np.ndarray) -> Records:
    """Return some of the records, under the schema of all."""
    places, labels, owners = np.flatnonzero(chosen), records.labels, records.owners
    assert isinstance(labels, Labels)
    return replace(
        records,
        texts=_texts(records).some(places),
        labels=Labels(labels.numbers[places], labels.known),
        owners=None if owners is None else np.unique(owners[places], return_inverse=True)[1],
    )


def _texts(records: Records) -> Texts:
    assert isinstance(records.texts, Texts)
    return records.texts


def held_out_line(held_out: Records) -> str:
    """Return what its owner should know."""
    return (
        f"holding {len(held_out):,} rows out, to judge the twin by: nothing is trained on them; "
        "`hold_out=0` trains on all"
    )


def keep_held_out(folder: Path, held_out: Records) -> None:
    """Keep rows and their places in the table in a folder that is private to its owner."""
    frame = twin_frame(held_out.schema, held_out.texts, held_out.labels)
    write_frame(frame, folder / HELD_OUT)
    write_json(folder / NUMBERS, {"rows": _texts(held_out).rows.tolist()})


def kept_rows(folder: Path) -> list[int]:
    """Return the table's rows, from 0, that a run held out; none where it did not."""
    path = folder / NUMBERS
    found: list[int] = json.loads(read_text(path))["rows"] if path.is_file() else []
    return found
