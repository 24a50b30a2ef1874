"""The private fine-tuning loop, readable from top to bottom.

Poisson batch → exact clipped sum → noise policy → ledger → Adam. The last three belong to
`PrivateOptimizer`. Every private training uses it for its steps, of language models and of
classifiers alike. Losses, norms and clipped shares are private. They go to the observer, whose
output stays in `internal/`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map_only

from twinset.config import SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.errors import InputError
from twinset.files.atomic import uninterrupted
from twinset.policies import NoisePolicy
from twinset.privacy.accounting.events import Event
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.clipping.gradient_uses import UnsupportedModule
from twinset.privacy.mechanism.gate import Gate, Noisy
from twinset.progress import Count, StepReport
from twinset.table.tokenization import TokenisedRecords
from twinset.training.clipped_sum import Batch, ClippedSum, MismatchLoss, Trainer
from twinset.training.distributed import END, ProcessGroup, sum_together

MEASURED = 4096  # numbers of each sum by which its noise is measured
WARM_UP = 0.05  # share of steps over which the learning rate rises
RecordsOf = Callable[[np.ndarray], list[list[int]]]
# Is called after each step, and once more when none follows (all are done, or somebody stopped the
# run), with the steps done, what returns all that the next step needs, and whether it is the end.
KeepState = Callable[[int, Callable[[], dict[str, Any]], bool], object]


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What all steps of a training work with."""

    records: TokenisedRecords  # private
    plan: Plan  # expected batch size, steps, learning rate, λ
    policy: NoisePolicy  # turns clipped sums into noisy gradients
    max_grad_norm: float  # C
    gate: Gate  # which noisy gradients pass
    training: TrainingConfig = TrainingConfig()  # mismatched prompts and form, seed of their draw
    speed: SpeedConfig = SpeedConfig()  # size of physical batches only
    observe: Callable[[StepReport], object] = lambda report: None  # called after each step
    count: Count = lambda done, total: None  # called with the units of the first step
    # units' numbers → the records of each that take part. By default one of the same number
    records_of: RecordsOf = lambda units: [[unit] for unit in units.tolist()]
    resume_state: dict[str, Any] | None = None  # what `checkpoints` was given
    checkpoints: KeepState = lambda step, state, is_end: None  # saves the state for resuming
    group: ProcessGroup | None = None  # processes that form each sum (None: this one alone)


def opening_message(trainer: Trainer, context: StepContext) -> dict[str, Any]:
    """Return what other ranks need: the same weights, and records in a folder."""
    # of weights that were rounded once, others must be rounded too
    speed = replace(trainer.config.speed, precision="bfloat16" if trainer.is_low else "float32")
    norm = context.max_grad_norm
    return {
        "config": asdict(replace(trainer.config, speed=speed)),
        "has_fallen_back": trainer.has_fallen_back,
        "tokens": str(context.records.folder),
        "batch_size": context.plan.batch_size,
        "max_grad_norm": norm if math.isfinite(norm) else None,
        "loss": asdict(MismatchLoss.from_plan(context.plan, context.training)),
    }


def run_training(trainer: Trainer, batches: Sequence[np.ndarray], context: StepContext) -> None:
    """Fine-tune a model in place, one private step per batch.

    For its guarantee see `twinset.privacy.statement.theorems`, TRAINING.

    Args:
        trainer: its model's trainable parameters are the ones trained.
        batches: of `poisson_batches`, one per remaining step: numbers of units.
        context: what the steps work with. The processes of a group form each sum together.

    Raises:
        InputError: the model has a layer whose gradients cannot be clipped.
    """
    if context.group:
        context.group.broadcast_message(opening_message(trainer, context))
    plan, policy, checkpoints = context.plan, context.policy, context.checkpoints
    rise = max(1, round(WARM_UP * plan.steps))

    def rate_shape(step: int) -> float:
        """Rise over the first steps, then fall linearly to a tenth."""
        fall = 0.9 * max(0, step - rise) / max(1, plan.steps - rise)
        return min((step + 1) / rise, 1.0 - fall)

    engine = None
    try:
        engine = ClippingEngine(trainer.model, context.max_grad_norm, trainer.execution)
        weights = engine.parameters
        adam = torch.optim.Adam(weights, plan.learning_rate, betas=(0.9, 0.99), fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, rate_shape)
        optimizer = PrivateOptimizer(weights, policy, plan.batch_size, adam, schedule, context.gate)
        if context.resume_state is not None:
            optimizer.restore(context.resume_state)
        loss = MismatchLoss.from_plan(plan, context.training)
        own = ClippedSum(engine, context.records, loss, context.speed, plan.batch_size)
        began, before = time.monotonic(), optimizer.done
        try:
            for indices in batches:  # Poisson batch
                units = indices.tolist()
                own.count = context.count if optimizer.done == before else None  # it says how long
                limits, scales = policy.limits(units), policy.scales()
                drawn = context.records_of(indices)
                batch = Batch(optimizer.done + 1, drawn, limits, scales)
                # a unit whose records were all left out is in the batch, and adds nothing
                batch = batch.part([place for place, unit in enumerate(drawn) if unit])
                # exact, in the engine's sums
                if context.group is None:
                    report = own.compute_clipped_sum(batch)
                else:
                    report = sum_together(own, context.group, batch)
                optimizer.step(engine.sums, units)  # noise policy → ledger → Adam
                # A figure of a step is private. A Poisson batch may be empty.
                finite, is_empty = report.norms.isfinite(), not len(report.losses)
                clipped = (report.scales[finite] < 1).double()
                context.observe(
                    StepReport(
                        step=optimizer.done,
                        records=len(report.losses),
                        loss=float(report.losses[finite].double().mean()),
                        clipped=0.0 if is_empty else float(clipped.mean()),
                        non_finite=int((~finite).sum()),
                        noise=optimizer.noise,
                        numbers=optimizer.numbers,
                        seconds=time.monotonic() - began,
                        taken=optimizer.done - before,
                    )
                )
                checkpoints(optimizer.done, optimizer.state, False)
            checkpoints(optimizer.done, optimizer.state, True)
        except KeyboardInterrupt:
            checkpoints(optimizer.done, optimizer.state, True)
            raise
        if context.group:
            context.group.broadcast_message(END)
    except UnsupportedModule as error:  # some are found by the first step
        raise InputError(f"{trainer.name}: {error}") from error
    finally:
        if engine is not None:
            engine.close()


class PrivateOptimizer:
    """Takes steps along noisy sums, and holds all state that a step changes.

    For its guarantee see `twinset.privacy.statement.theorems`, TRAINING.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        policy: NoisePolicy,  # turns clipped sums into noisy ones
        batch_size: float,  # L, the *expected* number of units, by which noisy sums are divided
        optimizer: Optimizer,
        schedule: LRScheduler,  # of its learning rate, a step at a time
        gate: Gate,  # which noisy gradients pass
    ) -> None:
        self._parameters, self._policy, self._batch_size = parameters, policy, batch_size
        self._optimizer, self._schedule = optimizer, schedule
        self._gate = gate
        self.done = 0  # steps
        # Of the last step: its noise as measured, over what its event says, and by how many
        # numbers. NaN without an event of that kind. It knows the exact sum, so it is private.
        self.noise, self.numbers = math.nan, 0

    def step(self, sums: list[Tensor], units: Sequence[int]) -> None:
        """Take a step. Record what it spends before it is used, without interruption.

        Args:
            sums: Σᵢ ĝᵢ of the batch, one for each parameter. They are overwritten.
            units: the batch's units, as the policy knows them.
        """
        with uninterrupted():
            exact = [_first_numbers(total).clone() for total in sums]
            is_shaped = self._policy.shapes_noise or self._policy.scales()
            shapes = self._policy.noise_shapes(sums) if is_shaped else []
            sums, event = self._policy.release(sums, units)
            noisy = self._gate.release(Noisy(sums, event))
            self.measure_noise(exact, noisy, shapes, event)
            gradients = [total.div_(self._batch_size) for total in noisy]
            self._policy.update_statistics(self._parameters, gradients)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient.to(parameter.dtype)
            self._optimizer.step()
            self._schedule.step()
            self._optimizer.zero_grad()
            self.done += 1

    def measure_noise(
        self, exact: list[Tensor], noisy: list[Tensor], shapes: list[Tensor], event: Event
    ) -> None:
        """Keep the noise of a release in `noise` and `numbers`, by the first numbers of each sum.

        Args:
            exact: these numbers before the release, in the geometry that they were clipped in.
            noisy: the released sums.
            shapes: factors on the noise. A geometry for clipping has them, too. Empty: all are 1.
            event: what the release recorded.
        """
        released = [_first_numbers(total).double() for total in noisy]
        if shapes:
            factors = [*map(_first_numbers, shapes)]
            released = [each / factor for each, factor in zip(released, factors, strict=True)]
            if not self._policy.scales():  # sums are as they were clipped, and only noise differs
                exact = [each / factor for each, factor in zip(exact, factors, strict=True)]
        added = [each - before for each, before in zip(released, exact, strict=True)]
        self.numbers = sum(map(len, added))
        self.noise = math.sqrt(sum(float(each.square().sum()) for each in added) / self.numbers)
        self.noise /= self._policy.noise_stated(event)

    def state(self) -> dict[str, Any]:
        """Return all that the next step needs, for `torch.save`."""
        return {
            "done": self.done,
            "parameters": [p.detach() for p in self._parameters],
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "policy": self._policy.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state`."""
        with torch.no_grad():
            for parameter, kept in zip(self._parameters, state["parameters"], strict=True):
                parameter.copy_(kept)
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        # another device may have kept the tensors of the policy
        device = self._parameters[0].device
        self._policy.restore(tree_map_only(Tensor, lambda t: t.to(device), state["policy"]))
        self.done = state["done"]


def _first_numbers(tensor: Tensor) -> Tensor:
    """Return the first numbers of a tensor in a row, `MEASURED` of them at most."""
    return tensor.detach().reshape(-1)[:MEASURED]
