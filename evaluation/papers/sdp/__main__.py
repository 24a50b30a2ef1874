"""`python -m evaluation.papers.sdp`: does protecting private tokens alone leave more to learn?

Shi, Cui, Li, Jia and Yu 2022: LSTMs with Selective-DPSGD as published, beside DPSGD, no noise and
anonymised text, attacked by canaries and membership inference; transformers in two phases. All
results but the plan are computed on private rows and stay with their owner. A command that was
stopped goes on with the row it was at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evaluation.command import run_command
from evaluation.papers.experiment import run
from evaluation.papers.options import DryRun, Options, Output, Seeds, Size, named_files, size_named
from evaluation.papers.sdp.experiment import Paths, Sdp
from evaluation.papers.sdp.sizes import SIZES
from twinset.errors import InputError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Lines = Annotated[Path | None, typer.Option(help="WikiText-2: lines of text, .txt or .txt.gz.")]
Dialogs = Annotated[
    Path | None, typer.Option(help="CustomerSim: a table of dialogues; left out, some are made.")
]
GPT2 = "gpt2"  # of the full size, unless another is named


@app.command()
def sdp(
    wikitext_train: Lines = None,
    wikitext_test: Lines = None,
    dialogs_train: Dialogs = None,
    dialogs_test: Dialogs = None,
    base: Annotated[
        str | None, typer.Option(help="Folder or hub name of a public GPT-2 to begin from.")
    ] = None,
    size: Size = "cpu",
    seeds: Seeds = 3,
    output: Output = Path("runs/sdp"),
    dry_run: DryRun = False,
) -> None:
    """Make the rows that the results lack, then the page with its verdicts, and the figure."""
    how = size_named(SIZES, size)
    named = {"wikitext_train": wikitext_train, "wikitext_test": wikitext_test}
    files = named_files(dry_run, named)
    if (dialogs_train is None) != (dialogs_test is None):
        raise InputError("--dialogs-train and --dialogs-test: name both, or none")
    paths = None
    if files:
        lines = files["wikitext_train"], files["wikitext_test"]
        paths = Paths(*lines, dialogs_train, dialogs_test)
    if how.vocabulary is None and base is None and paths is not None:
        base = GPT2
    run(Sdp(size, how, paths, base), Options(seeds, output, dry_run))


if __name__ == "__main__":
    run_command(app)
