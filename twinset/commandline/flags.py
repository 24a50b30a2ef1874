"""Options as flags of a typer command, and the command's options as one mapping.

Knows how typer reads a signature. Knows nothing of any single option or command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from twinset.commandline.entry_point import with_flags
from twinset.config.options import EXPERTS, PANELS, Option, bounds_of, default_of, merge

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
