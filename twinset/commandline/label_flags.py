"""Label values in options: COLUMN=VALUE,VALUE, and COLUMN=@FILE for a long list.

Values with a comma, or blanks at an end, stand in double quotes, as in CSV.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from twinset.errors import InputError
from twinset.files.limits import SMALL, read_text
from twinset.table.schema import read_line, written_line


def read_labels(given: Sequence[str]) -> dict[str, list[str]]:
    """Return declared values by column.

    Raises:
        InputError: something does not name a column and its values, or a file cannot be read.

    >>> read_labels(["city=York,New York", 'size="S, slim",M'])
    {'city': ['York', 'New York'], 'size': ['S, slim', 'M']}
    """
    found = {}
    for name, values in _columns(given, "labels", "COLUMN=VALUE,VALUE or COLUMN=@FILE"):
        if not values.startswith("@"):
            found[name] = _cells(values, "labels")
            continue
        path = Path(values[1:])
        try:
            lines = read_text(path, SMALL).removeprefix("\ufeff").splitlines()
        except InputError:
            raise
        except (OSError, ValueError):
            raise InputError(f"`labels`: {path} cannot be read; name a UTF-8 file") from None
        found[name] = [line for line in lines if line.strip()]
    return found


def read_bins(given: Sequence[str]) -> dict[str, list[float]]:
    """Return edges by column.

    Raises:
        InputError: something does not name a column and numbers.

    >>> read_bins(["rating=0,2.5,5"])
    {'rating': [0.0, 2.5, 5.0]}
    """
    how = "COLUMN=NUMBER,NUMBER,NUMBER"
    found = {name: _cells(edges, "bins") for name, edges in _columns(given, "bins", how)}
    try:
        return {name: list(map(float, edges)) for name, edges in found.items()}
    except ValueError:
        raise InputError(f"`bins`: write {how}") from None


def flag_value(mapping: str) -> str:
    r"""Return what Python's messages propose as one word of a shell.

    >>> flag_value("{'topic': ['a, b', 'c']}"), flag_value("{'stars': [1, 2]}")
    ('\'topic="a, b",c\'', 'stars=1,2')
    """
    ((name, values),) = ast.literal_eval(mapping).items()
    return shlex.quote(f"{name}={written_line(values)}")


def _columns(given: Sequence[str], option: str, how: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for one in given:
        name, _, values = one.partition("=")
        if not name or not values or name in seen:
            raise InputError(f"`{option}={one[:60]}`: write {how}, once for each column")
        seen.add(name)
        yield name, values


def _cells(line: str, option: str) -> list[str]:
    try:
        return read_line(line)
    except ValueError:
        raise InputError(f"`{option}`: {line[:60]!r} is no line of values between commas") from None
