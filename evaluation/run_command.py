"""What commands share: how `python -m evaluation.…` ends, and the line that a shell ran."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from twinset.commandline.console import Console
from twinset.commandline.entry_point import with_flags
from twinset.errors import InputError, Stopped
from twinset.files.environment import shell_line
from twinset.progress import Progress


def command(function: Callable[..., None]) -> typer.Typer:
    """Return a function as a command line: its parameters are the options."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    return app


def run_command(app: Callable[[], object]) -> None:
    """Run a command; bad input ends it with one line and exit code 2."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, to developers; -W default shows them
    try:
        app()
    except InputError as error:
        typer.echo(f"error: {with_flags(str(error))}", err=True)
        raise SystemExit(2) from None


@contextmanager
def resumable() -> Iterator[Progress]:
    """Show the progress of a block that makes rows; stopped, it says that nothing is lost.

    Raises:
        SystemExit: 130, it was stopped.
    """
    try:
        with Console() as progress:
            yield progress
    except (KeyboardInterrupt, Stopped):
        typer.echo("stopped; the same command goes on", err=True)
        raise SystemExit(130) from None


def command_line(module: str) -> str:
    """Return the line that a shell would run again."""
    return shell_line("python", "-m", module)
