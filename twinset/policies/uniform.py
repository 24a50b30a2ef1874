"""Uniform noise: the Gaussian mechanism of DP-SGD (Abadi et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from twinset.policies.setting import Setting
from twinset.privacy.clipping.geometry import Scale
from twinset.privacy.events import Event, NonPrivateAccess, SubsampledGaussian
from twinset.privacy.noise import add_gaussian_


class Uniform:
    """z ~ N(0, σ²C²I) added to the clipped sum of one Poisson batch.

    The other policies are this one but for what they say otherwise.

    Guarantee:
        For sums whose units each contribute at most C in norm, sampled by Poisson at
        `sample_rate`, each release is one step of the subsampled Gaussian mechanism with
        multiplier σ, under adding or removing one unit. An empty batch releases noise alone. With
        σ = 0 the event says that the data were read without privacy.

    Args:
        setting: noise level and options.
    """

    name = "uniform"
    form = "sound"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.event: Event = self._spent() if setting.noise_multiplier else _NO_NOISE

    def _spent(self) -> Event:
        """Return what one release spends, where there is noise."""
        return SubsampledGaussian(self._setting.noise_multiplier, self._setting.sample_rate, 1)

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
        if std := self._setting.noise_std:
            for total in sums:
                add_gaussian_(total, std, self._setting.randomness)
        return sums, self.event

    def learn(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Learn nothing."""

    def state(self) -> dict[str, Any]:
        """Return what was learnt, for a checkpoint: nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""


_NO_NOISE = NonPrivateAccess("trained without noise")
