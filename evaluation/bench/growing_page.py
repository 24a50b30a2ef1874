"""A page whose rows grow over sessions: how its command adds to them, and writes it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import typer

from evaluation.results_store import ResultsStore
from twinset.commandline.console import Console
from twinset.errors import Stopped
from twinset.files.atomic import write_text
from twinset.progress import Progress


class GrowingPage(Protocol):
    """What is made of finished rows alone."""

    def text(self) -> str:
        """Return it in Markdown."""

    def picture(self, path: Path) -> None:
        """Draw its picture."""


def add_rows(work: Callable[[Progress], None]) -> None:
    """Make what is missing, row by row; where it is stopped, a line says that nothing is lost.

    Raises:
        SystemExit: 130, it was stopped.
    """
    try:
        with Console() as progress:
            work(progress)
    except (KeyboardInterrupt, Stopped):
        typer.echo("stopped; the same command goes on", err=True)
        raise SystemExit(130) from None


def write_page(store: ResultsStore, made_of: Callable[[ResultsStore], GrowingPage]) -> None:
    """Write page and picture beside the rows, those of other processes too; say where.

    Raises:
        InputError: the file of rows holds no results any more, or results of other settings.
    """
    store.refresh()
    page, path = made_of(store), store.path.with_suffix(".md")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page.text())
    page.picture(path.with_suffix(".png"))
    typer.echo(path)
