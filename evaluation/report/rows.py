"""A few rows of a table to be read: real ones only where somebody asked for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_ROWS, MOST_LETTERS = 8, 700


@dataclass(frozen=True)
class Sample:
    """Some rows of a table.

    Args:
        name: of the table.
        rows: drawn by a fixed seed: short cells by column, and the longest text.
        total: how many the table has.
        is_private: they are real.
    """

    name: str
    rows: list[tuple[dict[str, str], str]]
    total: int
    is_private: bool = False


def sample_rows(name: str, frame: DataFrame, text: str | None, is_private: bool = False) -> Sample:
    """Draw a few rows; the same of the same table.

    Args:
        name: of the table.
        frame: the table.
        text: the column of texts; None: the one with the longest cells.
        is_private: the rows are real.
    """
    drawn = frame.sample(min(MOST_ROWS, len(frame)), random_state=0).sort_index()
    column = text if text in frame.columns else longest_column(drawn)
    rows = [{str(k): _cut(v) for k, v in row.items()} for row in drawn.to_dict("records")]
    split = [(row, row.pop(str(column), "")) for row in rows]
    return Sample(name, split, len(frame), is_private)


def longest_column(frame: DataFrame) -> str | None:
    """Return the column whose cells are longest; None where there is none."""
    lengths = {name: sum(len(str(v)) for v in frame[name]) for name in frame.columns}
    return max(lengths, key=lambda name: lengths[name], default=None)


def _cut(value: object) -> str:
    cell = str(value)
    return cell if len(cell) <= MOST_LETTERS else cell[:MOST_LETTERS].rstrip() + " …"
