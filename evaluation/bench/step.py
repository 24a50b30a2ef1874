"""`python -m evaluation.bench.step`: times of private steps beside ordinary ones.

Every case runs in a process of its own, one after the other, and its row is written at once; rows
that the output has already are not measured again. This process itself imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.bench.cases import ORDINARY, Case, grid
from evaluation.bench.models import MODELS
from evaluation.bench.report import Results, as_markdown, write_figure
from evaluation.command import command_line, run_command
from twinset.artefact import write_text
from twinset.errors import InputError

METHODS = ("full", "lora")
PRECISIONS = ("float32", "bfloat16")
ENGINES = (
    "ours",
    "ours-low-memory",
    "ours-kernels",
    "opacus-hooks",
    "opacus-ghost",
    "vmap",
    "fastdp",
    "private-transformers",
)
FEWEST_ROUNDS = 3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Effort:
    """How long to measure, and how much memory a case may take."""

    rounds: int
    seconds: float
    memory_gib: float


@app.command()
def bench(
    models: Annotated[
        str, typer.Option(help="Random weights.")
    ] = "gpt2-14m,gpt2-124m,smollm2-135m",
    methods: Annotated[str, typer.Option(help="Train all weights, or LoRA.")] = "full,lora",
    shapes: Annotated[str, typer.Option(help="Units × tokens.")] = "8x64,32x128",
    per_unit: Annotated[str, typer.Option(help="Rows in a unit.")] = "1,2",
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    engines: Annotated[str, typer.Option(help="What is timed.")] = ",".join(ENGINES),
    threads: Annotated[int, typer.Option(min=1, help="Threads.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each.")] = 5,
    seconds_per_case: Annotated[float, typer.Option(help="Then 3 rounds do.")] = 60.0,
    memory_gib: Annotated[float, typer.Option(help="A case that wants more fails.")] = 20.0,
    output: Annotated[Path, typer.Option(help="This .json; .md and .png beside it.")] = Path(
        "evaluation/bench/results/step.json"
    ),
    case: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Time private steps beside ordinary ones; rows that the output has already are kept."""
    effort = Effort(rounds, seconds_per_case, memory_gib)
    if case is not None:
        _answer(json.loads(case), effort)
        return
    cases = grid(
        _names("--models", models, MODELS),
        _names("--methods", methods, METHODS),
        _names("--precision", precision, PRECISIONS)[0],
        [_shape(shape) for shape in shapes.split(",")],
        [_positive("--per-unit", k) for k in per_unit.split(",")],
        _names("--engines", engines, ENGINES),
        threads,
    )
    results = Results.open(output, command_line("evaluation.bench.step"))
    _measure(list(cases), effort, results)
    write_text(output.with_suffix(".md"), as_markdown(results))
    write_figure(results, output.with_suffix(".png"))


def _measure(cases: list[Case], effort: Effort, results: Results) -> None:
    todo = [case for case in cases if case not in results]
    for number, case in enumerate(todo, start=1):
        _say(f"{number}/{len(todo)} {case} …")
        row = _row(case, effort)
        results.add(case, row)
        _say(f"    {row.get('failed') or _summary(row)}")


def _summary(row: dict[str, Any]) -> str:
    memory = f"{row['memory_ratio']:.2f}× memory" if row["memory_ratio"] else "memory not measured"
    return f"{row['ratio']:.2f}× of {row['ordinary_seconds']:.2f} s, {memory}"


def _row(case: Case, effort: Effort) -> dict[str, Any]:
    timed = _ask(case, "times", effort)
    if "failed" in timed:
        return timed
    ordinary = _ask(case.by(ORDINARY), "memory", effort).get("bytes")
    candidate = _ask(case, "memory", effort).get("bytes")
    ratio = candidate / ordinary if candidate and ordinary else None
    return timed | {
        "ordinary_bytes": ordinary,
        "candidate_bytes": candidate,
        "memory_ratio": ratio,
    }


@cache  # the ordinary step's memory is asked for once an engine
def _ask(case: Case, measure: str, effort: Effort) -> dict[str, Any]:
    """Have another process measure; a failure of any kind comes back as {"failed": reason}."""
    wanted = json.dumps({"case": asdict(case), "measure": measure})
    command = [sys.executable, "-W", "ignore", "-m", "evaluation.bench.step", "--case", wanted]
    options = {
        "--rounds": effort.rounds,
        "--seconds-per-case": effort.seconds,
        "--memory-gib": effort.memory_gib,
    }
    command += [str(part) for option in options.items() for part in option]
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1][:200]
        killed = f"killed by signal {-done.returncode}"
        return {"failed": killed if done.returncode < 0 else last}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _answer(wanted: dict[str, Any], effort: Effort) -> None:
    """Measure in this process, as `_ask` of another one wished."""
    from evaluation.bench import measure

    case = Case(**wanted["case"])
    measure.limit(case.threads, effort.memory_gib)
    with contextlib.redirect_stdout(sys.stderr):  # some engines print
        try:
            if wanted["measure"] == "times":
                fewest = min(FEWEST_ROUNDS, effort.rounds)
                answer = measure.times(case, effort.rounds, fewest, effort.seconds)
            else:
                answer = measure.memory(case)
        except Exception as error:  # whatever another engine does is its row
            answer = {"failed": _reason(error)}
    typer.echo(json.dumps(answer))


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return first if kind == "Unavailable" else f"{kind}: {first}".removesuffix(": ")


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _names(option: str, given: str, known: Any) -> list[str]:
    names = given.split(",")
    for name in names:
        if name not in known:
            raise InputError(f"{option}: {name!r} is none of {', '.join(known)}")
    return names


def _positive(option: str, given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"{option}: {given!r} is not a number from 1 on")
    return int(given)


def _shape(given: str) -> tuple[int, int]:
    """Read `8x64`.

    >>> _shape("8x64")
    (8, 64)
    """
    batch, _, length = given.partition("x")
    return _positive("--shapes", batch), _positive("--shapes", length)


if __name__ == "__main__":
    run_command(app)
