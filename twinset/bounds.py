"""Options as dataclass fields: each states its bounds, its help text and its name once.

`check_options` checks the fields, and `twinset.config.options` turns them into flags. This module
knows no particular option. It is light to import, because `--help` waits for it.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from twinset.errors import InputError


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest number that an option takes, both included.

    >>> 0.5 in Bounds(0, 1), float("nan") in Bounds(0, 1), 10**400 in Bounds(0, 1)
    (True, False, False)
    >>> str(Bounds(1e-3, 2**32))
    'from 0.001 to 4294967296'
    """

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"from {_in_few_characters(self.low)} to {_in_few_characters(self.high)}"

    @property
    def limits(self) -> dict[str, Any]:
        """The bounds in the form that typer takes."""
        return {"min": self.low, "max": self.high}


SEEDS = Bounds(0, 2**32 - 1)  # what all generators take


def setting(
    default: Any,  # `MISSING`: it has none
    help: str = "",  # one line for `--help` (empty: the field has no flag)
    *,
    bounds: Bounds | None = None,  # of a number
    option: str | None = None,  # its name, if it differs from the field's
    hint: str = "",  # what to take instead, for the message that refuses a number
    values: str | None = None,  # what `--help` shows for a value, where the type says too little
    expert: bool = False,  # its flag is shown on the panel for experts
) -> Any:
    """Return a dataclass field for an option."""
    metadata = {"bounds": bounds, "help": help, "option": option, "hint": hint}
    return field(default=default, metadata=metadata | {"values": values, "expert": expert})


def bounded(
    default: Any = MISSING, low: float = 1, high: float = 1, help: str = "", **more: Any
) -> Any:
    """Return a field for a number from `low` to `high`. Other arguments are those of `setting`."""
    return setting(default, help, bounds=Bounds(low, high), **more)


def option_name(one: Field[Any]) -> str:
    """Return the option name of a field."""
    return str(one.metadata.get("option") or one.name)


@lru_cache
def value_types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    return get_type_hints(kind)


def check_options(config: Any) -> None:
    """Refuse field values of the wrong type or out of bounds.

    Raises:
        InputError: names the option and its range.
    """
    types = value_types(config.__class__)
    for one in fields(config):
        option, value, kind = f"`{option_name(one)}`", getattr(config, one.name), types[one.name]
        is_union = get_origin(kind) is UnionType
        kinds = [k for k in get_args(kind) if k is not NoneType] if is_union else [kind]
        if get_origin(kind) is Literal:
            if not isinstance(value, str) or value not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise InputError(f"{option}: {_in_few_characters(value)} is none of {choices}")
        elif value is None and is_union:
            continue
        elif (bounds := one.metadata.get("bounds")) is not None:
            check_number(option, value, bounds, kinds == [int], one.metadata["hint"])
        elif kinds[0] in (bool, str) and not isinstance(value, kinds[0]):
            what = "true or false" if kinds[0] is bool else "text"
            raise InputError(f"{option} must be {what}, not {_in_few_characters(value)}")


class Checked:
    """Options whose type and bounds are checked on construction."""

    def __post_init__(self) -> None:
        check_options(self)


def check_number(
    option: str, value: float, bounds: Bounds, is_whole: bool = False, hint: str = ""
) -> None:
    """Refuse a value that is not a number within its bounds.

    Raises:
        InputError: names the option and its range.
    """
    kind = Integral if is_whole else Real
    # True and False are integers to Python, but they are not meant as numbers
    if not isinstance(value, kind) or isinstance(value, bool) or value not in bounds:
        what = "a whole number" if is_whole else "a number"
        more = f". {hint}." if hint else ""
        raise InputError(f"{option} must be {what} {bounds}, not {_in_few_characters(value)}{more}")


def _in_few_characters(value: Any) -> str:
    """Return a value for a one-line message. It may be a number of 5,000 digits."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool) or value is None:
        return str(value)
    if not isinstance(value, int | float):
        return type(value).__name__
    if isinstance(value, int) and abs(value) < 10**15:
        return str(value)
    return "a number beyond 1e308" if abs(value) > sys.float_info.max else f"{value:g}"
