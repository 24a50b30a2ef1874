"""Whose data are protected together: each record by itself, or all records of one owner.

Knows owners by numbers, and no text.
"""

from __future__ import annotations

import numpy as np

from twinset.privacy.mechanism.randomness import KeyStream


class Units:
    """The units of privacy of a table.

    Args:
        records: how many there are.
        owners: (records,) number of each record's owner, 0 … U - 1; None: each is its own.
        most: m, records of an owner that take part in a step.
    """

    def __init__(self, records: int, owners: np.ndarray | None = None, most: int = 1) -> None:
        self._records, self._most = records, most
        self._owners = owners is not None
        if owners is not None:  # records in the order of their owners, and where each one's end
            self._order = owners.argsort(kind="stable")
            self._ends = np.concatenate([[0], np.bincount(owners).cumsum()])

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._owners else self._records

    def draw(self, units: np.ndarray, stream: KeyStream) -> list[list[int]]:
        """Return the records with which units take part: of an owner m at most, drawn afresh.

        Guarantee: which of an owner's records are drawn depends on how many it has and on fresh
        random bits, never on other owners. So a batch's sum, given who is in it, is a sum of
        independent contributions, one of each owner.
        """
        if not self._owners:
            return [[unit] for unit in units.tolist()]
        return [self._some(unit, stream) for unit in units.tolist()]

    def _some(self, owner: int, stream: KeyStream) -> list[int]:
        records = self._order[self._ends[owner] : self._ends[owner + 1]]
        if len(records) > self._most:
            ranks = stream.fill(np.empty(len(records), np.uint64)).argsort()
            records = np.sort(records[ranks[: self._most]])
        found: list[int] = records.tolist()
        return found
