"""A page whose rows grow over sessions: how its command writes it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import typer

from evaluation.results_store import ResultsStore
from twinset.files.atomic import write_text


class GrowingPage(Protocol):
    """What is made of finished rows alone."""

    def text(self) -> str:
        """Return it in Markdown."""

    def picture(self, path: Path) -> None:
        """Draw its picture."""


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
