"""A private training step: twinset, twinset without privacy, transformers and Opacus in one run.

python -m evaluation.bench.step --base-model gpt2-mini
python -m evaluation.bench.step --against ../older-checkout
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .runner import Contestant, format_table, publish, run_rounds

OURS = "twinset, private"


def bench(
    base_model: Annotated[str, typer.Option(help="Asset, folder or hub name.")] = "gpt2-mini",
    method: Annotated[str, typer.Option(help="lora or full.")] = "lora",
    batch: Annotated[int, typer.Option(help="Expected records of a step.")] = 32,
    tokens: Annotated[int, typer.Option(help="Tokens of a record.")] = 64,
    steps: Annotated[int, typer.Option(help="Steps of each contestant in a round.")] = 8,
    rounds: Annotated[int, typer.Option(help="Times that all are measured in turn.")] = 5,
    threads: Annotated[int, typer.Option(help="Of each contestant.")] = 1,
    against: Annotated[Path | None, typer.Option(help="Another checkout of twinset.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the page.")] = None,
) -> None:
    """Time a step of each contestant in turn, and print each one's share of the first's time."""
    work = {"base_model": base_model, "batch": batch, "tokens": tokens, "steps": steps}
    shape = work | {"method": method}
    contestants = [
        Contestant(OURS, "step_of_twinset", shape),
        Contestant("twinset, no privacy", "step_of_twinset", shape | {"private": False}),
        Contestant("transformers, no privacy", "step_of_transformers", shape),
        Contestant("Opacus", "step_of_opacus", shape),
    ]
    if against is not None:
        older = Contestant(f"twinset at {against.name}", "step_of_twinset", shape, against)
        contestants.insert(1, older)
    found = run_rounds(contestants, rounds, threads)
    title = f"{base_model}, {method}, {batch} records of {tokens} tokens, {threads} thread(s)"
    publish("step", [title, "", *format_table(found, OURS)], output)


if __name__ == "__main__":
    typer.run(bench)
