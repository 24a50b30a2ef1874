"""The shape of a table, without any of its records: what the sharing side may know."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

LabelValue = str | int | float | bool
Combination = tuple[LabelValue, ...]


@dataclass(frozen=True)
class Attribute:
    """A label column: its name, pandas dtype and the set of its values, in a fixed order.

    The set of values is taken as public; the ledger says so.
    """

    name: str
    dtype: str
    values: tuple[LabelValue, ...]


@dataclass(frozen=True)
class Schema:
    """Text column, label columns, and the order they had in the private table.

    Args:
        text: name of the text column.
        text_dtype: its pandas dtype.
        attributes: the label columns.
        columns: names of the twin's columns (text and attributes) in the private table's order.
        dropped: the private table's other columns, which the twin does not have.
    """

    text: str
    text_dtype: str
    attributes: tuple[Attribute, ...]
    columns: tuple[str, ...]
    dropped: tuple[str, ...] = ()

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """All label combinations: the Cartesian product of the attributes' values, in order."""
        from itertools import product

        return tuple(product(*(a.values for a in self.attributes)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Schema:
        """Rebuild a schema from `to_dict`'s output (lists or tuples)."""
        attributes = tuple(
            Attribute(a["name"], a["dtype"], tuple(a["values"])) for a in data["attributes"]
        )
        return cls(
            data["text"],
            data["text_dtype"],
            attributes,
            tuple(data["columns"]),
            tuple(data["dropped"]),
        )
