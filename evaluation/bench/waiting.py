"""`python -m evaluation.bench.waiting`: a private step on an idle machine, and beside other work.

Threads that wait for one another by turning in a loop take time from whatever else there is to do,
the others of their own step too; asleep they do not, and wake later. `twinset` has them turn for a
moment and then sleep.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Annotated, Any

import typer

from evaluation.bench import runner
from evaluation.bench.runner import RESULTS, Output, Rounds
from evaluation.markdown import facts, page, publish, table
from twinset.commandline.entry_point import WAITING

IDLE, BUSY = "idle", "beside other work"
STEPS = 3  # in a process; the fastest counts
ONE, SPINNING, ASLEEP = "one thread", "threads that spin", "threads that sleep"
BRIEFLY = "threads that spin for a moment, as `twinset` has them"


def bench(
    model: Annotated[str, typer.Option(help="Random weights.")] = "smollm2-135m",
    records: Annotated[int, typer.Option(min=1, help="In a step.")] = 8,
    threads: Annotated[int, typer.Option(min=2, help="Threads.")] = 2,
    others: Annotated[int, typer.Option(min=1, help="Busy processes beside it.")] = 2,
    rounds: Rounds = 3,
    output: Output = RESULTS / "waiting.json",
) -> None:
    """Time a step with one thread, and with several that wait in three ways."""
    ways = {
        ONE: (1, dict[str, str]()),
        SPINNING: (threads, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ASLEEP: (threads, {"OMP_WAIT_POLICY": "PASSIVE"}),
        BRIEFLY: (threads, WAITING),
    }
    measures = {
        f"{name}, {load}": partial(_measured, model, records, *way, busy)
        for name, way in ways.items()
        for load, busy in ((IDLE, 0), (BUSY, others))
    }
    found: dict[str, Any] = {
        **runner.stamp("waiting"),
        "model": model,
        "records": records,
        "threads": threads,
        "other processes": others,
        "cores": os.cpu_count(),
        "turns": runner.in_turn(measures, rounds),
    }
    publish(output, found, markdown(found))
    typer.echo(output.with_suffix(".md").read_text("utf-8"))


def _measured(
    model: str, records: int, threads: int, waiting: dict[str, str], busy: int, turn: int
) -> float:
    with _other_work(busy):
        found: float = runner.ask(
            "waiting", model, records, threads, **waiting, OMP_NUM_THREADS=str(threads)
        )
    return found


@contextmanager
def _other_work(count: int) -> Iterator[None]:
    begun = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in begun:
            process.kill()
            process.wait()


def measured_here(model: str, records: int, threads: int) -> float:
    """Return seconds of the fastest of some steps, in this process."""
    import torch

    from evaluation.bench.measure import seconds_of
    from evaluation.bench.precision import private_step, records_of

    torch.set_num_threads(threads)
    step = private_step(model, records_of(model, records, 40), threads)
    step()
    return round(min(seconds_of(step) for _ in range(STEPS)), 4)


def markdown(found: dict[str, Any]) -> str:
    """Return a table of medians over turns."""
    turns: dict[str, list[float]] = found["turns"]

    def cell(name: str, load: str) -> str:
        pairs = zip(turns[f"{ONE}, {load}"], turns[f"{name}, {load}"], strict=True)
        ratio = median(one / its for one, its in pairs)
        return f"{median(turns[f'{name}, {load}']):.2f} s ({ratio:.2f}×)"

    rows = [[name, cell(name, IDLE), cell(name, BUSY)] for name in (ONE, SPINNING, ASLEEP, BRIEFLY)]
    introduction = (
        "Seconds of a private LoRA step, and in brackets how many times as fast as with one "
        "thread: medians over turns."
    )
    lines = table(["", IDLE, BUSY], rows)
    return page("Threads that wait", [introduction], facts(found, "turns"), lines)


if __name__ == "__main__":
    runner.run(bench, measured_here)
