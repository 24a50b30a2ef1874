"""The shape of a table without any of its records. The sharing side may know it.

Knows no record. Also reads what people write: a line of label values, and a file of TOML.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from twinset.errors import InputError
from twinset.files.limits import MOST_COMBINATIONS, SMALL, read_text

# C0, DEL and lone surrogates. C1 (U+0080-U+009F) stays: it is what curly quotes become when
# Windows-1252 text is read as Latin-1, and real reviews are full of it.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
# Characters that are not drawn: format and control characters (no blanks), variation selectors,
# fillers, an empty pattern of dots.
UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
ORDERED = "category (ordered)"  # pandas writes "category" for both kinds
LabelValue = str | int | float | bool
Combination = tuple[LabelValue, ...]


@dataclass(frozen=True)
class Attribute:
    """A label column: its name, its pandas dtype and its public values in a fixed order."""

    name: str
    dtype: str
    values: tuple[LabelValue, ...]


@dataclass(frozen=True)
class Schema:
    """Text column, label columns, and their order in the private table."""

    text: str  # name of the column
    text_dtype: str  # of pandas
    attributes: tuple[Attribute, ...]
    # Names of the twin's columns (text and attributes), in its order. What else the private table
    # has is not stated: in JSONL a key may be one record's.
    columns: tuple[str, ...]

    @property
    def others(self) -> tuple[str, ...]:
        """Names of the twin's columns that are neither text nor label."""
        taken = {self.text, *(attribute.name for attribute in self.attributes)}
        return tuple(name for name in self.columns if name not in taken)

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """All label combinations: the Cartesian product of the attributes' values, in order."""
        # counted before they are made: four columns of a hundred values would fill all memory
        if math.prod(len(each.values) for each in self.attributes) > MOST_COMBINATIONS:
            names = ", ".join(attribute.name for attribute in self.attributes[:10])
            raise InputError(
                f"the labels {names} have more than {MOST_COMBINATIONS} combinations. Name fewer "
                "with `attributes`, or merge rare values."
            )
        return tuple(product(*(each.values for each in self.attributes)))

    @property
    def spelled(self) -> dict[tuple[str, ...], Combination]:
        """Each label combination as spelled values."""
        return {tuple(map(plain, combination)): combination for combination in self.combinations}

    def value_numbers(self, combination: Combination) -> list[int]:
        """Return the index of each value within its attribute."""
        pairs = zip(self.attributes, combination, strict=True)
        return [attribute.values.index(value) for attribute, value in pairs]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Schema:
        """Rebuild a schema from the result of `asdict`, in JSON or not.

        Raises:
            ValueError: a name or a label value has a control character, which a twin would show.
        """
        attributes = tuple(
            Attribute(a["name"], a["dtype"], tuple(a["values"])) for a in data["attributes"]
        )
        said = [*data["columns"], *(value for a in attributes for value in (a.name, *a.values))]
        if any(CONTROL.search(str(each)) for each in said):
            raise ValueError("a control character in the schema")
        return cls(data["text"], data["text_dtype"], attributes, tuple(data["columns"]))


def plain(value: Any) -> str:
    """Return a value as a person writes it: 5 for 5.0. This is a label's only spelling."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def read_line(line: str) -> list[str]:
    """Return the values of a line of CSV. Raise ValueError for anything else.

    >>> read_line('York, "Paris, Texas"')
    ['York', 'Paris, Texas']
    """
    try:
        return next(csv.reader([line], skipinitialspace=True, strict=True))
    except (csv.Error, StopIteration):
        raise ValueError("no line of values between commas") from None


def written_line(values: Iterable[object]) -> str:
    """Return values as a line of CSV. `read_line` restores their texts.

    >>> written_line(["good", "a, b", 5])
    'good,"a, b",5'
    """
    return ",".join(
        # "@" begins the name of a file of values, so a value with one is quoted too
        text
        if text == text.strip() and not text.startswith("@") and not set(text) & set(',"')
        else '"{}"'.format(text.replace('"', '""'))
        for text in map(plain, values)
    )


def read_toml(path: Path, place: str) -> dict[str, Any]:
    """Read a TOML file that people write. Messages call it `place`."""
    try:
        return tomllib.loads(read_text(path, SMALL))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, RecursionError) as error:  # a number may have too many digits
        raise InputError(f"{place}: not valid TOML ({error})") from None
