"""`python -m evaluation.papers.kerrigan`: does public text make private training possible?

Kerrigan, Slack and Tuyls 2020: a language model of public text, of private text, and of one after
the other, without noise and with σ = 0.1 and 1.1. All results but the plan are computed on private
lines and stay with their owner. A command that was stopped goes on with the row it was at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.command import run_command
from evaluation.papers.experiment import run
from evaluation.papers.kerrigan.corpora import Paths
from evaluation.papers.kerrigan.experiment import Kerrigan
from evaluation.papers.kerrigan.sizes import SIZES, with_folder
from evaluation.papers.options import DryRun, Options, Output, Seeds, Size, named_files, size_named

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_FILE: Any = typer.Option(help="One record a line: .txt, or a table with a column text; .gz too.")
File = Annotated[Path | None, _FILE]


@app.command()
def kerrigan(
    public: File = None,
    private_train: File = None,
    private_dev: File = None,
    private_test: File = None,
    gpt2: Annotated[
        Path | None, typer.Option(help="Folder of a public GPT-2 to begin from.")
    ] = None,
    size: Size = "cpu",
    seeds: Seeds = 3,
    output: Output = Path("runs/kerrigan"),
    dry_run: DryRun = False,
) -> None:
    """Make the rows that the results lack, then the page with its verdict, and the figure."""
    how = size_named(SIZES, size)
    if gpt2 is not None:
        how = with_folder(how, gpt2)
    named = {
        "public": public,
        "private_train": private_train,
        "private_dev": private_dev,
        "private_test": private_test,
    }
    files = named_files(dry_run, named)
    paths = Paths(*files.values()) if files else None
    run(Kerrigan(size, how, paths), Options(seeds, output, dry_run))


if __name__ == "__main__":
    run_command(app)
