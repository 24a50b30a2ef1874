"""Noise policies: how a step's clipped sum becomes a noisy gradient.

A policy is one file and one line in `POLICIES`. It returns the gradient and the event it spent
together, so that nothing is released without being recorded.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from twinset.policies.uniform import Uniform
from twinset.privacy.events import Event


class NoisePolicy(Protocol):
    """What the training loop asks of a policy."""

    name: str
    form: str

    def release(self, sums: list[Tensor]) -> tuple[list[Tensor], Event]:
        """Turn clipped sums into noisy ones and say what that spent."""
        ...


POLICIES: dict[str, type[Uniform]] = {"uniform": Uniform}

__all__ = ["POLICIES", "NoisePolicy", "Uniform"]
