"""`python -m evaluation.bench.precision`: a private LoRA step in bfloat16 beside float32's.

A step here is what a run computes: records with a wrong prompt each, in physical batches of fixed
shape with their filler, clipped and summed; without noise and optimiser, which cost the same in
either format. The ordinary step is Hugging Face's model and loss on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Annotated, Any

import torch
import typer

from evaluation.bench import models, runner
from evaluation.bench.cases import StepCase
from evaluation.bench.measure import seconds_of
from evaluation.bench.runner import RESULTS, Output, Rounds, Threads
from evaluation.bench.shares import shares, shares_table
from evaluation.markdown import facts, page, publish, table
from twinset.config import SpeedConfig
from twinset.config.run_config import PHYSICAL_TOKENS
from twinset.data.schema import Combination
from twinset.data.tokenization import TokenisedRecords
from twinset.models.device import CPU
from twinset.models.precision import fuse
from twinset.privacy.clipping import ClippingEngine
from twinset.training.batch_shapes import BatchShapes
from twinset.training.clipped_sum import Batch, ClippedSum, WrongPrompts

PROMPTS: dict[Combination, list[int]] = {("a",): [*range(1, 11)], ("b",): [*range(2, 12)]}
WRONG = WrongPrompts(8.0, "bounded", 1, 0)
MAX_GRAD_NORM = 1.0
OURS, PLAIN, THEIRS = "twinset", "twinset, transformers' layers", "ordinary"
BEFORE = f"{PLAIN}, float32"  # what a run fell back to before batches had one shape


def bench(
    model: Annotated[str, typer.Option(help="Random weights.")] = "smollm2-135m",
    records: Annotated[int, typer.Option(min=1, help="In the batch.")] = 128,
    tokens: Annotated[int, typer.Option(min=12, help="Of a record with its prompt.")] = 40,
    rounds: Rounds = 5,
    threads: Threads = 1,
    output: Output = RESULTS / "precision.json",
) -> None:
    """Time private and ordinary steps in both formats, in turn."""
    torch.set_num_threads(threads)
    made = contestants(model, records_of(model, records, tokens), threads)
    ways = {name: partial(_seconds, step) for name, step in made.items()}
    turns = runner.in_turn(ways, rounds, warm_up=True)
    found = {
        **runner.stamp("precision"),
        "model": model,
        "records": records,
        "tokens": tokens,
        "threads": threads,
        "profile": shares(made[f"{OURS}, bfloat16"]),
        "turns": turns,
    }
    publish(output, found, markdown(found))
    typer.echo(output.with_suffix(".md").read_text("utf-8"))


def _seconds(step: Callable[[], object], turn: int) -> float:
    return round(seconds_of(step), 3)


def records_of(model: str, count: int, tokens: int) -> TokenisedRecords:
    """Return random records of so many tokens, prompt included."""
    vocabulary = int(models.MODELS[model][1]["vocab_size"])
    generator = torch.Generator().manual_seed(0)
    longest = max(map(len, PROMPTS.values()))
    texts = torch.randint(vocabulary, (count, tokens - longest), generator=generator).tolist()
    labels = [list(PROMPTS)[i % 2] for i in range(count)]
    return TokenisedRecords(texts, labels, PROMPTS, 0, 8192)


def private_step(model: str, records: TokenisedRecords, threads: int) -> Callable[[], object]:
    """Return the step of a run that computes in bfloat16."""
    case = StepCase(model, "lora", "bfloat16", len(records), 0, 2, "ours", threads)
    return _private(fuse(models.build(case)), records)


def contestants(
    model: str, records: TokenisedRecords, threads: int
) -> dict[str, Callable[[], object]]:
    """Return steps by name; each has a model of its own."""
    steps: dict[str, Callable[[], object]] = {}
    for precision in ("float32", "bfloat16"):
        case = StepCase(model, "lora", precision, len(records), 0, 2, "ours", threads)
        plain = models.build(case)
        if precision == "bfloat16":
            plain.set_attn_implementation("eager")  # the faster of its own, here
        else:
            steps[BEFORE] = _private(models.build(case), records)
        steps[f"{OURS}, {precision}"] = _private(fuse(models.build(case)), records)
        steps[f"{THEIRS}, {precision}"] = _ordinary(plain, records)
    return steps


def _private(model: Any, records: TokenisedRecords) -> Callable[[], object]:
    shapes = BatchShapes(
        SpeedConfig(device=CPU), len(records), records.sequences_per_record(WRONG.count)
    )
    engine = ClippingEngine(model, MAX_GRAD_NORM)
    batch = Batch(1, [[i] for i in range(len(records))])
    return partial(ClippedSum(engine, records, WRONG, shapes).over, batch)


def _ordinary(model: Any, records: TokenisedRecords) -> Callable[[], object]:
    """Forward and backward over as many tokens at once, not padded to more than they have."""
    rows = records.sequences(range(len(records)), WRONG.count, (0, 1))
    used = int(rows.loss_mask.nonzero()[:, 1].max()) + 1
    ids, labels = rows.input_ids[:, :used], rows.input_ids.masked_fill(~rows.loss_mask, -100)
    at_once = max(1, PHYSICAL_TOKENS // used)

    def step() -> None:
        model.zero_grad()
        for start in range(0, len(ids), at_once):
            some = slice(start, start + at_once)
            model(input_ids=ids[some], labels=labels[some, :used]).loss.backward()

    return step


def markdown(found: dict[str, Any]) -> str:
    """Return a table of medians over turns."""
    turns: dict[str, list[float]] = found["turns"]

    def ratio(name: str, other: str) -> str:
        pairs = zip(turns[name], turns[other], strict=True)
        return f"{median(its / mine for mine, its in pairs):.2f}×"

    rows = [
        [
            name,
            f"{median(turns[name]):.2f}",
            *(ratio(name, o) for o in (BEFORE, f"{THEIRS}, float32", f"{THEIRS}, bfloat16")),
        ]
        for name in turns
    ]
    header = ["step", "seconds", "times as fast as the first", "as ordinary, float32"]
    return page(
        "A private LoRA step in bfloat16",
        [
            *facts(found, "turns", "profile"),
            f"- turns: {len(turns[BEFORE])}; each ratio is of one turn",
        ],
        table([*header, "as ordinary, bfloat16"], rows),
        shares_table(f"where the time of {OURS}, bfloat16, goes", found["profile"]),
    )


if __name__ == "__main__":
    runner.run(bench)
