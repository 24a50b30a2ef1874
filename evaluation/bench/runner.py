"""What all benchmarks share: their command line, processes of their own, and turns.

A benchmark is a function whose parameters are its options; `run` makes it a command. Knows no model
and imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from evaluation.results_store import about
from evaluation.run_command import command, command_line, run_command
from twinset.errors import InputError
from twinset.files.import_path import worker_environment

LIBRARIES = ("torch", "transformers", "opacus", "numpy")
RESULTS = Path("evaluation/bench/results")
IN_PROCESS = "--in-process"
Result = TypeVar("Result")
Output = Annotated[Path, typer.Option(help="This .json; .md beside it.")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns of each.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads.")]


def run(bench: Callable[..., None], in_process: Callable[..., Any] | None = None) -> None:
    """Run a benchmark; or the part of it that `ask` wants measured in a process of its own."""
    if in_process is None or sys.argv[1:2] != [IN_PROCESS]:
        run_command(command(bench))
        return
    with contextlib.redirect_stdout(sys.stderr):  # what is measured may print
        found = in_process(*json.loads(sys.argv[2]))
    answer(found)


def answer(found: Any) -> None:
    """Hand plain values to the process that asked."""
    typer.echo(json.dumps(found), file=sys.__stdout__)


class Failed(Exception):
    """A process ended without an answer."""


def ask(name: str, *arguments: Any, **environment: str) -> Any:
    """Return what `in_process` of `run` returns in a new process: plain values, both ways.

    Raises:
        Failed: with the last line that it wrote, or the signal that ended it.
    """
    asked = [sys.executable, "-P", "-W", "ignore", "-m", f"evaluation.bench.{name}", IN_PROCESS]
    done = subprocess.run(
        [*asked, json.dumps(arguments)],
        env=worker_environment() | environment,
        capture_output=True,
        text=True,
    )
    if done.stdout:
        return json.loads(done.stdout)
    last = (done.stderr.strip().splitlines() or [""])[-1][:200]
    raise Failed(f"killed by signal {-done.returncode}" if done.returncode < 0 else last)


def in_turn(
    ways: Mapping[str, Callable[[int], Result]], rounds: int, warm_up: bool = False
) -> dict[str, list[Result]]:
    """Measure each way once a round, so that what else the machine does falls on all alike.

    Args:
        ways: by name; each is called with the number of the round, from 1.
        rounds: how many.
        warm_up: whether a round 0 comes before, which is not kept.
    """
    found: dict[str, list[Result]] = {name: [] for name in ways}
    for turn in range(0 if warm_up else 1, rounds + 1):
        for name, measure in ways.items():
            measured = measure(turn)
            typer.echo(f"{turn}/{rounds} {name}: {measured}", err=True)
            if turn:
                found[name].append(measured)
    return found


def stamp(name: str) -> dict[str, str]:
    """Return the command, versions and machine, a line each."""
    return {"command": command_line(f"evaluation.bench.{name}"), **about(LIBRARIES)}


def names_in(option: str, given: str, known: Collection[str]) -> list[str]:
    """Return the names of "a,b".

    Raises:
        InputError: one is not known.
    """
    for name in given.split(","):
        if name not in known:
            raise InputError(f"{option}: {name!r} is none of {', '.join(known)}")
    return given.split(",")


def positive(option: str, given: str) -> int:
    """Return a whole number from 1 on.

    Raises:
        InputError: it is none.
    """
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"{option}: {given!r} is not a number from 1 on")
    return int(given)
