"""Which rows a twin is to have: how many of each label combination, and which are drawn already."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from twinset.config import SamplingConfig
from twinset.errors import DAMAGED
from twinset.files.atomic import write_json
from twinset.privacy.statement.theorems import OWNER_UNIT
from twinset.progress import Progress
from twinset.run.plan_in_time import rows_by_length
from twinset.run.prepare import Prepared
from twinset.run.run_settings import record_rows
from twinset.sampling.allocation import (
    RowsRequest,
    proportional,
    usual_rows,
    values_without_rows,
)
from twinset.sampling.row_shards import number_of_groups
from twinset.sampling.sampler import RowGroups
from twinset.sampling.twin_model import TwinModel
from twinset.table.schema import Combination

MOST_NAMED = 5  # label values in one warning
SPEED_ONLY = ("batch_size",)  # with them rows that were drawn already may stay


def rows_by_released_length(prepared: Prepared, model: TwinModel, internal: Path) -> RowsRequest:
    """Return how many rows there are, once the model tells how long they are; a resumed run knows.

    What follows from released counts and from public facts tells nothing more of a record.
    """
    rows, speed, length = prepared.rows or RowsRequest(), prepared.speed, model.mean_length
    if rows.most is None or speed is None or length is None:
        return rows
    tokens = prepared.public_facts().longest_prompt + length
    most = rows_by_length(rows.most, usual_rows(_records(model)), prepared.plan, speed, tokens)
    rows = replace(rows, most=most)
    record_rows(internal, rows)
    return rows


def row_counts(
    model: TwinModel,
    asked: RowsRequest,
    counts: dict[Combination, int] | None,
    progress: Progress,
) -> dict[Combination, int]:
    """Return the rows of each label combination: as asked for, or in proportion to records."""
    if counts:
        return counts
    usual = usual_rows(_records(model))
    rows = asked.rows or min(usual, asked.most or usual)
    shared_out = proportional(model.label_counts, rows)
    if without := list(values_without_rows(model.schema, shared_out)):
        progress.warn(
            f"no row has {', '.join(without[:MOST_NAMED])}{', …' * (len(without) > MOST_NAMED)}: "
            f"by noisy counts, too few records for one of {rows:,} rows; `rows_per_label` asks for "
            "some all the same"
        )
    return shared_out


def _records(model: TwinModel) -> int:
    """Return how many records there are; of owners, how many were counted, with noise."""
    if model.ledger.unit != OWNER_UNIT:
        return model.ledger.records
    return max(1, round(sum(model.label_counts.values())))


def drawn_rows(folder: Path, sampling: SamplingConfig, counts: dict[Combination, int]) -> RowGroups:
    """Return the rows that were drawn before; those drawn with other settings are removed."""
    drawn_with = {
        "sampling": {k: v for k, v in asdict(sampling).items() if k not in SPEED_ONLY},
        "counts": [[list(combination), rows] for combination, rows in counts.items()],
        "groups": number_of_groups(sum(counts.values())),
    }
    path = folder / "drawn-with.json"
    with suppress(*DAMAGED):
        if json.loads(path.read_text("utf-8")) == json.loads(json.dumps(drawn_with)):
            return RowGroups(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(path, drawn_with)
    return RowGroups(folder)
