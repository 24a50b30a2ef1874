"""Spellings of one label value: case, blanks, one letter. Knows which is the more frequent."""

from __future__ import annotations

from collections.abc import Sequence

from twinset.table.label_column import FEW, LabelColumn
from twinset.table.templates import plain

FEWER_BY = 4  # a variant has at most one record where the value that it varies has so many
SHORTEST = 4  # letters of values that one letter may tell apart: "b" and "c" are grades


def nearest(value: str, among: Sequence[str]) -> str | None:
    """Return the one value that differs by case and blanks alone, else by one letter.

    >>> nearest(" Postive", ["positive", "negative"]), nearest("1 star", ["2 stars", "3 stars"])
    ('positive', None)
    """
    own = _folded(value)
    for alike in (str.__eq__, _one_letter_apart):
        found = [other for other in among if alike(own, _folded(other))]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _folded(value: str) -> str:
    return " ".join(value.split()).casefold()


def _one_letter_apart(one: str, other: str) -> bool:
    """Return whether one letter is missing, added or another; digits tell values apart."""
    short, long = sorted((one, other), key=len)
    if len(short) < SHORTEST or len(long) - len(short) > 1:
        return False
    at = next((i for i, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    replaced = len(short) == len(long)
    changed = short[at : at + replaced] + long[at : at + 1]
    return changed.isalpha() and short[at + replaced :] == long[at + 1 :]


def variants(column: LabelColumn) -> dict[int, int]:
    """Return which value another is a variant of, by their places: the more frequent one."""
    values, held = column.codes.values, column.holders
    place = {value: n for n, value in enumerate(values)}
    kept: list[str] = []
    found: dict[int, int] = {}
    order = sorted(range(len(values)), key=lambda n: (-held[n], plain(values[n])))
    for n, value in ((n, values[n]) for n in order):
        if not isinstance(value, str):
            continue
        near = nearest(value, kept)
        if near is not None and (
            _folded(near) == _folded(value) or is_few(held[n], held[place[near]])
        ):
            found[n] = place[near]
        else:
            kept.append(value)
    return found


def is_few(count: int, other: int) -> bool:
    """Return whether so few records have a value that it may be a slip for another."""
    return bool(count < FEW and count * FEWER_BY <= other)
