"""Noise policies: how a step's clipped sum becomes a noisy gradient.

A policy is one file and one line in `POLICIES`. It returns the gradient and the event it spent
together, so that nothing is released without being recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from twinset.errors import InputError
from twinset.policies.importance import Importance
from twinset.policies.uniform import Uniform
from twinset.privacy.clipping.geometry import Scale
from twinset.privacy.events import Event
from twinset.privacy.randomness import Randomness


class NoisePolicy(Protocol):
    """What the training loop asks of a policy, in this order in every step."""

    name: str
    form: str

    def scales(self) -> list[Scale]:
        """Return the geometry to clip in, a scale for each parameter; nothing for the plain one."""
        ...

    def release(self, sums: list[Tensor]) -> tuple[list[Tensor], Event]:
        """Turn clipped sums into noisy ones and say what that spent."""
        ...

    def learn(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Look at the released gradient of each parameter before it is applied."""
        ...


# (σ, C, q, randomness) → policy
MakePolicy = Callable[[float, float, float, Randomness], NoisePolicy]

POLICIES: dict[str, MakePolicy] = {
    "uniform": Uniform,
    "importance": Importance,
}


def policy_named(name: str) -> MakePolicy:
    """Return what makes the policy of this name.

    Raises:
        InputError: there is none.
    """
    if name not in POLICIES:
        raise InputError(f"--noise-policy: {name!r} is none of {', '.join(POLICIES)}")
    return POLICIES[name]


__all__ = ["POLICIES", "Importance", "MakePolicy", "NoisePolicy", "Uniform", "policy_named"]
