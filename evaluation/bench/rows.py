"""Rows per second: twinset and Hugging Face's `generate` in one run, and the machine's limit.

python -m evaluation.bench.rows --base-model gpt2-mini
python -m evaluation.bench.rows --against ../older-checkout
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .runner import (
    Contestant,
    format_table,
    measure_contestant,
    publish,
    run_rounds,
)

OURS = "twinset, tilted"


def bench(
    base_model: Annotated[str, typer.Option(help="Asset, folder or hub name.")] = "gpt2-mini",
    rows: Annotated[int, typer.Option(help="Rows of each contestant in a round.")] = 128,
    tokens: Annotated[int, typer.Option(help="Most tokens of a row.")] = 64,
    rounds: Annotated[int, typer.Option(help="Times that all are measured in turn.")] = 5,
    threads: Annotated[int, typer.Option(help="Of each contestant.")] = 1,
    against: Annotated[Path | None, typer.Option(help="Another checkout of twinset.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the page.")] = None,
) -> None:
    """Write rows with each contestant in turn, in tokens per second relative to the first's."""
    work = {"base_model": base_model, "rows": rows, "tokens": tokens}
    contestants = [
        Contestant(OURS, "rows_of_twinset", work),
        Contestant("twinset, untilted", "rows_of_twinset", work | {"words": False}),
        Contestant("transformers generate", "rows_of_generate", work),
    ]
    if against is not None:
        older = Contestant(f"twinset at {against.name}", "rows_of_twinset", work, against)
        contestants.insert(1, older)
    found = run_rounds(contestants, rounds, threads)
    limit = measure_contestant(Contestant("limit", "matrix_products", {}), threads)
    title = f"{base_model}, {rows} rows of at most {tokens} tokens, {threads} thread(s)"
    shown = f"{limit['rate']:.0f} GFLOP/s" if "rate" in limit else limit["failed"]
    machine = f"Matrix product of 64 × 576 × 1536 in float32: {shown}."
    publish("rows", [title, "", *format_table(found, OURS), "", machine], output)


if __name__ == "__main__":
    typer.run(bench)
