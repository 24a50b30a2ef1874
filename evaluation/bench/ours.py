"""The steps that are ours to answer for: the ordinary one, the same with our kernels, and ours.

A step empties the gradients, runs forward and backward and leaves `.grad` of every trained
parameter ready for an optimiser; a private one clips every unit at C and adds N(0, σ²C²).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evaluation.bench.cases import StepCase
from twinset.models.precision import fuse
from twinset.privacy.clipping import ClippingEngine, Execution, Sequences
from twinset.privacy.clipping.execution import KEPT_BYTES
from twinset.privacy.clipping.output_head import residuals
from twinset.privacy.mechanism.noise import add_gaussian_to_each_
from twinset.privacy.mechanism.randomness import Randomness
from twinset.training.mismatch_loss import MismatchLoss

UNIT_LOSS = MismatchLoss(1.0, "bounded")


@dataclass(frozen=True)
class Work:
    """What a step is given.

    Args:
        input_ids: (B·K, T) tokens; unit i owns rows i·K … i·K+K-1.
        per_unit: K.
        max_grad_norm: C.
        noise_multiplier: σ.
        autocast: format that the products of float32 weights are cast to.
    """

    input_ids: Tensor
    per_unit: int
    max_grad_norm: float = 1.0
    noise_multiplier: float = 1.0
    autocast: torch.dtype | None = None

    @classmethod
    def of(cls, case: StepCase, vocabulary: int) -> Work:
        """Draw a case's tokens."""
        generator = torch.Generator().manual_seed(0)
        shape = (case.batch * case.per_unit, case.length)
        ids = torch.randint(vocabulary, shape, generator=generator)
        return cls(ids, case.per_unit, autocast=torch.bfloat16 if case.autocast else None)

    @property
    def position_ids(self) -> Tensor:
        """(B·K, T): given per row, so that hooks see rows."""
        rows, length = self.input_ids.shape
        return torch.arange(length, device=self.input_ids.device).repeat(rows, 1)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, σC."""
        return self.noise_multiplier * self.max_grad_norm


class Made(NamedTuple):
    """A step, ready to be called again and again, and what a reader should know of it."""

    step: Callable[[], None]
    note: str = ""


def ordinary(model: Any, work: Work) -> Made:
    """Hugging Face's model as it is, with its own loss."""
    ids = work.input_ids.to(model.device)

    def step() -> None:
        model.zero_grad()
        with Execution(autocast=work.autocast).casting(ids.device):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()

    return Made(step)


class InPlaceLoss(torch.autograd.Function):
    """Sum of the token losses with one (N, V) buffer, where the private step's loss needs one."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, q: Tensor) -> Tensor:
        """Return a scalar; hidden (N, d), weight (V, d), q (N, V) to be overwritten."""
        ctx.save_for_backward(hidden, weight)
        low = q if q.dtype == hidden.dtype else torch.empty_like(q, dtype=hidden.dtype)
        losses = residuals(hidden, weight, targets, q, low)
        ctx.q = low
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden and, where it is trained, of the weight."""
        hidden, weight = ctx.saved_tensors
        through = (ctx.q @ weight) * grads[0]
        trained = ctx.needs_input_grad[1]
        return through, ctx.q.t() @ (hidden * grads[0]) if trained else None, None, None


def our_kernels(model: Any, work: Work) -> Made:
    """Not private: plain autograd over the same model, activations and output layer as `ours`."""
    plain = getattr(fuse(model), "get_base_model", lambda: model)()
    head, ids = plain.get_output_embeddings().weight, work.input_ids.to(model.device)
    q = torch.empty(ids[:, 1:].numel(), len(head), device=ids.device)

    def step() -> None:
        model.zero_grad()
        with Execution(autocast=work.autocast).casting(ids.device):
            hidden = plain.base_model(input_ids=ids, use_cache=False).last_hidden_state
        rows = hidden[:, :-1].flatten(0, 1).to(work.autocast or hidden.dtype)
        loss = InPlaceLoss.apply(rows, head.to(rows.dtype), ids[:, 1:].flatten(), q)
        (loss / len(rows)).backward()

    return Made(step, "not private")


def ours(model: Any, work: Work, kept_bytes: int = KEPT_BYTES) -> Made:
    """The private step that twinset trains with; `kept_bytes` 0 is its low-memory mode."""
    mask = torch.ones_like(work.input_ids, dtype=torch.bool)
    mask[:, 0] = False
    sequences = Sequences(work.input_ids, mask, work.per_unit)
    execution = Execution(kept_bytes, autocast=work.autocast)
    engine = ClippingEngine(fuse(model), work.max_grad_norm, execution)
    randomness = Randomness.from_os()

    def step() -> None:
        engine.zero()
        engine.add(sequences, UNIT_LOSS)
        add_gaussian_to_each_(engine.sums, work.noise, randomness)
        for parameter, total in zip(engine.parameters, engine.sums, strict=True):
            parameter.grad = total.to(parameter.dtype)

    return Made(step)
