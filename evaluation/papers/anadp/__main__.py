"""`python -m evaluation.papers.anadp`: is noise better where parameters matter less?

Li, Zmigrod, Ma, Liu and Zhu 2024: encoders fine-tuned whole, by LoRA and by adapters, without
privacy, with uniform noise and with noise by importance; and how well a language model then knows
the names and telephone numbers of e-mails. All results but the plan are computed on private rows
and stay with their owner. A command that was stopped goes on with the row it was at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.command import run_command
from evaluation.papers.anadp.corpora import Paths
from evaluation.papers.anadp.experiment import Anadp
from evaluation.papers.anadp.sizes import SIZES
from evaluation.papers.experiment import run
from evaluation.papers.options import DryRun, Options, Output, Seeds, Size, named_files, size_named

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_TABLE: Any = typer.Option(help="A table with the columns text and sentiment (AG News: topic).")
Table = Annotated[Path | None, _TABLE]


@app.command()
def anadp(
    sst2_train: Table = None,
    sst2_test: Table = None,
    ag_news_train: Table = None,
    ag_news_test: Table = None,
    yelp_train: Table = None,
    yelp_test: Table = None,
    emails: Annotated[Path | None, typer.Option(help="A table with a column body.")] = None,
    public: Annotated[
        Path | None, typer.Option(help="Text, one record a line: .txt, or a column text; .gz too.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="That is fine-tuned: a folder or a hub name.")
    ] = None,
    size: Size = "cpu",
    seeds: Seeds = 3,
    output: Output = Path("runs/anadp"),
    dry_run: DryRun = False,
) -> None:
    """Make the rows that the results lack, then the page with its verdict, and the figure."""
    how = size_named(SIZES, size)
    if encoder is not None:
        how = replace(how, encoder=encoder)
    named = {
        "sst2_train": sst2_train,
        "sst2_test": sst2_test,
        "ag_news_train": ag_news_train,
        "ag_news_test": ag_news_test,
        "yelp_train": yelp_train,
        "yelp_test": yelp_test,
        "emails": emails,
        "public": public,
    }
    files = named_files(dry_run, named)
    paths = Paths(**files) if files else None
    run(Anadp(size, how, paths), Options(seeds, output, dry_run))


if __name__ == "__main__":
    run_command(app)
