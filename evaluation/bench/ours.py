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

from evaluation.bench.cases import Case
from twinset.kernels import fuse
from twinset.mismatch import MismatchLoss
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.noise import add_gaussian_
from twinset.privacy.randomness import Randomness

UNIT_LOSS = MismatchLoss(1.0, "bounded")


@dataclass(frozen=True)
class Work:
    """What a step is given.

    Args:
        input_ids: (B·K, T) tokens; unit i owns rows i·K … i·K+K-1.
        per_unit: K.
        max_grad_norm: C.
        noise_multiplier: σ.
    """

    input_ids: Tensor
    per_unit: int
    max_grad_norm: float = 1.0
    noise_multiplier: float = 1.0

    @classmethod
    def of(cls, case: Case, vocabulary: int) -> Work:
        """Draw a case's tokens."""
        generator = torch.Generator().manual_seed(0)
        shape = (case.batch * case.per_unit, case.length)
        return cls(torch.randint(vocabulary, shape, generator=generator), case.per_unit)

    @property
    def position_ids(self) -> Tensor:
        """(B·K, T): given per row, so that hooks see rows."""
        rows, length = self.input_ids.shape
        return torch.arange(length).expand(rows, length)

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

    def step() -> None:
        model.zero_grad()
        model(input_ids=work.input_ids, labels=work.input_ids).loss.backward()

    return Made(step)


def our_kernels(model: Any, work: Work) -> Made:
    """Not private: the ordinary step of a model with our kernels."""
    return Made(ordinary(fuse(model), work).step, "not private")


def ours(model: Any, work: Work) -> Made:
    """The private step that twinset trains with."""
    mask = torch.ones_like(work.input_ids, dtype=torch.bool)
    mask[:, 0] = False
    sequences = Sequences(work.input_ids, mask, work.per_unit)
    engine = ClippingEngine(fuse(model), work.max_grad_norm)
    randomness = Randomness.from_os()

    def step() -> None:
        engine.zero()
        engine.add(sequences, UNIT_LOSS)
        for parameter, total in zip(engine.parameters, engine.sums, strict=True):
            parameter.grad = add_gaussian_(total, work.noise, randomness).to(parameter.dtype)

    return Made(step)
