"""The private fine-tuning loop, to be read from top to bottom.

Poisson batch → exact clipped sum → noise policy → Adam. What a step spends goes to the ledger's
`record` before its gradient is used. Losses, norms and clipped shares are private: they go to the
observer, whose output stays in `internal/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from twinset.config import SpeedConfig, TrainingConfig
from twinset.mismatch import MismatchLoss
from twinset.plan import Plan
from twinset.policies import NoisePolicy
from twinset.privacy.batches import poisson_batches
from twinset.privacy.clipping import ClippingEngine, UnitReport
from twinset.privacy.events import Event
from twinset.privacy.randomness import Randomness
from twinset.tokens import TokenisedRecords

WARM_UP = 0.05  # share of steps over which the learning rate rises


@dataclass(frozen=True)
class StepReport:
    """One step as seen from inside. Private: for the owner's eyes and `internal/` only.

    Args:
        step: 1 … T.
        records: size of the Poisson batch; may be 0.
        loss: mean loss over the batch; NaN when it was empty.
        clipped: share of records whose gradient was longer than C.
        non_finite: records whose gradient was not finite and counted as zero.
        seconds: wall time since training began.
    """

    step: int
    records: int
    loss: float
    clipped: float
    non_finite: int
    seconds: float


def train(
    model: Any,
    records: TokenisedRecords,
    plan: Plan,
    training: TrainingConfig,
    speed: SpeedConfig,
    policy: NoisePolicy,
    randomness: Randomness,
    max_grad_norm: float,
    record_event: Callable[[Event], object],
    observe: Callable[[StepReport], None],
) -> None:
    """Fine-tune `model` in place for `plan.steps` private steps.

    Guarantee:
        The model's final weights are a post-processing of `plan.steps` releases of `policy`, each
        over an independent Poisson batch of `records`; each release's event has been passed to
        `record_event`. The gradient is divided by the expected batch size, never the realised one.

    Args:
        model: causal LM; its trainable parameters are the ones trained.
        records: tokens of the private records.
        plan: sample rate, steps, learning rate, λ.
        training: mismatched prompts and form, seed of their draw.
        speed: physical batch size only.
        policy: turns clipped sums into noisy gradients.
        randomness: source of the Poisson draws.
        max_grad_norm: C.
        record_event: the ledger's.
        observe: called after each step.
    """
    engine = ClippingEngine(model, max_grad_norm)
    optimizer = torch.optim.Adam(engine.parameters, lr=plan.learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate_shape(plan.steps))
    clipped_sum = _ClippedSum(engine, records, plan, training, speed.physical_batch)
    batches = poisson_batches(len(records), plan.sample_rate, plan.steps, randomness)
    began = time.monotonic()
    try:
        for step, indices in enumerate(batches, start=1):
            reports = clipped_sum.over(step, indices)
            noisy, event = policy.release(engine.sums)
            record_event(event)
            for parameter, total in zip(engine.parameters, noisy, strict=True):
                parameter.grad = (total / plan.batch_size).to(parameter.dtype)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            observe(_step_report(step, reports, max_grad_norm, time.monotonic() - began))
    finally:
        engine.close()


def _rate_shape(steps: int) -> Callable[[int], float]:
    """Rise over the first steps, then fall linearly to a tenth."""
    rise = max(1, round(WARM_UP * steps))

    def shape(step: int) -> float:
        return min((step + 1) / rise, 1.0 - 0.9 * max(0, step - rise) / max(1, steps - rise))

    return shape


class _ClippedSum:
    """Fills `engine.sums` for a logical batch, in physical batches that fit into memory."""

    def __init__(
        self,
        engine: ClippingEngine,
        records: TokenisedRecords,
        plan: Plan,
        training: TrainingConfig,
        physical_batch: int,
    ) -> None:
        self._engine, self._records, self._physical = engine, records, physical_batch
        self._loss = MismatchLoss(plan.mismatch_weight, training.mismatch_form)
        self._mismatched = training.mismatch_prompts if plan.mismatch_weight else 0
        self._seed = training.seed

    def over(self, step: int, indices: np.ndarray) -> list[UnitReport]:
        """Return the reports of all physical batches; halve them and start again out of memory."""
        while True:
            try:
                self._engine.zero()
                return list(self._add(step, indices))
            except RuntimeError as error:
                if self._physical == 1 or not _out_of_memory(error):
                    raise
                self._physical = max(1, self._physical // 2)

    def _add(self, step: int, indices: np.ndarray) -> Iterator[UnitReport]:
        width = self._records.width
        for _, same in groupby(sorted(indices.tolist(), key=width), key=width):
            units = list(same)
            for start in range(0, len(units), self._physical):
                chosen = units[start : start + self._physical]
                sequences = self._records.sequences(chosen, self._mismatched, (self._seed, step))
                yield self._engine.add(sequences, self._loss)


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def _step_report(
    step: int, reports: list[UnitReport], max_grad_norm: float, seconds: float
) -> StepReport:
    if not reports:
        return StepReport(step, 0, float("nan"), 0.0, 0, seconds)
    losses = torch.cat([r.losses for r in reports])
    norms = torch.cat([r.norms for r in reports])
    finite = norms.isfinite()
    return StepReport(
        step=step,
        records=len(losses),
        loss=float(losses[finite].double().mean()),
        clipped=float((norms[finite] > max_grad_norm).double().mean()),
        non_finite=int((~finite).sum()),
        seconds=seconds,
    )
