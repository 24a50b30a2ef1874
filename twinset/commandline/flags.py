"""Options as flags of a typer command, the command's options as one mapping, and label values.

Knows how typer reads a signature. Knows nothing of any single command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from twinset.commandline.entry_point import with_flags
from twinset.config.options import PANELS, Option, merge
from twinset.errors import InputError
from twinset.files.limits import SMALL, read_text
from twinset.table.schema import read_line

KEYWORD = inspect.Parameter.KEYWORD_ONLY
CONFIG = inspect.Parameter(
    "config",
    KEYWORD,
    default=None,
    annotation=Annotated[
        str | None, typer.Option(help="TOML file of options by their names.", metavar="FILE")
    ],
)


def takes(
    *options: Option, has_file: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options and, if it has a file of options, --config.

    The command gets those that were used, by name, as its argument `given`.
    """
    names = [option.name for option in options]
    flags = []
    for option in sorted(options, key=lambda option: option.is_expert):  # experts' come last
        facts = [] if option.default is None else [f"default {option.default}"]
        facts += [] if option.bounds is None else [str(option.bounds)]
        shown = f" ({'; '.join(facts)})" if facts else ""
        info = typer.Option(
            option.flag,
            help=with_flags(option.help) + shown,
            metavar=option.values,
            rich_help_panel=next((title for title in PANELS if option in PANELS[title]), None),
        )
        # No option is required. One that is not used is False, or None.
        unused: Any = None
        kind: Any = option.kind | None
        if option.kind is bool:
            unused, kind = False, bool
        elif option.repeatable:
            kind = list[option.kind] | None  # type: ignore[name-defined]
        annotation = Annotated[kind, info]
        flags.append(inspect.Parameter(option.name, KEYWORD, default=unused, annotation=annotation))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def parsed(config: str | None = None, **arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in names}
            # typer gives None, False or an empty list for an option that was not used
            used = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in values.items()
                if value is not None and value is not False and value != []
            }
            # a file may hold options of other commands: one file serves them all
            merged = merge(used, config)
            command(given={k: v for k, v in merged.items() if k in names}, **arguments)

        own = inspect.signature(command, eval_str=True).parameters.values()
        before = [p for p in own if p.kind is not KEYWORD]
        after = [p for p in own if p.kind is KEYWORD and p.name != "given"]
        signature = [*before, *flags, *[CONFIG] * has_file, *after]
        parsed.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        parsed.__annotations__ = {p.name: p.annotation for p in signature}
        return parsed

    return decorate


def read_columns(given: Sequence[str], option: str) -> dict[str, list[Any]]:
    """Return what `labels` or `bins` state, by column: public values, or numbers as edges.

    Values with a comma, or blanks at an end, stand in double quotes, as in CSV. A long list of
    labels may be a file with a value on each line.

    Raises:
        InputError: something does not name a column and its values, or a file cannot be read.

    >>> read_columns(["city=York,New York", 'size="S, slim",M'], "labels")
    {'city': ['York', 'New York'], 'size': ['S, slim', 'M']}
    >>> read_columns(["rating=0,2.5,5"], "bins")
    {'rating': [0.0, 2.5, 5.0]}
    """
    how, found = "COLUMN=VALUE,VALUE or COLUMN=@FILE", dict[str, list[Any]]()
    if option == "bins":
        how = "COLUMN=NUMBER,NUMBER,NUMBER"
    for one in given:
        name, _, values = one.partition("=")
        if not name or not values or name in found:
            raise InputError(f"`{option}={one[:60]}`: write {how}, once for each column")
        if option == "labels" and values.startswith("@"):
            try:
                lines = read_text(Path(values[1:]), SMALL).removeprefix("\ufeff").splitlines()
            except InputError:
                raise
            except (OSError, ValueError):
                raise InputError(
                    f"`labels`: {values[1:]} cannot be read; name a UTF-8 file"
                ) from None
            found[name] = [line for line in lines if line.strip()]
            continue
        try:
            cells = read_line(values)
            found[name] = cells if option == "labels" else [float(cell) for cell in cells]
        except ValueError:
            raise InputError(f"`{option}`: {values[:60]!r} cannot be read; write {how}") from None
    return found
