"""Whose data are protected together, and how much: units and their privacy weights.

`Units` has each record on its own, or all records of one owner, by numbers and without any text.
`WeightScale` maps the base model's opinion of a record's text to its privacy weight. Its numbers
are public constants, fitted on public texts. The weight is a function of the record alone. A
guarantee rests on that, and not on how good the weight is.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from twinset.privacy.mechanism.randomness import KeyStream

if TYPE_CHECKING:
    from torch import Tensor


class Units:
    """The units of privacy of a table.

    Args:
        records: number of records.
        owners: (records,) number of each record's unit, 0 … U - 1. None: each is its own.
        most: m, records of an owner that take part in a step.
        units: U, if some units may have no record.
    """

    def __init__(
        self, records: int, owners: np.ndarray | None = None, most: int = 1, units: int = 0
    ) -> None:
        self._records, self._most = records, most
        self._owners = owners is not None
        if owners is not None:  # records in the order of their owners, and where each one's end
            self._order = owners.argsort(kind="stable")
            self._ends = np.concatenate([[0], np.bincount(owners, minlength=units).cumsum()])

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._owners else self._records

    def draw(self, units: np.ndarray, stream: KeyStream) -> list[list[int]]:
        """Return the records with which units take part. For an owner at most m, drawn afresh.

        A unit without a record takes part with none. It is sampled, and adds nothing.

        Guarantee: which of an owner's records are drawn depends on how many it has and on fresh
        random bits, never on other owners. So a batch's sum, given who is in it, is a sum of
        independent contributions, one of each owner.
        """
        if not self._owners:
            return [[unit] for unit in units.tolist()]
        drawn: list[list[int]] = []
        for owner in units.tolist():
            records = self._order[self._ends[owner] : self._ends[owner + 1]]
            if len(records) > self._most:  # ranks of random words: each subset is equally likely
                ranks = stream.fill(np.empty(len(records), np.uint64)).argsort()
                records = np.sort(records[ranks[: self._most]])
            drawn.append(records.tolist())
        return drawn


STATED_WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)  # for which ε is stated


@dataclass(frozen=True)
class WeightScale:
    """ρ rises linearly from 0 at `low` to 1 at `high`, and stays there.

    Args:
        base_model: the model that measures nats per token.
        low: nats per token, end of text included.
        high: likewise, above `low`.
        origin: which public texts the constants were fitted on, and how.
        shares: of these texts, by the nearest of `STATED_WEIGHTS`. They add up to 1.

    Raises:
        ValueError: the numbers make no scale.
    """

    base_model: str
    low: float
    high: float
    origin: str
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse numbers that make no scale."""
        if not all(isinstance(t, str) and t.strip() for t in (self.base_model, self.origin)):
            raise ValueError("weight scale: base_model and origin must be texts")
        if not (is_number(self.low) and is_number(self.high) and 0 <= self.low < self.high):
            raise ValueError("weight scale: needs 0 <= low < high, both finite")
        one_each = len(self.shares) == len(STATED_WEIGHTS) and all(map(is_number, self.shares))
        if not one_each or min(self.shares) < 0 or not math.isclose(sum(self.shares), 1.0):
            raise ValueError("weight scale: shares must be five numbers that add up to 1")

    def weights(self, nats: Tensor) -> Tensor:
        """(N,) nats per token → (N,) privacy weights. Values that are not finite are most private.

        >>> import torch
        >>> scale = WeightScale("m", 2.0, 4.0, "made up", (0.2,) * 5)
        >>> scale.weights(torch.tensor([1.0, 2.5, 9.0, float("nan")])).tolist()
        [0.0, 0.25, 1.0, 1.0]
        """
        rho = (nats - self.low) / (self.high - self.low)
        return rho.nan_to_num(nan=1.0, posinf=1.0).clamp(0.0, 1.0)

    @classmethod
    def from_dict(cls, data: Any) -> WeightScale:
        """Rebuild a scale from its `asdict` after JSON.

        Raises:
            ValueError: a field is missing, unknown or of the wrong type.
        """
        names = {f.name for f in fields(cls)}
        if not isinstance(data, Mapping) or set(data) != names:
            raise ValueError(f"weight scale: must have the fields {', '.join(sorted(names))}")
        if not isinstance(data["shares"], Sequence):
            raise ValueError("weight scale: shares must be a list")
        return cls(**{**data, "shares": tuple(data["shares"])})


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a number that a float can hold.

    >>> [is_number(value) for value in (1, 2.5, True, 10**400, float("nan"), "1")]
    [True, True, False, False, False, False]
    """
    largest = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= largest
