"""Noise policies: how a step's clipped sum becomes a noisy gradient.

A policy is one file, its lines in `POLICIES`, and its theorem (CONTRIBUTING.md has the steps). It
returns the gradient and the event it spent together, so that nothing is released without being
recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from twinset.policies.adaptive import Adaptive, PublishedAdaptive
from twinset.policies.importance import Importance, PublishedImportance
from twinset.policies.mechanism_params import MechanismParams
from twinset.policies.selective import PublishedSelective, Selective
from twinset.policies.uniform import Uniform
from twinset.privacy.accounting.events import Event
from twinset.privacy.clipping.gradient_uses import Scale


class NoisePolicy(Protocol):
    """What the training loop asks of a policy, in this order in every step."""

    name: str
    form: str
    event: Event
    """What one release spends."""

    def scales(self) -> list[Scale]:
        """Return the geometry to clip in, a scale for each parameter; nothing for the plain one."""
        ...

    def limits(self, records: Sequence[int]) -> Tensor | None:
        """Return the norms, at most C, that some records are clipped to; `None`: C."""
        ...

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Turn the clipped sums of a batch into noisy ones and say what that spent."""
        ...

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Look at the released gradient of each parameter before it is applied."""
        ...

    @property
    def nominal(self) -> list[Event]:
        """What the paper would add up for the releases so far, where no theorem covers that."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that is kept from step to step, for a checkpoint."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        ...


# (name, form); for uniform noise both are one
POLICIES: dict[tuple[str, str], type[Uniform]] = {
    ("uniform", "sound"): Uniform,
    ("uniform", "published"): Uniform,
    ("adaptive", "sound"): Adaptive,
    ("adaptive", "published"): PublishedAdaptive,
    ("selective", "sound"): Selective,
    ("selective", "published"): PublishedSelective,
    ("importance", "sound"): Importance,
    ("importance", "published"): PublishedImportance,
}


def make_policy(params: MechanismParams) -> NoisePolicy:
    """Return the policy that the options name."""
    return POLICIES[params.options.key](params)


__all__ = ["POLICIES", "MechanismParams", "NoisePolicy", "make_policy"]
