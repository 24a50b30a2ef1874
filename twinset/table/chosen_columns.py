"""The columns of a private table that become records, and the rows that have all of them.

Messages name column and row and hold no cell. Knows neither what is declared nor what is released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from twinset.errors import InputError
from twinset.table.columns import has_text, is_partial, show, show_unchosen
from twinset.table.formats import (
    is_named_by_rows,
    is_of_text,
    row_name,
    row_numbers,
    states_types,
)
from twinset.table.label_codes import LabelCodes, label_codes
from twinset.table.label_column import LabelColumn


@dataclass(frozen=True)
class ChosenColumns:
    """The text column and the label columns of a private table.

    Args:
        frame: the table.
        text: its text column.
        attributes: its label columns.
        source: what to call the table in messages.
    """

    frame: pd.DataFrame
    text: str
    attributes: list[str]
    source: str

    @property
    def names(self) -> list[str]:
        """Of all of them, the text's first."""
        return [self.text, *self.attributes]

    @cached_property
    def places(self) -> dict[str, str]:
        """What messages call each column."""
        return {name: f"{self.source}: {show([name], self.frame)}" for name in self.names}

    def label_codes(self, as_written: bool) -> dict[str, LabelCodes]:
        """Return the labels of each attribute, row by row; see `columns.label_codes`."""
        return {
            name: label_codes(self.frame[name], self.places[name], as_written)
            for name in self.attributes
        }

    def complete_rows(
        self, codes: Mapping[str, LabelCodes], most: int, notes: list[str]
    ) -> np.ndarray:
        """Return the positions of the rows that have a text and all labels.

        Raises:
            InputError: no row has, or more than `most` rows have not.
        """
        filled = {self.text: has_text(self.frame[self.text], self.places[self.text])}
        filled |= {name: found.has_value for name, found in codes.items()}
        rows = np.flatnonzero(np.logical_and.reduce(list(filled.values())))
        total, empty = len(self.frame), len(self.frame) - len(rows)
        if empty > most:
            raise InputError(self._first_gap(filled))
        if empty:
            notes.append(f"leaving out {empty} of {total} rows: text or label missing or blank")
        if not len(rows):
            raise InputError(f"{self.source}: no row has both a text and its labels; fill them in")
        return rows

    def _first_gap(self, filled: Mapping[str, np.ndarray]) -> str:
        name = next(name for name, has_cell in filled.items() if not has_cell.all())
        gaps = np.flatnonzero(~filled[name])
        return (
            f"{self.places[name]} is missing, blank or not text in {len(gaps)} of "
            f"{len(self.frame)} rows, first in {row_name(self.frame, gaps[0])}; fill them in, or "
            "leave these rows out with `drop_empty`"
        )

    def owners(self, owner: str, rows: np.ndarray) -> np.ndarray:
        """Return (n,) the number of each row's owner.

        Args:
            owner: the column that says whose a record is.
            rows: (n,) positions of the rows.

        Raises:
            InputError: there is no such column, it is one of these, or a cell of it is empty.
        """
        if owner not in self.frame.columns:
            raise InputError(f"{self.source}: has no column {owner!r}; check `owner`")
        if owner in self.names:
            raise InputError(
                f"{self.source}: `owner={owner!r}` is the text or a label already; name another"
            )
        whole = len(rows) == len(self.frame)
        cells = self.frame[owner] if whole else self.frame[owner].iloc[rows]
        blank = [isinstance(cell, str) and not cell.strip() for cell in cells]
        missing = rows[cells.isna().to_numpy(bool) | np.array(blank, bool)]
        if len(missing):
            raise InputError(
                f"{self.source}: {show([owner], self.frame)} is missing in {len(missing)} rows, "
                f"first in {row_name(self.frame, missing[0])}; every record needs an owner"
            )
        return pd.factorize(cells)[0]

    def label_column(
        self, name: str, codes: LabelCodes, rows: np.ndarray, owners: np.ndarray | None
    ) -> LabelColumn:
        """Return an attribute as the rules for labels read it; see `LabelColumn`."""
        frame = self.frame
        is_typed = states_types(frame) or is_named_by_rows(frame)
        source = is_typed, is_of_text(frame), row_numbers(frame)
        return LabelColumn(
            name, show([name], frame), self.places[name], codes, rows, owners, *source
        )

    def left_out(self) -> list[str]:
        """Say which columns the twin will not have, and which names not every row has."""
        frame, notes = self.frame, []
        if dropped := [str(name) for name in frame.columns if name not in self.names]:
            them = "them" if len(dropped) > 1 else "it"
            notes.append(
                f"leaving out {show_unchosen(dropped, frame)}: the twin will not have {them}"
            )
        if partial := [name for name in self.names if is_partial(name, frame)]:
            shown = show(partial, frame)
            notes.append(f"not every row has {shown}: to name it makes its name public")
        return notes
