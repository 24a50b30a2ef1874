"""`python -m evaluation.papers.summary DIR…`: one table of all papers, from their results.

Reads what the experiments wrote beside their rows, and computes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from evaluation.command import run_command
from evaluation.papers.page import table
from evaluation.papers.report import Summary
from evaluation.papers.verdict import Word
from twinset.errors import InputError

HEADER = ("paper", "claim", "paper's number", "ours", "verdict")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def summary(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished experiments.")],
) -> None:
    """Print a Markdown table, a line for each result in each folder."""
    found = [read_summary(path) for folder in folders for path in _results(folder)]
    typer.echo("\n".join(as_table(found)))


def as_table(found: list[Summary]) -> list[str]:
    """Return the lines of the table."""
    body = [(s.paper, f"“{s.claim}”", s.published, s.ours, s.word) for s in found]
    return table(HEADER, body, left=len(HEADER))


def read_summary(path: Path) -> Summary:
    """Return the line that an experiment's results hold.

    Raises:
        InputError: they hold none, or not all rows are made yet.
    """
    try:
        kept = json.loads(path.read_text("utf-8"))["summary"]
        return Summary(**(kept | {"word": Word(kept["word"])}))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(f"{path}: holds no finished experiment; run it to its end") from error


def _results(folder: Path) -> list[Path]:
    """Return the files of a folder that hold results.

    Raises:
        InputError: there is none.
    """
    found = sorted(folder.glob("*.json"))
    if not found:
        raise InputError(f"{folder}: holds no results (.json); name an experiment's --output")
    return found


if __name__ == "__main__":
    run_command(app)
