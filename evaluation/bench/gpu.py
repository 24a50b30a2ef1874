"""`make gpu`: the tests marked `gpu`, then the speed of a GPU; all of it in one results file.

Random weights: speed does not depend on them. Each row is measured in a process of its own, so that
one that runs out of memory is a row that says so, and written as soon as it is there. Nothing is
installed or downloaded.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Annotated, Any

import typer

from evaluation.bench import runner
from evaluation.bench.gpu_page import (
    ENGINES,
    FAILED,
    NOISES,
    PEERS,
    ROWS,
    RUN,
    STEPS,
    WAYS,
    WRITTEN,
    markdown,
)
from evaluation.bench.models import MODELS
from evaluation.bench.runner import RESULTS, Output, Rounds, names_in
from evaluation.markdown import publish
from twinset.errors import InputError, first_line
from twinset.models.device import CUDA, device_name, device_of, wait_for

SIZES = ("smollm2-135m", "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m")
METHODS = ("lora", "full")
SHAPES = ((32, 128), (32, 512))  # units × tokens
MOVED = 1 << 24  # numbers of the processor's noise: all of a large model would take minutes


def bench(
    models: Annotated[str, typer.Option(help="Random weights.")] = ",".join(SIZES),
    device: Annotated[str, typer.Option(help="Where.")] = CUDA,
    rounds: Rounds = 5,
    output: Output = RESULTS / "gpu.json",
) -> None:
    """Run the tests that need a GPU, then time steps, rows and a whole run."""
    names, place = names_in("--models", models, MODELS), device_of(device)
    found: dict[str, Any] = {**runner.stamp("gpu"), "device": device_name(place), **_tests()}
    typer.echo(f"tests: {found['tests']}", err=True)
    for _ in _measured(found, names, rounds, device):
        publish(output, found, markdown(found))
    typer.echo(output.with_suffix(".md").read_text("utf-8"))
    if found[FAILED]:
        raise typer.Exit(1)


def _measured(found: dict[str, Any], names: list[str], rounds: int, device: str) -> Iterator[None]:
    """Add row after row to what was found."""
    yield
    found[RUN] = _asked(RUN, device)
    yield
    found[STEPS], found[ROWS] = [], []
    for name in names:
        for method, shape in product(METHODS, SHAPES):
            found[STEPS].append(_asked(STEPS, name, method, *shape, rounds, device))
            yield
        found[ROWS].append(_asked(ROWS, name, rounds, device))
        yield


def _tests() -> dict[str, Any]:
    """Return the last line of the tests' output, and which failed."""
    asked = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rfE", "tests"]
    done = subprocess.run(asked, capture_output=True, text=True)
    lines = (done.stdout or done.stderr).strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    last = (lines or [f"ended with {done.returncode}"])[-1]
    return {"tests": last, FAILED: failed or [last] * (done.returncode != 0)}


def _asked(what: str, *case: Any) -> dict[str, Any]:
    """Have a process measure one row; a failure of any kind is its row."""
    named = {"case": " ".join(map(str, case[:-2]))}
    try:
        measured: dict[str, Any] = runner.ask("gpu", what, *case)
    except runner.Failed as error:
        measured = {"failed": str(error)}
    typer.echo(f"{what} {named['case']}: {measured}", err=True)
    return named | measured


def measured_here(what: str, *case: Any) -> dict[str, Any]:
    """Measure in this process, as `_asked` of another one wished."""
    from evaluation.bench.gpu_run import run_row

    of: dict[str, Callable[..., dict[str, Any]]] = {STEPS: step_row, ROWS: sampling_row}
    return of.get(what, run_row)(*case)


def step_row(
    model: str, method: str, units: int, tokens: int, rounds: int, device: str
) -> dict[str, Any]:
    """Return seconds of a step each way, seconds of its noise, and the peak of the private step.

    Where another engine cannot take it, the reason stands in its place.
    """
    from evaluation.bench.cases import ORDINARY, StepCase
    from evaluation.bench.models import build
    from evaluation.bench.ours import Work, ordinary, our_kernels, ours
    from twinset.models.device import peak_memory

    place, makers = device_of(device), (ours, our_kernels, ordinary)
    case = StepCase(model, method, "bfloat16", units, tokens, 1, ORDINARY, 1)
    row: dict[str, Any] = {}
    for way, make in zip(WAYS, makers, strict=True):
        made = build(case, place)
        row[way] = _median(make(made, Work.of(case, made.config.vocab_size)).step, rounds, place)
        row.setdefault("GB", peak_memory(place))
        trained = sum(p.numel() for p in made.parameters() if p.requires_grad)
        del made
    row |= {name: _peer(name, case, rounds, place) for name in PEERS}
    return row | _noise(trained, rounds, place)


def _peer(name: str, case: Any, rounds: int, place: Any) -> float | str:
    """Return seconds of another engine's step, or why there are none."""
    from evaluation.bench.models import build
    from evaluation.bench.ours import Work
    from evaluation.bench.peers import ENGINES, Unavailable

    engine = ENGINES[name]
    try:
        engine.load()
        if case.autocast and not engine.autocast:
            raise Unavailable("not tried in autocast")
        model = build(case, place)
        work = Work.of(case, model.config.vocab_size)
        step = engine.make(model, replace(work, input_ids=work.input_ids.to(place))).step
        return _median(step, rounds, place)
    except Exception as error:  # theirs, of any kind: memory, a type, a module unknown to them
        return first_line(error)[:80]


def _noise(numbers: int, rounds: int, place: Any) -> dict[str, Any]:
    """Return seconds of one draw there and by the processor, beside the library's own.

    Which is not private.
    """
    import torch

    from twinset.privacy.mechanism.noise import add_gaussian_
    from twinset.privacy.mechanism.randomness import Randomness

    total, randomness = torch.zeros(numbers, device=place), Randomness.from_os()
    some = total[:MOVED]

    def moved() -> object:
        return some.copy_(add_gaussian_(some.cpu(), 1.0, randomness))

    ways = (
        lambda: add_gaussian_(total, 1.0, randomness),
        moved,
        lambda: torch.randn_like(total),
    )
    timed = {name: _median(way, rounds, place) for name, way in zip(NOISES, ways, strict=True)}
    timed[NOISES[1]] *= numbers / len(some)
    return {"trained": numbers, **timed}


def sampling_row(model: str, rounds: int, device: str) -> dict[str, Any]:
    """Return rows a second by each engine, with guidance, and so two prompts a row."""
    import torch

    from evaluation.bench.cases import ORDINARY, StepCase
    from evaluation.bench.models import build
    from evaluation.bench.sampling import RANDOM_PROMPTS
    from twinset.config import SamplingConfig
    from twinset.models.precision import fuse
    from twinset.sampling.decoding import generate

    place = device_of(device)
    case = StepCase(model, "full", "float32", 1, 1, 1, ORDINARY, 1)
    written = fuse(build(case, place).to(torch.bfloat16)).eval()
    config = SamplingConfig(batch_size=WRITTEN["at once"])
    prompts = [RANDOM_PROMPTS[i % 2] for i in range(WRITTEN["rows"])]
    against, drawn = prompts[1:] + prompts[:1], torch.Generator().manual_seed(0)

    def rows_a_second(engine: Any) -> float | str:
        asked = replace(config, engine=engine)
        arguments = written, prompts, -1, WRITTEN["tokens"], asked, drawn, against
        try:
            return len(prompts) / _median(lambda: generate(*arguments), rounds, place)
        except InputError as error:  # nothing can be compiled here
            return first_line(error)

    return {shown: rows_a_second(engine) for engine, shown in ENGINES.items()}


def _median(do: Callable[[], object], rounds: int, place: Any) -> float:
    """Return the median of seconds, after one time that warms up."""
    from evaluation.bench.measure import seconds_of

    def whole() -> None:
        do()
        wait_for(place)

    whole()
    return median(seconds_of(whole) for _ in range(rounds))


if __name__ == "__main__":
    runner.run(bench, measured_here)
