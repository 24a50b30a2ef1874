"""`make gpu`: the tests that need a GPU, then steps and rows on it. Nothing is downloaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .runner import ROOT, Contestant, format_table, publish, run_rounds


def bench(
    base_model: Annotated[str, typer.Option(help="Asset, folder or hub name.")] = "gpt2-mini",
    rounds: Annotated[int, typer.Option(help="Times that all are measured in turn.")] = 3,
    output: Annotated[Path | None, typer.Option(help="Folder for the page.")] = None,
) -> None:
    """Run the tests marked `gpu`, then time a private step and rows, with and without the GPU.

    The exit code is 1 if a test failed.
    """
    tests = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rfE", "tests"]
    done = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True)
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
    step = {"base_model": base_model, "batch": 64, "tokens": 128, "steps": 8, "method": "lora"}
    rows = {"base_model": base_model, "rows": 512, "tokens": 128}
    tables = []
    for task, work in (("step_of_twinset", step), ("rows_of_twinset", rows)):
        contestants = [
            Contestant(device, task, work | {"device": device}) for device in ("auto", "cpu")
        ]
        found = run_rounds(contestants, rounds, threads=1)
        tables += [f"## {task}", "", *format_table(found, "auto"), ""]
    publish("gpu", [f"Tests: {' '.join(last)}", "", *tables], output)
    if done.returncode not in (0, 5):  # 5: no test was found, for example without a GPU
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bench)
