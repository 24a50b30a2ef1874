"""Uniform noise: the Gaussian mechanism of DP-SGD (Abadi et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from twinset.privacy.clipping.geometry import Scale
from twinset.privacy.events import Event, NonPrivateAccess, SubsampledGaussian
from twinset.privacy.noise import add_gaussian_
from twinset.privacy.randomness import Randomness


class Uniform:
    """z ~ N(0, σ²C²I) added to the clipped sum of one Poisson batch.

    Guarantee:
        For sums whose units each contribute at most C in norm, sampled by Poisson at
        `sample_rate`, each release is one step of the subsampled Gaussian mechanism with
        multiplier σ, under adding or removing one unit. An empty batch releases noise alone. With
        σ = 0 the event says that the data were read without privacy.

    Args:
        noise_multiplier: σ, in units of C.
        max_grad_norm: C.
        sample_rate: q.
        randomness: the noise's source.
    """

    name = "uniform"
    form = "sound"

    def __init__(
        self,
        noise_multiplier: float,
        max_grad_norm: float,
        sample_rate: float,
        randomness: Randomness,
    ) -> None:
        self._noise_std = noise_multiplier * max_grad_norm if noise_multiplier else 0.0
        self._randomness = randomness
        self._event: Event = (
            SubsampledGaussian(noise_multiplier, sample_rate, steps=1)
            if noise_multiplier
            else NonPrivateAccess("trained without noise")
        )

    def scales(self) -> list[Scale]:
        """Clip in the plain geometry, always."""
        return []

    def release(self, sums: list[Tensor]) -> tuple[list[Tensor], Event]:
        """Add noise in place; return the noisy sums and the event spent."""
        if self._noise_std:
            for total in sums:
                add_gaussian_(total, self._noise_std, self._randomness)
        return sums, self._event

    def learn(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Learn nothing."""
