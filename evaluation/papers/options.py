"""The options that all commands of experiments have; each adds its own files and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from twinset.errors import InputError

Size = Annotated[
    str, typer.Option(help="tiny: minutes. cpu: two cores, about an hour. full: as published.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Times that each row is made.")]
Output = Annotated[Path, typer.Option(help="Folder for .json, .md and .png.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")]

Known = TypeVar("Known")


@dataclass(frozen=True)
class Options:
    """How an experiment is run, whichever it is.

    Args:
        seeds: times that each row is made.
        output: folder of rows, page and figure.
        dry_run: print the plan only.
    """

    seeds: int
    output: Path
    dry_run: bool


def size_named(sizes: Mapping[str, Known], name: str) -> Known:
    """Return one of an experiment's sizes.

    Raises:
        InputError: there is no such size.
    """
    if name not in sizes:
        raise InputError(f"--size: {name!r} is none of {', '.join(sizes)}")
    return sizes[name]


def named_files(dry_run: bool, named: Mapping[str, Path | None]) -> dict[str, Path]:
    """Return the files that were named; none at all for a plan that goes without.

    Args:
        dry_run: whether only a plan is wanted.
        named: by parameter.

    Raises:
        InputError: some are not named.
    """
    found = {name: path for name, path in named.items() if path is not None}
    missing = [name for name in named if name not in found]
    if missing and (found or not dry_run):
        option = missing[0].replace("_", "-")
        raise InputError(f"--{option}: name a file; only --dry-run goes without any")
    return found
