"""A label column as it was read: who holds its values, and how messages name values and rows.

Knows nothing of what is declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from twinset.errors import InputError
from twinset.table.label_codes import LabelCodes
from twinset.table.label_rules import MOST_VALUES
from twinset.table.lazy_columns import RowNumbers
from twinset.table.schema import LabelValue

# A value that fewer records hold than these is rare: to publish it tells that such a record is in
# the table. Statistical offices publish no cell of fewer than ten; below a thousand records one in
# a hundred is enough, so that the least class of a small table passes. What one record alone holds
# is rare in any table: without that record the value would not be there.
FEW, FEW_SHARE = 10, 0.01
MOST_SHOWN = 5  # row numbers
LONGEST_PROPOSAL, LONGEST_SHOWN = 200, 60  # characters of all values, and of one


@dataclass(frozen=True)
class LabelColumn:
    """A label column as it was read, of the rows that have text and labels.

    Args:
        name: of the attribute.
        shown: what to call it in messages.
        place: the same with its table.
        codes: (n,) its values, all of which occur.
        rows: (n,) their rows in the table, from 0.
        owners: (n,) number of each row's owner; None: each row is its own.
        is_typed: whether its source states types, and not the cells alone.
        is_of_text: whether numbers are texts that are written as such (CSV).
        row_numbers: what messages call rows.
    """

    name: str
    shown: str
    place: str
    codes: LabelCodes
    rows: np.ndarray
    owners: np.ndarray | None = None
    is_typed: bool = True
    is_of_text: bool = False
    row_numbers: RowNumbers = field(default_factory=RowNumbers)

    @property
    def holders(self) -> np.ndarray:
        """(K,) how many records, or owners, hold each value."""
        values, numbers = len(self.codes.values), self.codes.numbers
        if self.owners is None:
            return np.bincount(numbers, minlength=values)
        many = int(self.owners.max()) + 1
        pairs = np.unique(numbers.astype(np.int64) * many + self.owners)
        return np.bincount(pairs // many, minlength=values)

    @property
    def is_rare(self) -> np.ndarray:
        """(K,) whether so few hold a value that it would tell of them."""
        units = len(self.rows) if self.owners is None else len(np.unique(self.owners))
        rare: np.ndarray = self.holders < max(2.0, min(FEW, FEW_SHARE * units))
        return rare

    def named(self, rows: np.ndarray) -> str:
        """Name some rows of the table, from 0, as they are counted in messages."""
        names = [self.row_numbers.name(row).rpartition(" ") for row in rows[:MOST_SHOWN].tolist()]
        several = f"{names[0][0]}{'s' if len(rows) > 1 else ''}"
        more = f" and {len(rows) - MOST_SHOWN} more" if len(rows) > MOST_SHOWN else ""
        return f"{several} {', '.join(number for *_, number in names)}{more}"

    def of_rows(self, places: np.ndarray) -> LabelColumn:
        """Return the column as if it had no other rows."""
        owners = None if self.owners is None else self.owners[places]
        codes, rows = self.codes.of_rows(places), self.rows[places]
        return replace(self, codes=codes, rows=rows, owners=owners)


def check_number_of_values(codes: LabelCodes, place: str, name: str) -> None:
    """Refuse a column of one value, or of so many that they are no labels.

    Raises:
        InputError: the message holds none of them.
    """
    rows, distinct = len(codes.numbers), len(codes.values)
    if distinct == 1:
        raise InputError(
            f"{place} has one value only; an attribute needs two or more, leave it out"
        )
    if distinct > MOST_VALUES or (distinct > 2 and distinct > rows / 2):
        is_number = not isinstance(codes.values[0], str | bool)
        bins = f"cut them with {proposal('bins', name, [0, 3, 5])}" if is_number else "group them"
        raise InputError(
            f"{place} has {distinct} distinct values in {rows} rows; an attribute needs few, "
            f"repeated values, {MOST_VALUES} at most: {bins}, or choose another column with "
            "`attributes`"
        )


def proposal(option: str, name: str, values: Sequence[LabelValue]) -> str:
    """Return an option that declares values, unless there are few or it would be long.

    >>> proposal("labels", "stars", [1, 2]), proposal("labels", "stars", [])
    ("`labels={'stars': [1, 2]}`", '`labels`')
    """
    text = f"{option}={ {name: list(values)} }"
    is_fit = len(values) > 1 and len(text) <= LONGEST_PROPOSAL and "`" not in text
    return f"`{text}`" if is_fit else f"`{option}`"


def listed_values(values: Sequence[LabelValue]) -> str:
    """Name values that are public."""
    return ", ".join(repr(value)[:LONGEST_SHOWN] for value in values)
