"""What the owner says of label values: which are public, and what becomes of rows with others.

Validated data; knows no table.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from twinset.errors import InputError
from twinset.table.schema import CONTROL, LabelValue, Schema
from twinset.table.templates import PromptFile, plain

MOST_VALUES = 100


@dataclass(frozen=True)
class LabelRules:
    """What the owner says of label values.

    Args:
        declared: by attribute, all values that are public. No others enter the twin, and these do
            even where no row has them.
        bins: by attribute, rising edges that cut numbers into labels: 0, 3, 5 make "0 to 3", which
            has both its ends, and "3 to 5", which begins above 3. They are public.
        merge: take values that differ from a public one by case, blanks or one letter for that.
            Where nothing is declared, one letter counts in rare values alone.
        drop: leave out rows whose value is not declared, instead of refusing them.
        prompt: its words for values declare them, where they fit the table's.
        whose: by attribute, who declared it, where that was not the owner.

    Raises:
        InputError: they contradict each other, or declare what no column can hold.
    """

    declared: Mapping[str, Sequence[LabelValue]] = field(default_factory=dict)
    bins: Mapping[str, Sequence[float]] = field(default_factory=dict)
    merge: bool = False
    drop: bool = False
    prompt: PromptFile | None = None
    whose: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what could not be meant."""
        for option, given in (("labels", self.declared), ("bins", self.bins)):
            _check_lists(option, given)
        for name, values in self.declared.items():
            _check_declared(name, values)
        for name, edges in self.bins.items():
            _check_edges(name, edges)
        if twice := self.declared.keys() & self.bins.keys():
            raise InputError(f"{min(twice)!r} has `labels` and `bins`; its bins are its labels")
        if self.drop and not self.names:
            raise InputError("`drop_undeclared` does nothing without `labels` or `bins`; give them")

    @property
    def names(self) -> list[str]:
        """The attributes that something is declared of."""
        return [*self.declared, *self.bins]

    @property
    def changes_rows(self) -> bool:
        """Whether rows may be left out, or have other labels than in the table."""
        return bool(self.bins) or self.merge or self.drop

    def settled(self, schema: Schema, whose: Mapping[str, str]) -> LabelRules:
        """Return the rules by which other rows get labels of this schema and no others."""
        declared = {a.name: a.values for a in schema.attributes if a.name not in self.bins}
        return replace(self, declared=declared, prompt=None, whose=whose)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, of all that is not the prompt's."""
        plain_values = {name: list(values) for name, values in self.declared.items()}
        edges = {name: list(numbers) for name, numbers in self.bins.items()}
        return {"declared": plain_values, "bins": edges, "merge": self.merge, "drop": self.drop}

    def check_names(self, attributes: Sequence[str]) -> None:
        """Refuse a declaration that would do nothing."""
        for name in self.names:
            if name not in attributes:
                option = "labels" if name in self.declared else "bins"
                raise InputError(f"`{option}`: {name!r} is no label column; add it to `attributes`")


def _check_lists(option: str, given: object) -> None:
    values = given.values() if isinstance(given, Mapping) else (None,)
    if not all(isinstance(each, Collection) for each in values):
        raise InputError(f"`{option}`: give a list for each column, by its name")


def _check_declared(name: str, values: Sequence[LabelValue]) -> None:
    if isinstance(values, str) or not all(map(_can_be_label, values)):
        raise InputError(f"`labels`: give a list of texts, numbers or booleans for {name!r}")
    texts = [plain(value) for value in values]
    if not all(text.strip() and not CONTROL.search(text) for text in texts):
        raise InputError(f"`labels`: a value of {name!r} is blank or has a control character")
    if len(set(texts)) < len(texts) or not 2 <= len(texts) <= MOST_VALUES:
        raise InputError(f"`labels`: give 2 to {MOST_VALUES} different values for {name!r}")


def _can_be_label(value: object) -> bool:
    largest = sys.float_info.max  # a whole number may be larger, and has no end
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= largest)


def _check_edges(name: str, edges: Sequence[float]) -> None:
    are_numbers = all(_can_be_label(e) and not isinstance(e, str | bool) for e in edges)
    are_rising = are_numbers and all(a < b for a, b in pairwise(edges))
    if not are_rising or not 3 <= len(edges) <= MOST_VALUES + 1:
        raise InputError(
            f"`bins`: give 3 to {MOST_VALUES + 1} rising numbers for {name!r}, such as 0, 3, 5"
        )
