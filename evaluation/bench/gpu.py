"""`make gpu`: the tests marked `gpu`, then the speed of a GPU; all of it in one results file.

Random weights: speed does not depend on them. Each row is measured in a process of its own, so that
one that runs out of memory is a row that says so. Nothing is installed or downloaded.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from statistics import median
from typing import Annotated, Any

import typer

from evaluation.bench import runner
from evaluation.bench.models import MODELS
from evaluation.bench.runner import RESULTS, Output, Rounds, names_in
from evaluation.markdown import facts, page, publish, table
from twinset.models.device import CUDA, device_name, device_of, wait_for

SIZES = ("smollm2-135m", "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m")
METHODS = ("lora", "full")
SHAPES = ((32, 128), (32, 512))  # units × tokens
WAYS = ("ours", "without privacy", "Hugging Face")
WRITTEN = {"rows": 512, "tokens": 64, "at once": 256}
NOISES = ("noise", "noise, moved", "torch.randn")
STEPS, ROWS = "steps", "rows"


def bench(
    models: Annotated[str, typer.Option(help="Random weights.")] = ",".join(SIZES),
    device: Annotated[str, typer.Option(help="Where.")] = CUDA,
    rounds: Rounds = 5,
    output: Output = RESULTS / "gpu.json",
) -> None:
    """Run the tests that need a GPU, then time steps and rows."""
    names, place = names_in("--models", models, MODELS), device_of(device)
    found: dict[str, Any] = {**runner.stamp("gpu"), "device": device_name(place), "tests": _tests()}
    typer.echo(f"tests: {found['tests']}", err=True)
    found[STEPS] = [
        _asked(STEPS, name, method, *shape, rounds, device)
        for name, method, shape in product(names, METHODS, SHAPES)
    ]
    found[ROWS] = [_asked(ROWS, name, rounds, device) for name in names]
    publish(output, found, markdown(found))
    typer.echo(output.with_suffix(".md").read_text("utf-8"))


def _tests() -> str:
    """Return the last line of the tests' output."""
    asked = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "tests"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return (done.stdout.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def _asked(what: str, *case: Any) -> dict[str, Any]:
    """Have a process measure one row; a failure of any kind is its row."""
    named = {"case": " ".join(map(str, case[:-2]))}
    try:
        measured: dict[str, Any] = runner.ask("gpu", what, *case)
    except runner.Failed as error:
        measured = {"failed": str(error)}
    typer.echo(f"{named['case']}: {measured}", err=True)
    return named | measured


def measured_here(what: str, *case: Any) -> dict[str, Any]:
    """Measure in this process, as `_asked` of another one wished."""
    return step_row(*case) if what == STEPS else sampling_row(*case)


def step_row(
    model: str, method: str, units: int, tokens: int, rounds: int, device: str
) -> dict[str, Any]:
    """Return seconds of a step each way, seconds of its noise, and the peak of the private step."""
    from evaluation.bench.cases import ORDINARY, StepCase
    from evaluation.bench.models import build
    from evaluation.bench.ours import Work, ordinary, our_kernels, ours
    from twinset.models.device import peak_memory

    place, makers = device_of(device), (ours, our_kernels, ordinary)
    case = StepCase(model, method, "bfloat16", units, tokens, 1, ORDINARY, 1)
    row: dict[str, Any] = {}
    for way, make in zip(WAYS, makers, strict=True):
        made = build(case).to(place)
        row[way] = _median(make(made, Work.of(case, made.config.vocab_size)).step, rounds, place)
        row.setdefault("GB", peak_memory(place))
        trained = sum(p.numel() for p in made.parameters() if p.requires_grad)
        del made
    return row | _noise(trained, rounds, place)


def _noise(numbers: int, rounds: int, place: Any) -> dict[str, Any]:
    """Return seconds of one draw there and by the processor, beside the library's own.

    Which is not private.
    """
    import torch

    from twinset.privacy.mechanism.noise import add_gaussian_
    from twinset.privacy.mechanism.randomness import Randomness

    total, randomness = torch.zeros(numbers, device=place), Randomness.from_os()

    def moved() -> object:
        return total.copy_(add_gaussian_(total.cpu(), 1.0, randomness))

    return {
        "trained": numbers,
        "noise": _median(lambda: add_gaussian_(total, 1.0, randomness), rounds, place),
        "noise, moved": _median(moved, rounds, place),
        "torch.randn": _median(lambda: torch.randn_like(total), rounds, place),
    }


def sampling_row(model: str, rounds: int, device: str) -> dict[str, Any]:
    """Return rows a second, with guidance, and so two prompts a row."""
    import torch

    from evaluation.bench.cases import ORDINARY, StepCase
    from evaluation.bench.models import build
    from evaluation.bench.sampling import RANDOM_PROMPTS
    from twinset.config import SamplingConfig
    from twinset.models.precision import fuse
    from twinset.sampling.decoding import generate

    place = device_of(device)
    case = StepCase(model, "full", "float32", 1, 1, 1, ORDINARY, 1)
    written = fuse(build(case).to(place, torch.bfloat16)).eval()
    config = SamplingConfig(batch_size=WRITTEN["at once"])
    prompts = [RANDOM_PROMPTS[i % 2] for i in range(WRITTEN["rows"])]
    against, drawn = prompts[1:] + prompts[:1], torch.Generator().manual_seed(0)

    def write() -> object:
        return generate(written, prompts, -1, WRITTEN["tokens"], config, drawn, against)

    return {"rows a second": len(prompts) / _median(write, rounds, place)}


def _median(do: Callable[[], object], rounds: int, place: Any) -> float:
    """Return the median of seconds, after one time that warms up."""
    from evaluation.bench.measure import seconds_of

    def whole() -> None:
        do()
        wait_for(place)

    whole()
    return median(seconds_of(whole) for _ in range(rounds))


def markdown(found: dict[str, Any]) -> str:
    """Return the page of the results."""
    about = (
        "Random weights, bfloat16: frozen weights in it, weights that are all trained under "
        "autocast. Medians of seconds; a private step has its noise in it, and clips each unit. "
        "`without privacy` has the same kernels, `Hugging Face` its own loss. GB: the peak of the "
        "private step, model included. `noise, moved`: the processor's, there and back."
    )
    columns = (*WAYS, *NOISES, "trained", "GB")
    steps = table(["model, method, units, tokens", *columns], _cells(found[STEPS], columns))
    written = ", ".join(f"{name}: {number}" for name, number in WRITTEN.items())
    rows = table([f"rows ({written})", "rows a second"], _cells(found[ROWS], ["rows a second"]))
    return page("On a GPU", [about], facts(found, STEPS, ROWS), steps, rows)


def _cells(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    return [
        [row["case"], *([row["failed"], *[""] * (len(columns) - 1)] if "failed" in row else shown)]
        for row in rows
        for shown in [[f"{row[name]:.4g}" for name in columns if name in row]]
    ]


if __name__ == "__main__":
    runner.run(bench, measured_here)
