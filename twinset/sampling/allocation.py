"""How many rows each label combination of the twin gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from twinset.bounds import check_number
from twinset.config import ROWS
from twinset.errors import InputError
from twinset.privacy.mechanism.counts import proportional_rows
from twinset.privacy.statement.theorems import OWNER_UNIT
from twinset.progress import Progress
from twinset.table.columns import facts_of
from twinset.table.labels import label_codes, spelled_labels
from twinset.table.read import read_frame
from twinset.table.schema import Combination, Schema, plain, read_line, written_line

if TYPE_CHECKING:
    from twinset.sampling.column_model import ColumnModel
    from twinset.sampling.twin_model import TwinModel

ROWS_COLUMN = "rows"
LONGEST_NUMBER = 12  # digits
MOST_LISTED = 20  # labels in a message
MOST_NAMED = 5  # label values in one warning
FEWEST_ROWS, MOST_ROWS = 3000, 1_000_000  # by default


@dataclass(frozen=True)
class RowsRequest:
    """How many rows the twin gets, by at most one of three options. Without any: `usual_rows`."""

    rows: int | None = None  # in all, in the proportions of the noisy label counts
    per_label: tuple[str, ...] = ()  # "500", or "positive=500" for each label wanted
    plan_file: str | None = None  # a table of label columns and a column `rows`
    where: tuple[str, ...] = ()  # "COLUMN=VALUE", of all rows

    def __post_init__(self) -> None:
        """Refuse more than one of the three options, and numbers that are none."""
        if (self.rows is not None) + bool(self.per_label) + (self.plan_file is not None) > 1:
            raise InputError("give only one of `rows`, `rows_per_label` and `plan_file`")
        if self.rows is not None:
            check_number("`rows`", self.rows, ROWS, is_whole=True)
        labels = [one.rpartition("=")[0] for one in self.per_label]
        if len(labels) > 1 and ("" in labels or len(set(labels)) < len(labels)):
            raise InputError("`rows_per_label`: give one number, or LABEL=N once for each label")
        if self.per_label:
            check_sum(map(read_option, self.per_label))
        for one in self.where:
            if not one.partition("=")[1] or one.startswith("="):
                raise InputError(f"`where={one[:60]}`: unclear. Write COLUMN=VALUE.")

    def check_plan(self, labels: Sequence[str]) -> None:
        """Refuse a plan file that does not fit label columns, whatever their values. None: any."""
        if self.plan_file is not None and labels:
            read_plan(self, labels)

    @cached_property
    def plan(self) -> pd.DataFrame:
        """The plan file as it is. Standard input can be read only once."""
        assert self.plan_file is not None
        return read_frame(self.plan_file)

    @property
    def conditions(self) -> dict[str, str | None | list[str | None]]:
        """The values that rows must have, by column. None stands for a gap.

        >>> RowsRequest(where=("age=18:30", "city=York", "city=Hull", "size=")).conditions
        {'age': '18:30', 'city': ['York', 'Hull'], 'size': None}
        """
        found: dict[str, list[str | None]] = {}
        for one in self.where:
            name, _, value = one.partition("=")
            found.setdefault(name, []).append(value or None)
        return {name: each if len(each) > 1 else each[0] for name, each in found.items()}


def usual_rows(records: int) -> int:
    """Return the default number of rows for a twin of `records`, which is a public number.

    More rows only cost time, and a classifier learns more from them (tuning.md).

    >>> usual_rows(50), usual_rows(5000), usual_rows(10**18)
    (3000, 10000, 1000000)
    """
    return min(max(2 * records, FEWEST_ROWS), MOST_ROWS)


def explicit(schema: Schema, request: RowsRequest) -> dict[Combination, int] | None:
    """Return the rows requested for each label, or None to share them out in proportion.

    `per_label` is "500" for each combination, or "positive=500", "positive,dvd=500". A value with a
    comma is put in double quotes, as in CSV, if it could be read as two. `plan_file` has the
    attributes' columns and a column `rows`.

    Raises:
        InputError: the table has no such label, a number is invalid, a column is missing, or no
            row is requested.
    """
    asked: list[tuple[Combination, int]] = []
    known, each = schema.spelled, request.per_label
    listed = ", ".join(map(written_line, list(schema.combinations)[:MOST_LISTED]))
    if request.plan_file is not None:
        asked = [line[:2] for line in plan_lines(schema, request)]
    elif len(each) == 1 and "=" not in each[0]:
        asked = [(combination, read_option(each[0])) for combination in schema.combinations]
    elif each:
        for one in each:
            label = one.rpartition("=")[0]
            meant = [c for c in schema.combinations if ",".join(map(plain, c)) == label]
            with suppress(ValueError):  # it is no line of CSV
                if found := known.get(tuple(read_line(label))):
                    meant = [found]
            refused = f"`rows_per_label={one}`: "
            if len(meant) > 1:
                raise InputError(
                    f"{refused}several labels read {label!r}. Put values with a comma in "
                    f"double quotes: {listed}."
                )
            if not meant:
                raise InputError(f"{refused}there is no label {label!r}. The table has {listed}.")
            if any(meant[0] == other for other, *_ in asked):
                raise InputError(f"{refused}this label was given before. Give it once.")
            asked.append((meant[0], read_option(one)))
    else:
        return None
    return add_up(schema, asked)


def read_plan(
    request: RowsRequest, labels: Sequence[str], columns: Sequence[str] = ()
) -> pd.DataFrame:
    """Return a plan file's lines, with label columns, `rows`, and any of other `columns`.

    Empty lines are left out. This is checked before ε is spent on the values of labels.

    Raises:
        InputError: a column is missing or unknown, or a line has no label or number of rows.
    """
    path, frame = request.plan_file, request.plan
    frame = frame[frame.notna().any(axis=1)]
    if frame.empty:
        raise InputError(f"{path}: has no lines. Write one for each label, with its rows.")
    for name in (*labels, ROWS_COLUMN):
        if name not in frame.columns:
            raise InputError(f"{path}: has no column {name!r}. Add it.")
    if unknown := [n for n in frame.columns if n not in (*labels, ROWS_COLUMN, *columns)]:
        raise InputError(
            f"{path}: column {unknown[0]!r} is no label column. Remove it. Once there is a model, "
            "`twinset sample RUN` takes other columns in a plan file, too."
            if not columns
            else f"{path}: there is no column {unknown[0]!r}. The model has {', '.join(columns)}."
        )
    row_name = facts_of(frame).rows.name
    for name in labels:
        codes = label_codes(frame[name], f"{path}: column {name!r}", True, may_mix=True)
        for index, code in zip(frame.index, codes.numbers, strict=True):
            if code < 0:
                raise InputError(f"{path}, {row_name(index)}: has no label. Fill it in.")
    rows = [read_number(cell, f"{row_name(i)} of {path}") for i, cell in frame[ROWS_COLUMN].items()]
    check_sum(rows)
    return frame.assign(**{ROWS_COLUMN: rows})


def plan_lines(
    schema: Schema, request: RowsRequest, columns: Sequence[str] = ()
) -> list[tuple[Combination, int, dict[str, object], str]]:
    """Return for each line of a plan file its label, number of rows, other conditions and place.

    An empty cell of another column asks for nothing.

    Raises:
        InputError: as `read_plan`, or the table has no such label.
    """
    names, path = [attribute.name for attribute in schema.attributes], str(request.plan_file)
    frame, known, lines = read_plan(request, names, columns), schema.spelled, []
    labels = [spelled_labels(frame[a.name], a, path) for a in schema.attributes]
    filled = frame[[name for name in frame.columns if name in columns]].notna()
    for index, row, *own in zip(frame.index, frame[ROWS_COLUMN], *labels, strict=True):
        key, line = tuple(label or "" for label in own), facts_of(frame).rows.name(index)
        if "" in key:
            fault = "has a number that may be several labels. Write it as text"
            raise InputError(f"{path}, {line}: {fault}.")
        if key not in known:
            listed = ", ".join(map(written_line, list(schema.combinations)[:MOST_LISTED]))
            raise InputError(
                f"{path}, {line}: there is no label {','.join(key)!r}. The table has {listed}."
            )
        cells = {name: frame.at[index, name] for name in filled if filled.at[index, name]}
        where = {name: cell for name, cell in cells.items() if str(cell).strip()}
        lines.append((known[key], row, where, f"{line} of {path}"))
    return lines


def plan_columns(
    model: TwinModel, request: RowsRequest
) -> list[tuple[Combination, int, ColumnModel]]:
    """Return for each line of a plan file its label, number of rows, and model of other columns.

    Nothing, if there is no plan file or the model has no other columns.

    Raises:
        InputError: as `read_plan`, or no row of the label can meet the line.
    """
    found, schema, columns = [], model.schema, model.columns
    if columns is None or request.plan_file is None:
        return []
    names = [column.name for column in columns.columns]
    for combination, rows, where, place in plan_lines(schema, request, names):
        try:
            own, likely = columns.given(where)
        except InputError as error:
            said = str(error).removeprefix("`where`: ").replace(", or repeat `where`", "")
            raise InputError(f"{place}: {said}") from None
        if rows and not likely[list(schema.combinations).index(combination)] > 0:
            raise InputError(
                f"{place}: no row of its label has such other cells, by the noisy counts"
            )
        found.append((combination, rows, own))
    return found


def read_option(one: str) -> int:
    """Return the number of rows in "500" or "positive=500"."""
    return read_number(one.rpartition("=")[2], f"`rows_per_label={one[:60]}`")


def read_number(value: object, place: str) -> int:
    """Return a whole number, 0 or more, from a cell or an option."""
    text = str(value).strip().removesuffix(".0")  # as spreadsheets and pandas write some
    if not text.isdecimal() or len(text) > LONGEST_NUMBER:
        raise InputError(f"{place}: the number of rows must be a whole number, 0 or more")
    return int(text)


def add_up(schema: Schema, asked: Iterable[tuple[Combination, int]]) -> dict[Combination, int]:
    """Return the rows of each label."""
    counts = dict.fromkeys(schema.combinations, 0)
    for combination, rows in asked:
        counts[combination] += rows
    check_sum(counts.values())
    return counts


def check_sum(rows: Iterable[int]) -> None:
    """Refuse a twin without rows, or with too many."""
    if not (total := sum(rows)):
        raise InputError("no row is asked for. Give some label at least one row.")
    check_number("the number of all rows", total, ROWS, is_whole=True)


def proportional(label_counts: Mapping[Combination, float], rows: int) -> dict[Combination, int]:
    """Share out exactly `rows` rows in proportion to the noisy label counts."""
    check_number("`rows`", rows, ROWS, is_whole=True)
    shares = proportional_rows(list(label_counts.values()), rows)
    return dict(zip(label_counts, shares, strict=True))


def share_out_rows(
    model: TwinModel,
    asked: RowsRequest,
    progress: Progress,
    weights: Mapping[Combination, float] | None = None,
) -> dict[Combination, int]:
    """Return the rows of each label combination, in proportion to noisy counts of records.

    `weights` are other shares, if rows must meet conditions.
    """
    records = model.ledger.records
    if model.ledger.unit == OWNER_UNIT:  # as counted, with noise
        records = max(1, round(min(MOST_ROWS, sum(model.label_counts.values()))))
    rows = asked.rows or usual_rows(records)
    if not asked.rows and 2 * records > MOST_ROWS:  # a model of others may state any number
        progress.say(f"writing {rows:,} rows, the most by default. `rows` asks for more.")
    if weights is not None:
        return proportional(weights, rows)
    counts = proportional(model.label_counts, rows)
    without = [
        f"{attribute.name} {value!r}"
        for i, attribute in enumerate(model.schema.attributes)
        for value in attribute.values
        if not any(rows for labels, rows in counts.items() if labels[i] == value)
    ]
    if without:
        progress.warn(
            f"no row has {', '.join(without[:MOST_NAMED])}{', …' * (len(without) > MOST_NAMED)}. "
            f"The noisy counts are too small for one of {rows:,} rows. `rows_per_label` asks for "
            "some anyway."
        )
    return counts
