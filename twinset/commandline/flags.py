"""Options as flags of a typer command, the command's options as one mapping, and label values.

Knows how typer reads a signature. Knows nothing of any single command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from twinset.commandline.entry_point import with_flags
from twinset.config.options import EXPERTS, PANELS, Option, bounds_of, default_of, merge
from twinset.errors import InputError
from twinset.files.limits import SMALL, read_text
from twinset.table.schema import read_line

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_CONFIG = inspect.Parameter(
    "config",
    _KEYWORD,
    default=None,
    annotation=Annotated[
        str | None, typer.Option(help="TOML file of options by their names.", metavar="FILE")
    ],
)


def takes(*options: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options and --config.

    The command gets those that were used, by name, as its argument `given`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = [option.name for option in options]
        in_order = sorted(options, key=lambda option: option in PANELS[EXPERTS])  # these last

        @wraps(command)
        def parsed(config: str | None = None, **arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in names}
            # typer gives None, False or an empty list for an option that was not used
            used = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in values.items()
                if value is not None and value is not False and value != []
            }
            merged = merge(used, config)
            # a file may hold options of other commands: one file serves them all
            command(given={k: v for k, v in merged.items() if k in names}, **arguments)

        own = inspect.signature(command, eval_str=True).parameters.values()
        before = [p for p in own if p.kind is not _KEYWORD]
        after = [p for p in own if p.kind is _KEYWORD and p.name != "given"]
        signature = [*before, *map(_parameter, in_order), _CONFIG, *after]
        parsed.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        parsed.__annotations__ = {p.name: p.annotation for p in signature}
        return parsed

    return decorate


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as typer wants it: never required, and None if it is not used."""
    default, bounds = default_of(option.name), bounds_of(option.name)
    parts = ([] if default is None else [f"default {default}"]) + ([str(bounds)] if bounds else [])
    shown = f" ({'; '.join(parts)})" if parts else ""
    info = typer.Option(
        option.flag,
        help=with_flags(option.help) + shown,
        metavar=option.values,
        rich_help_panel=next(title for title, panel in PANELS.items() if option in panel),
    )
    if option.kind is bool:
        return inspect.Parameter(
            option.name, _KEYWORD, default=False, annotation=Annotated[bool, info]
        )
    kind: Any = list[option.kind] if option.repeatable else option.kind  # type: ignore[name-defined]
    return inspect.Parameter(
        option.name, _KEYWORD, default=None, annotation=Annotated[kind | None, info]
    )


# -- label values: COLUMN=VALUE,VALUE, and COLUMN=@FILE for a long list ----------------------------
# Values with a comma, or blanks at an end, stand in double quotes, as in CSV.


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
