"""Bounds of options: stated once, beside a field; checked and shown from there. Knows no option."""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from twinset.errors import InputError

_BOUNDS, _OPTION, _HINT = "bounds", "option", "hint"


@dataclass(frozen=True)
class Bounds:
    """The least and the largest number that an option takes, both included.

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
        return f"from {_shown(self.low)} to {_shown(self.high)}"

    @property
    def limits(self) -> dict[str, Any]:
        """As typer takes them."""
        return {"min": self.low, "max": self.high}


SEEDS = Bounds(0, 2**32 - 1)  # what all generators take


def bounded(
    default: Any = MISSING,
    low: float = 1,
    high: float = 1,
    *,
    option: str | None = None,
    hint: str = "",
) -> Any:
    """Return a dataclass field for a number.

    Args:
        default: of the field; left out, it has none.
        low: the least number.
        high: the largest.
        option: what the option is called where it is not called as the field.
        hint: what to take instead, for the message.
    """
    metadata = {_BOUNDS: Bounds(low, high), _OPTION: option, _HINT: hint}
    return field(default=default, metadata=metadata)


def within(default: Any, bounds: Bounds) -> Any:
    """Return a dataclass field for a number within bounds that other places know too."""
    return bounded(default, bounds.low, bounds.high)


def option_name(one: Field[Any]) -> str:
    """Return what the option of a field is called."""
    return str(one.metadata.get(_OPTION) or one.name)


def bounds_in(kind: type[Any]) -> dict[str, Bounds]:
    """Return the bounds of a dataclass's options, by their names."""
    found = {option_name(one): one.metadata.get(_BOUNDS) for one in fields(kind)}
    return {name: bounds for name, bounds in found.items() if bounds is not None}


def limits(kind: type[Any], name: str) -> dict[str, Any]:
    """Return the bounds of one option as typer takes them."""
    return bounds_in(kind)[name].limits


def check_options(config: Any) -> None:
    """Refuse what the fields of a dataclass do not take, by type and bounds.

    Raises:
        InputError: names the option and its range.
    """
    kinds = _kinds(config.__class__)
    for one in fields(config):
        _check(f"`{option_name(one)}`", getattr(config, one.name), kinds[one.name], one)


def check_number(
    option: str, value: float, bounds: Bounds, is_whole: bool = False, hint: str = ""
) -> None:
    """Refuse a value that is no number within bounds.

    Raises:
        InputError: names the option and its range.
    """
    kind = Integral if is_whole else Real
    if not isinstance(value, kind) or isinstance(value, bool) or value not in bounds:
        what = "a whole number" if is_whole else "a number"
        more = f"; {hint}" if hint else ""
        raise InputError(f"{option} must be {what} {bounds}, not {_shown(value)}{more}")


@lru_cache
def _kinds(config: Any) -> dict[str, Any]:
    return get_type_hints(config)


def _check(option: str, value: Any, kind: Any, one: Field[Any]) -> None:
    is_union = get_origin(kind) is UnionType
    kinds = [k for k in get_args(kind) if k is not NoneType] if is_union else [kind]
    if get_origin(kind) is Literal:
        if not isinstance(value, str) or value not in get_args(kind):
            raise InputError(f"{option}: {_shown(value)} is none of {', '.join(get_args(kind))}")
    elif value is None and is_union:
        return
    elif (bounds := one.metadata.get(_BOUNDS)) is not None:
        check_number(option, value, bounds, kinds == [int], one.metadata[_HINT])
    elif kinds[0] in (bool, str) and not isinstance(value, kinds[0]):
        what = "true or false" if kinds[0] is bool else "text"
        raise InputError(f"{option} must be {what}, not {_shown(value)}")


def _shown(value: Any) -> str:
    """Return a value in few characters, whatever it is."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool) or value is None:
        return str(value)
    if not isinstance(value, int | float):
        return type(value).__name__
    if isinstance(value, int) and abs(value) < 10**15:
        return str(value)
    return "a number beyond 1e308" if abs(value) > sys.float_info.max else f"{value:g}"
