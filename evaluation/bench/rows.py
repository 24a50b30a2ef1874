"""Rows per second beside Hugging Face's `generate`, and a run's phases beside the machine's limit.

python -m evaluation.bench.rows --base-model gpt2-mini
python -m evaluation.bench.rows --against ../older-checkout
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinset.models.device import device_of, has_bfloat16

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
    records: Annotated[int, typer.Option(help="Records of the run whose phases are shown.")] = 600,
    rounds: Annotated[int, typer.Option(help="Times that all are measured in turn.")] = 5,
    threads: Annotated[int, typer.Option(help="Of each contestant.")] = 1,
    against: Annotated[Path | None, typer.Option(help="Another checkout of twinset.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the page.")] = None,
) -> None:
    """Write rows with each contestant in turn, and time the processor.

    Then make one twin twice: once its phases are timed, and once their operations are counted.
    """
    number_format = "bfloat16" if has_bfloat16(device_of("cpu")) else "float32"
    work = {"base_model": base_model, "rows": rows, "tokens": tokens}
    contestants = [
        Contestant(OURS, "rows_of_twinset", work),
        Contestant("twinset, untilted", "rows_of_twinset", work | {"words": False}),
        Contestant("transformers generate", "rows_of_generate", work | {"format": number_format}),
    ]
    if against is not None:
        older = Contestant(f"twinset at {against.name}", "rows_of_twinset", work, against)
        contestants.insert(1, older)
    found = run_rounds(contestants, rounds, threads)
    title = f"{base_model}, {rows} rows of at most {tokens} tokens, {threads} thread(s)"
    lines = [title, "", *format_table(found, OURS), ""]

    one = Contestant("limit", "matrix_products", {"format": number_format})
    limit = measure_contestant(one, threads)
    of_run = work | {"records": records}
    timed, counted = (
        measure_contestant(Contestant("phases", "phases_of_run", of_run | more), threads)
        for more in ({}, {"counted": True})
    )
    if any("failed" in each for each in (limit, timed, counted)):
        lines.append(f"Phases: not measured. {limit} {timed} {counted}")
        publish("rows", lines, output)
        raise typer.Exit(1)
    lines += [
        f"A run of {records} records and {rows} rows with a teacher, phase by phase. The limit is "
        f"a product of 64 × 576 × 1536 in {number_format}: {limit['rate']:.0f} GFLOP/s, "
        f"{limit['note']}.",
        "",
        "| phase | CPU seconds | 10⁹ operations | GFLOP/s | of the limit |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for phase, seconds in timed["phases"].items():
        if (operations := counted["phases"].get(phase, 0) / 1e9) >= 1:
            rate = operations / seconds
            share = f"{rate / limit['rate']:.0%}"
            lines.append(f"| {phase} | {seconds:.1f} | {operations:.0f} | {rate:.0f} | {share} |")
    publish("rows", lines, output)


if __name__ == "__main__":
    typer.run(bench)
