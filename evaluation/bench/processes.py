"""`python -m evaluation.bench.processes`: what several processes gain on this machine.

`twinset generate` on the demo's film reviews with gpt2-mini: one process of one thread, one process
of several threads, several processes of one thread each; each in a process of its own, in turn.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.bench import runner
from evaluation.bench.large import Watch
from evaluation.bench.runner import RESULTS, Output, Rounds
from evaluation.demo_tables.film_reviews import demo_reviews
from evaluation.markdown import facts, page, publish, table
from twinset.config.options import run_config
from twinset.data.formats import write_frame
from twinset.errors import InputError
from twinset.sampling.row_shards import GROUP_ROWS

TABLE, RUN = "reviews.parquet", "run"
OPTIONS = {
    "base_model": "gpt2-mini",
    "steps": 5,
    "batch_size": 256,
    "max_tokens": 48,
    "max_new_tokens": 16,
}
ROWS = 2 * GROUP_ROWS  # which processes share out by groups


def bench(
    processes: Annotated[int, typer.Option(min=2, help="K: the number of cores.")] = 2,
    rounds: Rounds = 3,
    output: Output = RESULTS / "processes.json",
) -> None:
    """Measure a step and the writing of rows, each way in turn."""
    if os.cpu_count() != processes:  # a run shares all cores out among its processes
        raise InputError(f"--processes: this machine has {os.cpu_count()} cores; name that number")
    ways = [(1, 1), (1, processes), (processes, 1)]
    with tempfile.TemporaryDirectory() as folder:
        write_frame(demo_reviews()[0], Path(folder, TABLE))
        measures = {_named(*way): partial(_measured, folder, *way) for way in ways}
        rows = runner.in_turn(measures, rounds)
    found: dict[str, Any] = {**runner.stamp("processes"), "options": OPTIONS | {"rows": ROWS}}
    found["ways"] = [{"processes": k, "threads": t, "rounds": rows[_named(k, t)]} for k, t in ways]
    publish(output, found, markdown(found))


def _measured(folder: str, processes: int, threads: int, turn: int) -> dict[str, float]:
    found: dict[str, float] = runner.ask(
        "processes", folder, processes, OMP_NUM_THREADS=str(threads)
    )
    return found


def measured_here(folder: str, processes: int) -> dict[str, float]:
    """Run `twinset generate` in this process; return seconds of a step, and of writing the rows."""
    from twinset.pipeline.generate import generate
    from twinset.pipeline.request import OutputPaths, Source
    from twinset.sampling.allocation import RowsRequest

    source = Source(str(Path(folder, TABLE)), "review", ("verdict",), prompt="film-verdict")
    config = run_config(OPTIONS | {"processes": processes})
    watch, places = Watch(None), OutputPaths(run=Path(folder, RUN), overwrite=True)
    generate(source, config, RowsRequest(ROWS), places, watch)
    ends = [end[0] for end in watch.ends]
    whole = time.perf_counter() - watch.began[0]
    return {"step": float(np.median(np.diff(ends))), "rows": float(whole - ends[-1])}


def markdown(found: dict[str, Any]) -> str:
    """Return a table with a row for each way."""
    first: dict[str, Any] = found["ways"][0]
    introduction = (
        "`twinset generate` on film reviews. Seconds of the wall, the median of all rounds, and in "
        "brackets how many times as fast as one process of one thread; rows are counted from the "
        "last step to the finished twin, so that saving the model and starting is part of it."
    )
    rows = [
        [
            _named(way["processes"], way["threads"]),
            str(len(way["rounds"])),
            *(_cell(way, first, name) for name in ("step", "rows")),
        ]
        for way in found["ways"]
    ]
    lines = table(["", "rounds", "a step", "rows"], rows)
    return page("Several processes", [introduction], facts(found, "ways"), lines)


def _cell(way: dict[str, Any], first: dict[str, Any], name: str) -> str:
    own, least = (median(r[name] for r in w["rounds"]) for w in (way, first))
    return f"{own:.2f} s ({least / own:.2f}×)"


def _named(processes: int, threads: int) -> str:
    return f"processes: {processes}, threads of each: {threads}"


if __name__ == "__main__":
    runner.run(bench, measured_here)
