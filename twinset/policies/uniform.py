"""Uniform noise: the Gaussian mechanism of DP-SGD (Abadi et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from twinset.policies.mechanism_params import MechanismParams
from twinset.privacy.accounting.events import Event, NonPrivateAccess, SubsampledGaussian
from twinset.privacy.clipping.gradient_uses import Scale
from twinset.privacy.mechanism.noise import add_gaussian_to_each_


class Uniform:
    """z ~ N(0, σ²C²I) added to the clipped sum of one Poisson batch.

    The other policies are this one but for what they say otherwise.

    For what it guarantees see `twinset.privacy.statement.theorems`, UNIFORM.

    Args:
        params: of the mechanism.
    """

    name = "uniform"
    form = "sound"

    def __init__(self, params: MechanismParams) -> None:
        self._params = params
        self.event: Event = self._spent() if params.noise_multiplier else _NO_NOISE

    def _spent(self) -> Event:
        """Return what one release spends, where there is noise."""
        return SubsampledGaussian(self._params.noise_multiplier, self._params.sample_rate, 1)

    @property
    def nominal(self) -> list[Event]:
        """What the paper would add up for the releases so far, where no theorem covers that."""
        return []

    def scales(self) -> list[Scale]:
        """Clip in the plain geometry, always."""
        return []

    def limits(self, records: Sequence[int]) -> Tensor | None:
        """Clip every record to C."""
        return None

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Add noise in place; return the noisy sums and the event spent."""
        if std := self._params.noise_std:
            add_gaussian_to_each_(sums, std, self._params.randomness)
        return sums, self.event

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Keep no statistics."""

    def state(self) -> dict[str, Any]:
        """Return what is kept from step to step: nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""


_NO_NOISE = NonPrivateAccess("trained without noise")
