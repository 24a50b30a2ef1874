"""A few rows of a table to be read: real ones only where somebody asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN, MOST_ROWS, MOST_LETTERS = 20, 200, 700

Row = tuple[dict[str, str], str]  # short cells by column, and the longest text


@dataclass(frozen=True)
class Sample:
    """Some rows of a table.

    Args:
        name: of the table.
        rows: drawn by a fixed seed, none of them twice.
        total: how many the table has.
        is_private: they are real.
    """

    name: str
    rows: list[Row]
    total: int
    is_private: bool = False


def sample_rows(
    name: str, frame: DataFrame, text: str | None, most: int = SHOWN, is_private: bool = False
) -> Sample:
    """Draw a few different rows; the same of the same table.

    Args:
        name: of the table.
        frame: the table.
        text: the column of texts; None: the one with the longest cells.
        most: rows.
        is_private: the rows are real.
    """
    shown = frame.astype(str).drop_duplicates()
    drawn = shown.sample(min(most, len(shown)), random_state=0)
    column = text if text in frame.columns else longest_column(drawn)
    rows = [{str(k): _cut(v) for k, v in row.items()} for row in drawn.to_dict("records")]
    split = [(row, row.pop(str(column), "")) for row in rows]
    return Sample(name, split, len(frame), is_private)


def beside(twin: Sample, base: DataFrame | None, text: str | None) -> list[tuple[Row, str | None]]:
    """Put a text of the base model beside each of the twin's rows: of the same labels, each once.

    Args:
        twin: rows of the twin.
        base: rows that the base model wrote without private data; None: nothing is beside them.
        text: the column of texts.
    """
    others: dict[str, list[str]] = {}
    if base is not None and len(base):
        for cells, words in sample_rows("base", base, text, len(base)).rows:
            others.setdefault(_labels(cells), []).append(words)
    waiting = {labels: iter(texts) for labels, texts in others.items()}
    return [((c, words), next(waiting.get(_labels(c), iter(())), None)) for c, words in twin.rows]


def longest_column(frame: DataFrame) -> str | None:
    """Return the column whose cells are longest; None where there is none."""
    lengths = {name: sum(len(str(v)) for v in frame[name]) for name in frame.columns}
    return max(lengths, key=lambda name: lengths[name], default=None)


def _labels(cells: Mapping[str, str]) -> str:
    return repr(sorted(cells.items()))


def _cut(value: object) -> str:
    cell = str(value)
    return cell if len(cell) <= MOST_LETTERS else cell[:MOST_LETTERS].rstrip() + " …"
