"""The private fine-tuning loop, to be read from top to bottom.

Poisson batch → exact clipped sum → noise policy → Adam. What a step spends goes to the ledger's
`record` before its gradient is used, and between the two nothing can stop the run. Losses, norms
and clipped shares are private: they go to the observer, whose output stays in `internal/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from twinset.clippedsum import Batch, ClippedSum, WrongPrompts
from twinset.config import SpeedConfig, TrainingConfig
from twinset.plan import Plan
from twinset.policies import NoisePolicy
from twinset.privacy.clipping import ClippingEngine, Execution, UnitReport
from twinset.privacy.events import Event
from twinset.stopping import uninterrupted
from twinset.team import Team, TeamSum
from twinset.tokens import TokenisedRecords

WARM_UP = 0.05  # share of steps over which the learning rate rises


@dataclass(frozen=True)
class StepReport:
    """One step as seen from inside. Private: for the owner's eyes and `internal/` only.

    Args:
        step: 1 … T.
        records: units in the Poisson batch; may be 0.
        loss: mean loss over the batch; NaN when it was empty.
        clipped: share of units whose gradient was longer than it may be.
        non_finite: units whose gradient was not finite and counted as zero.
        seconds: wall time since training began.
    """

    step: int
    records: int
    loss: float
    clipped: float
    non_finite: int
    seconds: float


RecordsOf = Callable[[np.ndarray], list[list[int]]]


def one_each(units: np.ndarray) -> list[list[int]]:
    """Return each unit's one record, which has its number."""
    return [[unit] for unit in units.tolist()]


class Keeper(Protocol):
    """Keeps what training may go on from."""

    def passed(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """Be told of a step that is done; `state` returns all that the next one needs."""
        ...

    def ended(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """Be told that no step follows: all are done, or somebody stopped the run."""
        ...


class NothingKept:
    """Keeps nothing."""

    def passed(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """See `Keeper`."""

    def ended(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """See `Keeper`."""


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
    begun: dict[str, Any] | None = None,
    keeper: Keeper | None = None,
    team: Team | None = None,
    records_of: RecordsOf = one_each,
) -> None:
    """Fine-tune `model` in place, a private step for each batch.

    Guarantee:
        If `batches` are independent Poisson batches, the model's final weights are a
        post-processing of as many releases of `policy`; each release's event has been passed to
        `record_event`. The gradient is divided by the expected batch size, never the realised one.

    Args:
        model: causal LM; its trainable parameters are the ones trained.
        records: tokens of the private records.
        batches: of `poisson_batches`, one a step that is still to do.
        plan: expected batch size, steps, learning rate, λ.
        training: mismatched prompts and form, seed of their draw.
        speed: size of physical batches only.
        execution: memory against time, and number formats.
        policy: turns clipped sums into noisy gradients.
        max_grad_norm: C.
        record_event: the ledger's.
        observe: called after each step.
        begun: what a keeper was given, to go on from there.
        keeper: is told of each step, and of the end.
        team: processes that form each sum together; None: this one alone.
        records_of: units' numbers → the records of each that take part in a step.
    """
    engine, keeper = ClippingEngine(model, max_grad_norm, execution), keeper or NothingKept()
    learning = _Learning(engine.parameters, plan, policy)
    if begun is not None:
        learning.restore(begun)
    wrong_prompts = WrongPrompts.of(plan, training)
    clipped_sum = ClippedSum(engine, records, wrong_prompts, speed)
    over = clipped_sum.over if team is None else TeamSum(clipped_sum, team).over
    began = time.monotonic()
    try:
        for indices in batches:
            units = indices.tolist()
            limits, scales = policy.limits(units), policy.scales()
            report = over(Batch(learning.done + 1, records_of(indices), limits, scales))
            with uninterrupted():
                noisy, event = policy.release(engine.sums, units)
                record_event(event)
                learning.step([total.div_(plan.batch_size) for total in noisy])
            observe(_step_report(learning.done, report, time.monotonic() - began))
            keeper.passed(learning.done, learning.state)
        keeper.ended(learning.done, learning.state)
    except KeyboardInterrupt:
        keeper.ended(learning.done, learning.state)
        raise
    finally:
        engine.close()


class _Learning:
    """All that a step changes: parameters, their optimiser and schedule, what the policy learns."""

    def __init__(self, parameters: Sequence[torch.Tensor], plan: Plan, policy: NoisePolicy) -> None:
        self._parameters, self._policy, self.done = parameters, policy, 0
        self._optimizer = torch.optim.Adam(
            parameters, lr=plan.learning_rate, betas=(0.9, 0.99), fused=True
        )
        shape = _rate_shape(plan.steps)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, shape)

    def step(self, gradients: list[torch.Tensor]) -> None:
        """Take a step along released gradients."""
        self._policy.learn(self._parameters, gradients)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        self.done += 1

    def state(self) -> dict[str, Any]:
        """Return all of it, for `torch.save`."""
        return {
            "done": self.done,
            "parameters": [p.detach() for p in self._parameters],
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "policy": self._policy.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        with torch.no_grad():
            for parameter, kept in zip(self._parameters, state["parameters"], strict=True):
                parameter.copy_(kept)
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._policy.restore(state["policy"])
        self.done = state["done"]


def _rate_shape(steps: int) -> Callable[[int], float]:
    """Rise over the first steps, then fall linearly to a tenth."""
    rise = max(1, round(WARM_UP * steps))

    def shape(step: int) -> float:
        return min((step + 1) / rise, 1.0 - 0.9 * max(0, step - rise) / max(1, steps - rise))

    return shape


def _step_report(step: int, report: UnitReport, seconds: float) -> StepReport:
    if not len(report.losses):
        return StepReport(step, 0, float("nan"), 0.0, 0, seconds)
    finite = report.norms.isfinite()
    return StepReport(
        step=step,
        records=len(report.losses),
        loss=float(report.losses[finite].double().mean()),
        clipped=float((report.scales[finite] < 1).double().mean()),
        non_finite=int((~finite).sum()),
        seconds=seconds,
    )
