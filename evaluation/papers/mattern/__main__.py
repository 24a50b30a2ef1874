"""`python -m evaluation.papers.mattern`: is a private twin as good as the table it stands for?

Mattern, Jin, Weggenmann, Schölkopf and Sachan 2022: twins of film reviews and of product reviews
from 25, 50 and all records at ε = 3, 8 and ∞, beside what the same model writes without any private
data, and beside a classifier that learns from the real rows with the same ε. All results but the
plan are computed on private rows and stay with their owner. A command that was stopped goes on with
the row it was at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.command import run_command
from evaluation.papers.experiment import run
from evaluation.papers.mattern.experiment import Mattern
from evaluation.papers.mattern.reviews import Paths
from evaluation.papers.mattern.sizes import SIZES
from evaluation.papers.options import DryRun, Options, Output, Seeds, Size, named_files, size_named

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_FILMS: Any = typer.Option(help="Film reviews: a table with columns text and sentiment.")
_PRODUCTS: Any = typer.Option(help="Product reviews: columns text, sentiment and product.")
Films = Annotated[Path | None, _FILMS]
Products = Annotated[Path | None, _PRODUCTS]


@app.command()
def mattern(
    imdb_train: Films = None,
    imdb_test: Films = None,
    amazon_train: Products = None,
    amazon_test: Products = None,
    base_model: Annotated[
        str | None, typer.Option(help="That writes the twins: an asset, a folder or a hub name.")
    ] = None,
    size: Size = "cpu",
    seeds: Seeds = 3,
    output: Output = Path("runs/mattern"),
    dry_run: DryRun = False,
) -> None:
    """Make the rows that the results lack, then the page with its verdicts, and the figure."""
    how = size_named(SIZES, size)
    if base_model is not None:
        how = replace(how, base_model=base_model)
    named = {
        "imdb_train": imdb_train,
        "imdb_test": imdb_test,
        "amazon_train": amazon_train,
        "amazon_test": amazon_test,
    }
    files = named_files(dry_run, named)
    paths = Paths(*files.values()) if files else None
    run(Mattern(size, how, paths), Options(seeds, output, dry_run))


if __name__ == "__main__":
    run_command(app)
