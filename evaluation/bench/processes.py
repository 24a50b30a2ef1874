"""`python -m evaluation.bench.processes`: what several processes gain on this machine.

`twinset generate` on the demo's film reviews with gpt2-mini: one process of one thread, one process
of several threads, several processes of one thread each; each in a process of its own, in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.bench.large import Watch
from evaluation.bench.report import surroundings
from evaluation.command import command_line, run_command
from twinset.artefact import write_json, write_text
from twinset.demodata import demo_reviews
from twinset.errors import InputError
from twinset.formats import write_frame
from twinset.options import run_config
from twinset.rowgroups import GROUP_ROWS

TABLE, RUN = "reviews.parquet", "run"
OPTIONS = {
    "base_model": "gpt2-mini",
    "steps": 5,
    "batch_size": 256,
    "max_tokens": 48,
    "max_new_tokens": 16,
}
ROWS = 2 * GROUP_ROWS  # which processes share out by groups

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    processes: Annotated[int, typer.Option(min=2, help="K: the number of cores.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 3,
    output: Annotated[Path, typer.Option(help="This .json; .md beside it.")] = Path(
        "evaluation/bench/results/processes.json"
    ),
) -> None:
    """Measure a step and the writing of rows, each way in turn."""
    if os.cpu_count() != processes:  # a run shares all cores out among its processes
        raise InputError(f"--processes: this machine has {os.cpu_count()} cores; name that number")
    ways: dict[tuple[int, int], list[dict[str, float]]] = {
        (1, 1): [],
        (1, processes): [],
        (processes, 1): [],
    }
    with tempfile.TemporaryDirectory() as folder:
        write_frame(demo_reviews()[0], Path(folder, TABLE))
        for turn in range(rounds):
            for way, found in ways.items():
                found.append(_measured(Path(folder), *way))
                typer.echo(f"round {turn + 1}, {_named(*way)}: {found[-1]}", err=True)
    told: dict[str, Any] = {**surroundings(), "command": command_line("evaluation.bench.processes")}
    told |= {"options": OPTIONS | {"rows": ROWS}}
    told["ways"] = [{"processes": k, "threads": t, "rounds": r} for (k, t), r in ways.items()]
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, told)
    write_text(output.with_suffix(".md"), markdown(told))


def _measured(place: Path, processes: int, threads: int) -> dict[str, float]:
    told = subprocess.run(
        [sys.executable, "-m", "evaluation.bench.processes", "--in-process", place, str(processes)],
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        check=True,
    )
    found: dict[str, float] = json.loads(told.stdout)
    return found


def run_here(place: Path, processes: int) -> None:
    """Run `twinset generate` in this process; tell seconds of a step, and of writing the rows."""
    from twinset.generate import generate
    from twinset.request import Places, RowsWanted, Source

    source = Source(str(place / TABLE), "review", ("verdict",), prompt="film-verdict")
    config = run_config(OPTIONS | {"processes": processes})
    watch, places = Watch(None), Places(run=place / RUN, overwrite=True)
    generate(source, config, RowsWanted(ROWS), places, watch)
    ends = [end[0] for end in watch.ends]
    whole = time.perf_counter() - watch.began[0]
    told = {"step": float(np.median(np.diff(ends))), "rows": float(whole - ends[-1])}
    typer.echo(json.dumps(told))


def markdown(found: dict[str, Any]) -> str:
    """Return a table with a row for each way."""
    first: dict[str, Any] = found["ways"][0]
    lines = [
        "# Several processes",
        "",
        "`twinset generate` on film reviews. Seconds of the wall, the median of all rounds, and in "
        "brackets how many times as fast as one process of one thread; rows are counted from the "
        "last step to the finished twin, so that saving the model and starting is part of it.",
        "",
        *(f"- {name}: {value}" for name, value in found.items() if name != "ways"),
        "",
        "| | rounds | a step | rows |",
        "|---|---:|---:|---:|",
    ]
    for way in found["ways"]:
        cells = [_cell(way, first, name) for name in ("step", "rows")]
        named = _named(way["processes"], way["threads"])
        lines.append(f"| {named} | {len(way['rounds'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(way: dict[str, Any], first: dict[str, Any], name: str) -> str:
    own, least = (median(r[name] for r in w["rounds"]) for w in (way, first))
    return f"{own:.2f} s ({least / own:.2f}×)"


def _named(processes: int, threads: int) -> str:
    return f"processes: {processes}, threads of each: {threads}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-process"]:
        run_here(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        run_command(app)
