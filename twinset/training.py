"""The private fine-tuning loop, to be read from top to bottom.

Poisson batch → exact clipped sum → noise policy → Adam. What a step spends goes to the ledger's
`record` before its gradient is used. Losses, norms and clipped shares are private: they go to the
observer, whose output stays in `internal/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from twinset.config import SpeedConfig, TrainingConfig
from twinset.mismatch import MismatchLoss
from twinset.plan import Plan
from twinset.policies import NoisePolicy
from twinset.privacy.clipping import ClippingEngine, Execution, UnitReport
from twinset.privacy.events import Event
from twinset.tokens import TokenisedRecords
from twinset.widths import batches_of_one_width

WARM_UP = 0.05  # share of steps over which the learning rate rises


@dataclass(frozen=True)
class StepReport:
    """One step as seen from inside. Private: for the owner's eyes and `internal/` only.

    Args:
        step: 1 … T.
        records: size of the Poisson batch; may be 0.
        loss: mean loss over the batch; NaN when it was empty.
        clipped: share of records whose gradient was longer than it may be.
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
    batches: Sequence[np.ndarray],
    plan: Plan,
    training: TrainingConfig,
    speed: SpeedConfig,
    execution: Execution,
    policy: NoisePolicy,
    max_grad_norm: float,
    record_event: Callable[[Event], object],
    observe: Callable[[StepReport], None],
) -> None:
    """Fine-tune `model` in place, a private step for each batch.

    Guarantee:
        If `batches` are independent Poisson batches, the model's final weights are a
        post-processing of as many releases of `policy`; each release's event has been passed to
        `record_event`. The gradient is divided by the expected batch size, never the realised one.

    Args:
        model: causal LM; its trainable parameters are the ones trained.
        records: tokens of the private records.
        batches: of `poisson_batches`, one a step.
        plan: expected batch size, steps, learning rate, λ.
        training: mismatched prompts and form, seed of their draw.
        speed: size of physical batches only.
        execution: memory against time, and number formats.
        policy: turns clipped sums into noisy gradients.
        max_grad_norm: C.
        record_event: the ledger's.
        observe: called after each step.
    """
    engine = ClippingEngine(model, max_grad_norm, execution)
    optimizer = torch.optim.Adam(
        engine.parameters, lr=plan.learning_rate, betas=(0.9, 0.99), fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate_shape(plan.steps))
    clipped_sum = _ClippedSum(engine, records, plan, training, speed, policy)
    began = time.monotonic()
    try:
        for step, indices in enumerate(batches, start=1):
            reports = clipped_sum.over(step, indices)
            noisy, event = policy.release(engine.sums, indices.tolist())
            record_event(event)
            gradients = [total.div_(plan.batch_size) for total in noisy]
            policy.learn(engine.parameters, gradients)
            for parameter, gradient in zip(engine.parameters, gradients, strict=True):
                parameter.grad = gradient.to(parameter.dtype)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            observe(_step_report(step, reports, time.monotonic() - began))
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
        speed: SpeedConfig,
        policy: NoisePolicy,
    ) -> None:
        self._engine, self._records, self._speed = engine, records, speed
        self._policy = policy
        self._loss = MismatchLoss(plan.mismatch_weight, training.mismatch_form)
        self._mismatched = training.mismatch_prompts if plan.mismatch_weight else 0
        self._seed = training.seed
        self._most = len(records)  # units at once; less after running out of memory

    def over(self, step: int, indices: np.ndarray) -> list[UnitReport]:
        """Return the reports of all physical batches; halve them and start again out of memory."""
        scales = self._policy.scales()
        while True:
            self._tried = 1
            try:
                self._engine.zero()
                if scales:
                    self._engine.rescale(scales)
                return [self._add(step, units) for units in self._cut(indices)]
            except RuntimeError as error:
                if self._tried == 1 or not _out_of_memory(error):
                    raise
                self._most = self._tried // 2

    def _cut(self, indices: np.ndarray) -> Iterator[list[int]]:
        """Return physical batches of records of one width."""
        rows = 1 + min(self._mismatched, len(self._records.prompts) - 1)

        def at_once(width: int) -> int:
            return min(self._speed.units_at_once(rows * width), self._most)

        batches = batches_of_one_width(indices.tolist(), self._records.width, at_once)
        return (units for _, units in batches)

    def _add(self, step: int, units: list[int]) -> UnitReport:
        self._tried = len(units)
        sequences = self._records.sequences(units, self._mismatched, (self._seed, step))
        return self._engine.add(sequences, self._loss, self._policy.limits(units))


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


def _step_report(step: int, reports: list[UnitReport], seconds: float) -> StepReport:
    if not reports:
        return StepReport(step, 0, float("nan"), 0.0, 0, seconds)
    losses = torch.cat([r.losses for r in reports])
    finite = torch.cat([r.norms for r in reports]).isfinite()
    scales = torch.cat([r.scales for r in reports])
    return StepReport(
        step=step,
        records=len(losses),
        loss=float(losses[finite].double().mean()),
        clipped=float((scales[finite] < 1).double().mean()),
        non_finite=int((~finite).sum()),
        seconds=seconds,
    )
