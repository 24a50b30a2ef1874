"""`python -m evaluation.papers.adp`: does adaptive noise cost less, and still hide a canary?

Wu, Gong and Xiong 2022: a transformer decoder on WikiText without noise, with DP-SGD and with noise
that follows how unusual a public model finds each text. All results but the plan are computed on
private lines and stay with their owner. A command that was stopped goes on with the row it was at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.command import run_command
from evaluation.papers.adp.corpora import Paths
from evaluation.papers.adp.experiment import Adp
from evaluation.papers.adp.sizes import SIZES
from evaluation.papers.experiment import run
from evaluation.papers.options import DryRun, Options, Output, Seeds, Size, named_files, size_named

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_FILE: Any = typer.Option(help="One record a line: .txt, or a table with a column text; .gz too.")
File = Annotated[Path | None, _FILE]


@app.command()
def adp(
    public: File = None,
    private_train: File = None,
    private_test: File = None,
    public_model: Annotated[
        str | None, typer.Option(help="That weighs texts: an asset, a folder or a hub name.")
    ] = None,
    size: Size = "cpu",
    seeds: Seeds = 3,
    output: Output = Path("runs/adp"),
    dry_run: DryRun = False,
) -> None:
    """Make the rows that the results lack, then the page with its verdict, and the figure."""
    how = size_named(SIZES, size)
    if public_model is not None:
        how = replace(how, public_model=public_model)
    named = {"public": public, "private_train": private_train, "private_test": private_test}
    files = named_files(dry_run, named)
    paths = Paths(*files.values()) if files else None
    run(Adp(size, how, paths), Options(seeds, output, dry_run))


if __name__ == "__main__":
    run_command(app)
