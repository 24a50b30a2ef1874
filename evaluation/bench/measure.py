"""What one process measures: the times of two steps taken in turn, or the peak memory of one."""

from __future__ import annotations

import importlib
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

from evaluation.bench import models
from evaluation.bench.cases import ORDINARY, StepCase
from evaluation.bench.ours import Made, Work
from evaluation.bench.peers import ENGINES, Unavailable
from evaluation.bench.shares import shares, shares_line
from twinset.models.hub import no_fetched_code

MEMORY_STEPS = 2


def times(case: StepCase, rounds: int, at_least: int, seconds: float) -> dict[str, Any]:
    """Warm both steps up, then take them in turn; stop early once `seconds` have passed.

    Returns:
        Medians of both times and of their ratio in each round, and the engine's note.
    """
    candidate, ordinary = _made(case), _made(case.by(ORDINARY))
    pairs: list[tuple[float, float]] = []
    began = time.monotonic()
    while len(pairs) < rounds:
        if len(pairs) >= at_least and time.monotonic() - began > seconds:
            break
        pairs.append((seconds_of(ordinary.step), seconds_of(candidate.step)))
    return {
        "ordinary_seconds": median(a for a, _ in pairs),
        "candidate_seconds": median(b for _, b in pairs),
        "ratio": median(b / a for a, b in pairs),
        "ratios": [round(b / a, 4) for a, b in pairs],
        "note": "; ".join(filter(None, (candidate.note, _shares(case, candidate)))),
    }


def _shares(case: StepCase, made: Made) -> str:
    return shares_line(shares(made.step)) if case.engine == "ours" else ""


def memory(case: StepCase) -> dict[str, Any]:
    """Return the peak of resident memory over some steps, model included and imports not."""
    ENGINES[case.engine].load()
    models.classes(case.model)
    with no_fetched_code():
        importlib.import_module("peft")
    before = peak_bytes()
    step = _made(case).step
    for _ in range(MEMORY_STEPS - 1):  # one was taken already
        step()
    return {"bytes": peak_bytes() - before}


def _made(case: StepCase) -> Made:
    """Build the model and the step, take it once, and see that it left gradients."""
    engine = ENGINES[case.engine]
    engine.load()
    if case.autocast and not engine.autocast:
        raise Unavailable("not tried in autocast")
    model = models.build(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    made = engine.make(model, Work.of(case, model.config.vocab_size))
    made.step()
    missing = sum(p.grad is None or not bool(p.grad.isfinite().all()) for p in trained)
    if missing:
        raise Unavailable(f"no finite gradient for {missing} of {len(trained)} parameters")
    return made


def seconds_of(do: Callable[[], object]) -> float:
    """Return how long it takes, by the wall."""
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def peak_bytes() -> int:
    """Return this process's own peak; what `getrusage` says may be its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(li for li in status.read_text().splitlines() if li.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reset_peak() -> None:
    """Let the peak begin anew; where the system has no way to, it stays that of the process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def limit(threads: int, memory_gib: float) -> None:
    """Set the threads, and a memory limit that makes an allocation fail before the machine does."""
    torch.set_num_threads(threads)
    wanted = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))
