"""`python -m evaluation.bench.finetune`: records a second, end to end, beside HF's Trainer.

The same real reviews, padding included, the same adapters and number formats; ours with Poisson
batches, clipping and noise, the Trainer without privacy. Then where our time goes.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

from evaluation.bench.report import surroundings
from evaluation.command import command_line, run_command
from twinset.adapters import trainable
from twinset.artefact import write_json, write_text
from twinset.basemodel import context_length, load_base
from twinset.config import RunConfig, SpeedConfig, TrainingConfig
from twinset.demodata import demo_reviews
from twinset.kernels import fuse
from twinset.plan import Plan
from twinset.policies import Setting, make_policy
from twinset.precision import execution, frozen_dtype
from twinset.privacy.batches import poisson_batches
from twinset.privacy.randomness import Randomness
from twinset.records import records_from_frame
from twinset.templates import load_template
from twinset.tokens import TokenisedRecords, tokenise
from twinset.training import train

MAX_GRAD_NORM, NOISE = 1.0, 1.0
TRAINER = "Hugging Face's Trainer, not private"
ONE = "twinset, one sequence a record"
TWO = "twinset, with one wrong prompt"
# part of an operator's name → what it is called in the profile
KINDS = {
    "mm": "matrix products",
    "attention": "attention",
    "softmax": "softmax",
    "randn|normal": "noise",
    "adam": "optimiser",
    "copy|cat|index|gather": "copies",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    base_model: Annotated[str, typer.Option(help="Asset or folder.")] = "smollm2-135m",
    method: Annotated[str, typer.Option(help="lora, qlora or full.")] = "lora",
    precision: Annotated[str, typer.Option(help="As twinset takes it.")] = "auto",
    records: Annotated[int, typer.Option(min=2, help="Reviews, all in every step.")] = 128,
    steps: Annotated[int, typer.Option(min=2, help="The first is not timed.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 3,
    output: Annotated[Path, typer.Option(help="This .json; .md beside it.")] = Path(
        "evaluation/bench/results/finetune.json"
    ),
) -> None:
    """Time fine-tuning on the demo's reviews, and profile it."""
    training = TrainingConfig(base_model=base_model, method=method, max_tokens=64)  # type: ignore[arg-type]
    config = RunConfig(training=training, speed=SpeedConfig(precision=precision))  # type: ignore[arg-type]
    tokens = _tokens(config, records)
    runs: dict[str, Callable[[], float]] = {
        TRAINER: lambda: _trainer(config, tokens, steps),
        ONE: lambda: _twinset(config, tokens, steps, 0.0),
        TWO: lambda: _twinset(config, tokens, steps, 8.0),
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            speeds[name].append(records / run())
            typer.echo(f"{name}: {speeds[name][-1]:.2f} records/s", err=True)
    found = {
        "command": command_line("evaluation.bench.finetune"),
        **surroundings(),
        "threads": torch.get_num_threads(),
        "dtype": str(frozen_dtype(config)).removeprefix("torch."),
        "autocast": str(execution(config).autocast).removeprefix("torch."),
        "mean_tokens": round(tokens.mean_length, 1),
        "records_per_second": speeds,
        "profile": _profile(config, tokens),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, found)
    write_text(output.with_suffix(".md"), _markdown(found))


def _tokens(config: RunConfig, count: int) -> TokenisedRecords:
    frame = demo_reviews()[0].sample(count, random_state=0)
    records, _ = records_from_frame(frame, "review", ["verdict"])
    base = load_base(config.training.base_model)
    template = load_template("film-verdict", records.schema)
    context = context_length(base.model)
    return tokenise(records, template, base.tokenizer, context, config.training.max_tokens)


def _model(config: RunConfig) -> Any:
    model = load_base(config.training.base_model).model.to(frozen_dtype(config))
    return trainable(model, config.training)


def _twinset(config: RunConfig, tokens: TokenisedRecords, steps: int, weight: float) -> float:
    """Return seconds of a step: `twinset finetune`'s own loop, over all records every time."""
    count, seconds = len(tokens), list[float]()
    plan = Plan(count, 8.0, 1e-5, count, steps, NOISE, 1.0, 1e-4, weight)
    randomness = Randomness.from_os()
    policy = make_policy(Setting(NOISE, MAX_GRAD_NORM, 1.0, randomness))
    train(
        fuse(_model(config)),
        tokens,
        list(poisson_batches(count, 1.0, steps, randomness)),
        plan,
        replace(config.training, mismatch_prompts=1),
        config.speed,
        execution(config),
        policy,
        MAX_GRAD_NORM,
        lambda event: None,
        lambda report: seconds.append(report.seconds),
    )
    return (seconds[-1] - seconds[0]) / (steps - 1)


def _trainer(config: RunConfig, tokens: TokenisedRecords, steps: int) -> float:
    """Return seconds of a step of the same records, in physical batches of as many tokens."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    rows = [_row(tokens, i) for i in range(len(tokens))]
    at_once = config.speed.units_at_once(round(tokens.mean_length))
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(time.monotonic())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=-(-len(rows) // at_once),
            max_steps=steps,
            train_sampling_strategy="group_by_length",
            bf16=execution(config).autocast is not None,
            use_cpu=True,
            optim="adamw_torch",
            learning_rate=1e-4,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        model = _model(config).train()
        Trainer(
            model, arguments, train_dataset=rows, data_collator=_padded, callbacks=[Clock()]
        ).train()
    return (ends[-1] - ends[0]) / (steps - 1)


def _row(tokens: TokenisedRecords, index: int) -> dict[str, list[int]]:
    prompt, text = tokens.prompts[tokens.labels[index]], tokens.texts[index]
    return {"input_ids": prompt + text, "labels": [-100] * len(prompt) + text}


def _padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad to the longest; causal attention needs no mask for padding on the right."""
    width = max(len(row["input_ids"]) for row in rows)
    filler = {"input_ids": 0, "labels": -100}
    return {
        name: torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])
        for name, fill in filler.items()
    }


def _profile(config: RunConfig, tokens: TokenisedRecords) -> dict[str, float]:
    """Return the share of processor time by kind of operator, of two private steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        _twinset(config, tokens, 2, 8.0)
    spent: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        spent[_kind(event.key)] += event.self_cpu_time_total
    total = sum(spent.values())
    ordered = sorted(spent, key=spent.__getitem__, reverse=True)
    return {kind: round(spent[kind] / total, 3) for kind in ordered}


def _kind(operator: str) -> str:
    """Return the kind of an operator.

    >>> _kind("aten::addmm"), _kind("aten::mul")
    ('matrix products', 'elementwise and other')
    """
    found = (k for parts, k in KINDS.items() if any(p in operator for p in parts.split("|")))
    return next(found, "elementwise and other")


def _markdown(found: dict[str, Any]) -> str:
    speeds = {name: median(values) for name, values in found["records_per_second"].items()}
    lines = ["# Fine-tuning on real text, end to end", ""]
    about = ("command", "versions", "machine", "threads", "dtype", "autocast", "mean_tokens")
    lines += [f"- {name.replace('_', ' ')}: {found[name]}" for name in about]
    lines += ["", "| loop | records/s | time of a record |", "| --- | ---: | ---: |"]
    for name, speed in speeds.items():
        lines.append(f"| {name} | {speed:.2f} | {speeds[TRAINER] / speed:.2f}× |")
    lines += ["", "| where a private step's time goes | share |", "| --- | ---: |"]
    lines += [f"| {kind} | {share:.0%} |" for kind, share in found["profile"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_command(app)
