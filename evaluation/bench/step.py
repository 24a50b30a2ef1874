"""`python -m evaluation.bench.step`: times of private steps beside ordinary ones.

Every case runs in a process of its own, one after the other, and its row is written at once; rows
that the output has already are not measured again. This process itself imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import date
from functools import cache
from typing import Annotated, Any

import typer

from evaluation.bench import runner
from evaluation.bench.cases import ORDINARY, StepCase, grid
from evaluation.bench.models import MODELS
from evaluation.bench.report import as_markdown, write_figure
from evaluation.bench.runner import RESULTS, Output, Threads, names_in, positive
from evaluation.results_store import ResultsStore, about
from evaluation.run_command import command_line
from twinset.files.atomic import write_text

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


@dataclass(frozen=True)
class Effort:
    """How long to measure, and how much memory a case may take."""

    rounds: int
    seconds: float
    memory_gib: float


def bench(
    models: Annotated[
        str, typer.Option(help="Random weights.")
    ] = "gpt2-14m,gpt2-124m,smollm2-135m",
    methods: Annotated[str, typer.Option(help="Train all weights, or LoRA.")] = "full,lora",
    shapes: Annotated[str, typer.Option(help="Units × tokens.")] = "8x64,32x128",
    per_unit: Annotated[str, typer.Option(help="Rows in a unit.")] = "1,2",
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    engines: Annotated[str, typer.Option(help="What is timed.")] = ",".join(ENGINES),
    threads: Threads = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each.")] = 5,
    seconds_per_case: Annotated[float, typer.Option(help="Then 3 rounds do.")] = 60.0,
    memory_gib: Annotated[float, typer.Option(help="A case that wants more fails.")] = 20.0,
    output: Output = RESULTS / "step.json",
) -> None:
    """Time private steps beside ordinary ones; rows that the output has already are kept."""
    cases = grid(
        names_in("--models", models, MODELS),
        names_in("--methods", methods, METHODS),
        names_in("--precision", precision, PRECISIONS)[0],
        [_shape(shape) for shape in shapes.split(",")],
        [positive("--per-unit", k) for k in per_unit.split(",")],
        names_in("--engines", engines, ENGINES),
        threads,
    )
    effort = Effort(rounds, seconds_per_case, memory_gib)
    store = ResultsStore.open(
        output, about(runner.LIBRARIES), command_line("evaluation.bench.step")
    )
    for turn, key in store.missing([astuple(case) for case in cases]):
        case = StepCase.of(key)
        typer.echo(f"{turn}: {case} …", err=True)
        row = _row(case, effort) | {"date": date.today().isoformat()}
        store.add(key, row)
        typer.echo(f"    {row.get('failed') or _summary(row)}", err=True)
    write_text(output.with_suffix(".md"), as_markdown(store))
    write_figure(store, output.with_suffix(".png"))


def _summary(row: dict[str, Any]) -> str:
    memory = f"{row['memory_ratio']:.2f}× memory" if row["memory_ratio"] else "memory not measured"
    return f"{row['ratio']:.2f}× of {row['ordinary_seconds']:.2f} s, {memory}"


def _row(case: StepCase, effort: Effort) -> dict[str, Any]:
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
def _ask(case: StepCase, measure: str, effort: Effort) -> dict[str, Any]:
    """Have another process measure; a failure of any kind comes back as {"failed": reason}."""
    environment = {"OMP_NUM_THREADS": str(case.threads), "HF_HUB_OFFLINE": "1"}
    try:
        found: dict[str, Any] = runner.ask(
            "step", astuple(case), measure, asdict(effort), **environment
        )
    except runner.Failed as error:
        return {"failed": str(error)}
    return found


def measured_here(case: Sequence[Any], measure: str, effort: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process, as `_ask` of another one wished."""
    from evaluation.bench import measure as measures

    asked, how = StepCase.of(case), Effort(**effort)
    measures.limit(asked.threads, how.memory_gib)
    try:
        if measure == "memory":
            return measures.memory(asked)
        return measures.times(asked, how.rounds, min(FEWEST_ROUNDS, how.rounds), how.seconds)
    except Exception as error:  # whatever another engine does is its row
        return {"failed": _reason(error)}


def _reason(error: Exception) -> str:
    kind = type(error).__name__
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return first if kind == "Unavailable" else f"{kind}: {first}".removesuffix(": ")


def _shape(given: str) -> tuple[int, int]:
    """Read `8x64`.

    >>> _shape("8x64")
    (8, 64)
    """
    batch, _, length = given.partition("x")
    return positive("--shapes", batch), positive("--shapes", length)


if __name__ == "__main__":
    runner.run(bench, measured_here)
