"""`python -m evaluation.bench.finetune`: records a second, end to end, beside HF's Trainer.

The same real reviews, padding included, the same adapters and number formats; ours with Poisson
batches, clipping and noise, the Trainer without privacy. Then where our time goes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Annotated, Any

import torch
import typer

from evaluation.bench import runner
from evaluation.bench.runner import RESULTS, Output, Rounds
from evaluation.bench.shares import shares, shares_table
from evaluation.demo_tables.film_reviews import demo_reviews
from evaluation.markdown import facts, page, publish, table
from twinset.config import RunConfig, SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.data.records import records_from_frame
from twinset.data.templates import load_template
from twinset.data.tokenization import TokenisedRecords, tokenise
from twinset.models.base_model import context_length, load_base
from twinset.models.lora import trainable
from twinset.models.precision import execution, frozen_dtype, fuse
from twinset.policies import MechanismParams, make_policy
from twinset.privacy.mechanism.poisson import poisson_batches
from twinset.privacy.mechanism.randomness import Randomness
from twinset.training.loop import StepContext, train

MAX_GRAD_NORM, NOISE = 1.0, 1.0
TRAINER = "Hugging Face's Trainer, not private"
ONE = "twinset, one sequence a record"
TWO = "twinset, with one wrong prompt"


def bench(
    base_model: Annotated[str, typer.Option(help="Asset or folder.")] = "smollm2-135m",
    method: Annotated[str, typer.Option(help="lora, qlora or full.")] = "lora",
    precision: Annotated[str, typer.Option(help="As twinset takes it.")] = "auto",
    records: Annotated[int, typer.Option(min=2, help="Reviews, all in every step.")] = 128,
    steps: Annotated[int, typer.Option(min=2, help="The first is not timed.")] = 3,
    rounds: Rounds = 3,
    output: Output = RESULTS / "finetune.json",
) -> None:
    """Time fine-tuning on the demo's reviews, and profile it."""
    training = TrainingConfig(base_model=base_model, method=method, max_tokens=64)  # type: ignore[arg-type]
    config = RunConfig(training=training, speed=SpeedConfig(precision=precision))  # type: ignore[arg-type]
    tokens = _tokens(config, records)
    ways: dict[str, Callable[[int], float]] = {
        TRAINER: lambda turn: records / _trainer(config, tokens, steps),
        ONE: lambda turn: records / _twinset(config, tokens, steps, 0.0),
        TWO: lambda turn: records / _twinset(config, tokens, steps, 8.0),
    }
    found = {
        **runner.stamp("finetune"),
        "threads": torch.get_num_threads(),
        "dtype": str(frozen_dtype(config)).removeprefix("torch."),
        "autocast": str(execution(config).autocast).removeprefix("torch."),
        "mean_tokens": round(tokens.mean_length, 1),
        "records_per_second": runner.in_turn(ways, rounds),
        "profile": shares(lambda: _twinset(config, tokens, 2, 8.0)),
    }
    publish(output, found, markdown(found))


def _tokens(config: RunConfig, count: int) -> TokenisedRecords:
    frame = demo_reviews()[0].sample(count, random_state=0)
    records, _ = records_from_frame(frame, "review", ["verdict"])
    base = load_base(config.training.base_model)
    template = load_template("film-verdict", records.schema)
    context = context_length(base.model)
    return tokenise(records, template, base.tokenizer, context, config.training.max_tokens)


def _model(config: RunConfig) -> Any:
    name, device = config.training.base_model, config.speed.device
    model = load_base(name, device=device).model.to(frozen_dtype(config))
    return trainable(model, config.training)


def _twinset(config: RunConfig, tokens: TokenisedRecords, steps: int, weight: float) -> float:
    """Return seconds of a step: `twinset finetune`'s own loop, over all records every time."""
    count, seconds = len(tokens), list[float]()
    plan = Plan(count, 8.0, 1e-5, count, steps, NOISE, 1.0, 1e-4, weight)
    randomness = Randomness.from_os()
    policy = make_policy(MechanismParams(NOISE, MAX_GRAD_NORM, 1.0, randomness))
    batches = list(poisson_batches(count, 1.0, steps, randomness))
    context = StepContext(
        records=tokens,
        plan=plan,
        policy=policy,
        max_grad_norm=MAX_GRAD_NORM,
        record_event=lambda event: None,
        training=replace(config.training, mismatch_prompts=1),
        speed=config.speed,
        observe=lambda report: seconds.append(report.seconds),
    )
    train(fuse(_model(config)), batches, context, execution(config))
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


def markdown(found: dict[str, Any]) -> str:
    """Return the medians of all rounds, and the profile."""
    speeds = {name: median(values) for name, values in found["records_per_second"].items()}
    loops = [
        [name, f"{speed:.2f}", f"{speeds[TRAINER] / speed:.2f}×"] for name, speed in speeds.items()
    ]
    return page(
        "Fine-tuning on real text, end to end",
        facts(found, "records_per_second", "profile"),
        table(["loop", "records/s", "time of a record"], loops),
        shares_table("where a private step's time goes", found["profile"]),
    )


if __name__ == "__main__":
    runner.run(bench)
