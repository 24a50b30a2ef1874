"""What paper 002's experiment would do, in lines: steps, noise and ε. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evaluation.papers.mattern.cases import APART, BASELINE, BUDGETS, DATA, RECORDS, names
from evaluation.papers.mattern.cases import COMPARED as EPSILON
from evaluation.papers.mattern.reviews import ATTRIBUTES
from evaluation.papers.mattern.sizes import DECODINGS, Size
from twinset.options import run_config
from twinset.plan import make_plan

_VALUES = 2  # of each attribute


def plan(size: Size, records: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each kind of model.

    Args:
        size: how large.
        records: rows to learn from, by table.
    """
    yield f"base model {size.base_model}, {size.method}, texts of {size.max_tokens} tokens"
    yield f"losses: {', '.join(map(str, size.losses))}; {size.wrong_prompts} wrong prompts"
    yield f"decodings: {', '.join(DECODINGS)}; classifiers: {', '.join(size.classifiers)}"
    for data in DATA:
        yield f"{data}: {BASELINE}: {size.rows[data]:,} rows, as of every twin"
        for few in RECORDS:
            count = few or records[data]
            for epsilon in BUDGETS:
                yield f"  {_phase(size, count, few is not None, epsilon)}"
        parts = _VALUES ** len(ATTRIBUTES[data])
        apart = _phase(size, records[data] // parts, False, EPSILON, parts)
        yield f"  {APART}: {parts} models, each {apart}"


def _phase(size: Size, records: int, few: bool, epsilon: float | None, parts: int = 1) -> str:
    options = size.training(records, few, size.mismatch, parts)
    made = make_plan(records, run_config(options | {"epsilon": epsilon}))
    noise = "no noise"
    if epsilon is not None:
        noise = f"σ = {made.noise_multiplier:.3f}, C = {size.max_grad_norm:g}, δ = "
        noise += f"{made.target_delta:.2g}"
    return (
        f"ε = {names(epsilon, None)[0]}: {made.steps:,} steps of {made.batch_size} from "
        f"{records:,} records, q = {made.sample_rate:.3g}, learning rate {made.learning_rate:g}, "
        f"{noise}"
    )
