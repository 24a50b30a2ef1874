"""One line of values between commas, as in CSV: how options and messages write label values."""

from __future__ import annotations

import csv
from collections.abc import Iterable


def read_line(line: str) -> list[str]:
    """Return a line's values.

    Raises:
        ValueError: it is empty, or not one line.

    >>> read_line('York, "Paris, Texas"')
    ['York', 'Paris, Texas']
    """
    try:
        return next(csv.reader([line], skipinitialspace=True))
    except (csv.Error, StopIteration):
        raise ValueError("no line of values between commas") from None


def written_line(values: Iterable[object]) -> str:
    """Return values as a line, of which `read_line` makes their texts again.

    >>> written_line(["good", "a, b", 5])
    'good,"a, b",5'
    """
    return ",".join(map(_cell, map(str, values)))


def _cell(text: str) -> str:
    is_plain = text == text.strip() and not text.startswith("@") and not set(text) & set(',"')
    return text if is_plain else '"{}"'.format(text.replace('"', '""'))
