"""What the commands `python -m evaluation.…` share: how they end, and the line they came from."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable

import typer

from twinset.errors import InputError


def run_command(app: Callable[[], object]) -> None:
    """Run a command; bad input ends it with one line and exit code 2."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, to developers; -W default shows them
    try:
        app()
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None


def command_line(module: str) -> str:
    """Return the line that a shell would run again."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])
