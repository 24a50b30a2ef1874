"""How long a run will take and how much memory: measured on made-up tokens, before any training.

Knows no record: it is given a length in tokens and times the real engine and the real sampler on
random ids of that length.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twinset.config import RunConfig
from twinset.config.plan import Plan
from twinset.data.padding import padded, padded_lengths
from twinset.models.base_model import BaseModel, context_length
from twinset.models.lora import trainable
from twinset.models.perplexity import TOKENS_AT_ONCE, nats_per_token
from twinset.models.precision import execution, fastest, frozen_dtype, fuse
from twinset.policies import MechanismParams, make_policy
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.mechanism.randomness import Randomness
from twinset.sampling.decoding import generate
from twinset.training.batch_shapes import BatchShapes
from twinset.training.clipped_sum import WrongPrompts
from twinset.training.mismatch_loss import MismatchLoss

USUAL_TOKENS = 64  # of a record with its prompt, where there is no table to measure
PROBE_ROWS, PROBE_TOKENS = 256, 4  # of the sampler's probe


@dataclass(frozen=True)
class Estimate:
    """About how much a run costs on this machine.

    Args:
        tokens: of a record with its prompt, as supposed.
        trained_parameters: p.
        training_seconds: of all steps.
        sampling_seconds: of all rows.
        memory_gb: the process's peak while a physical batch was in memory.
    """

    tokens: int
    trained_parameters: int
    training_seconds: float
    sampling_seconds: float
    memory_gb: float


def measure(base: BaseModel, config: RunConfig, plan: Plan, tokens: int, rows: int) -> Estimate:
    """Time one physical batch, one noise draw and a few written tokens. Changes the base model.

    Args:
        base: the base model.
        config: the run's options.
        plan: the run's plan.
        tokens: of a usual record with its prompt.
        rows: of the twin.
    """
    tokens = max(4, min(tokens, context_length(base.model) - PROBE_TOKENS))
    row_seconds = _row_seconds(fastest(base.model), config, tokens)
    fuse(base.model.to(frozen_dtype(config)))
    adaptive = config.policy.noise_policy == "adaptive"
    weigh_seconds = _weigh_seconds(base.model, tokens) if adaptive else 0.0
    model = trainable(base.model, config.training)
    engine = ClippingEngine(model, config.privacy.max_grad_norm, execution(config))
    try:
        record_seconds = _record_seconds(engine, config, plan, tokens, model)
        noise_seconds = _noise_seconds(engine.sums, config)
    finally:
        engine.close()
    visits = plan.batch_size * (2 if config.policy.noise_policy == "selective" else 1)
    drawn = plan.records * (1 - (1 - plan.sample_rate) ** plan.steps)
    training_seconds = plan.steps * (visits * record_seconds + noise_seconds)
    return Estimate(
        tokens=tokens,
        trained_parameters=sum(p.numel() for p in engine.parameters),
        training_seconds=training_seconds + drawn * weigh_seconds,
        sampling_seconds=rows * row_seconds,
        memory_gb=_peak_memory(),
    )


def _record_seconds(
    engine: ClippingEngine, config: RunConfig, plan: Plan, tokens: int, model: Any
) -> float:
    """Time a physical batch of the shape that a run has, and share it out, filler included."""
    each = 1 + WrongPrompts.of(plan, config.training).count
    shapes = BatchShapes(config.speed, plan.batch_size, each)
    length = padded(tokens, context_length(model))
    units = shapes.units(1, length)
    ids = torch.randint(model.config.vocab_size, (units * each, length))
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, max(1, tokens // 4) : tokens] = True  # behind the prompt, about
    loss = MismatchLoss(plan.mismatch_weight, config.training.mismatch_form)
    sequences = Sequences(ids, mask, each)
    engine.add(sequences, loss)  # the first one warms up
    began = time.monotonic()
    engine.add(sequences, loss)
    lengths = min(len(padded_lengths(length, length)), plan.batch_size)
    filler = lengths * (units - 1) / 2  # of each length half a batch, about
    return (time.monotonic() - began) / units * (1 + filler / plan.batch_size)


def _weigh_seconds(model: Any, tokens: int) -> float:
    """Time how long one record's privacy weight takes, with others of its length."""
    texts = [[0] * tokens] * max(1, TOKENS_AT_ONCE // tokens)
    began = time.monotonic()
    nats_per_token(model, texts, 0)
    return (time.monotonic() - began) / len(texts)


def _noise_seconds(sums: list[Tensor], config: RunConfig) -> float:
    """Time one release and what the policy learns from it."""
    weights = torch.ones(1)
    policy = make_policy(
        MechanismParams(1.0, 1.0, 1.0, Randomness.from_os(), config.policy, 1.0, weights)
    )
    began = time.monotonic()
    noisy, _ = policy.release(sums, [0])
    policy.update_statistics(noisy, noisy)
    return time.monotonic() - began


def _row_seconds(model: Any, config: RunConfig, tokens: int) -> float:
    prompts = [[0] * max(1, tokens // 4)] * PROBE_ROWS
    never = -1  # no token ends a row, so that every row is as long as asked for
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        generate(model, prompts, never, 1, config.sampling, generator, prompts)  # warms up
        began = time.monotonic()
        generate(model, prompts, never, PROBE_TOKENS, config.sampling, generator, prompts)
    return (time.monotonic() - began) / PROBE_ROWS / PROBE_TOKENS * tokens


def _peak_memory() -> float:
    """Gigabytes. The kernel counts kilobytes, on macOS bytes."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)


def usual_tokens(texts: Sequence[str], tokenizer: Any, prompt: int, longest: int) -> int:
    """Return the mean length of up to 256 records, evenly chosen, with a prompt so long."""
    chosen = texts[:: -(-len(texts) // 256)]
    encoded = tokenizer(list(chosen), add_special_tokens=False)["input_ids"]
    return prompt + round(sum(min(len(ids), longest) for ids in encoded) / len(encoded))
