"""Less protection for texts that a public model finds ordinary (Wu et al. 2022, ADP).

Both forms weigh a record by the base model's perplexity. The published one draws the batch's noise
by its mean weight, which no theorem covers: how long the noise is then tells who was in the batch.
The sound one leaves the noise alone and clips each record to a norm of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twinset.policies.mechanism_params import MechanismParams
from twinset.policies.uniform import Uniform
from twinset.privacy.accounting.events import (
    Event,
    IndividualGaussian,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.noise import add_gaussian_to_each_


class Adaptive(Uniform):
    """z ~ N(0, σ²C²I); record i is clipped to C · c(ρᵢ), c falling from 1 at ρ = 0.

    For what it guarantees see `twinset.privacy.statement.theorems`, ADAPTIVE.

    Args:
        params: with `weights` and `least_share`.
    """

    name = "adaptive"

    def __init__(self, params: MechanismParams) -> None:
        super().__init__(params)
        self._weights = _weights(params)
        shares = 1.0 - self._weights * (1.0 - params.least_share)
        self._limits = shares * params.max_grad_norm if params.noise_multiplier else None

    def _spent(self) -> Event:
        s = self._params
        return IndividualGaussian(s.noise_multiplier, s.sample_rate, 1, s.least_share)

    def limits(self, records: Sequence[int]) -> Tensor | None:
        """Clip each record to its own norm."""
        return None if self._limits is None else self._limits[list(records)]


class PublishedAdaptive(Uniform):
    """z = γ_B · N(0, σ²C²I), γ_B the mean privacy weight of the batch (eqs. 5 and 6).

    It guarantees nothing: see `twinset.privacy.statement.theorems`, ADAPTIVE_PUBLISHED.

    Args:
        params: with `weights`, normalised over the private table (eq. 4).
    """

    name = "adaptive"
    form = "published"

    def __init__(self, params: MechanismParams) -> None:
        super().__init__(params)
        self._weights = _weights(params)
        self._scales: list[float] = []  # γ_B of each release

    def _spent(self) -> Event:
        return NonPrivateAccess("the noise was scaled by the mean privacy weight of each batch")

    @property
    def nominal(self) -> list[Event]:
        """Return a subsampled Gaussian of multiplier γ_B σ for each release with noise."""
        s = self._params
        if not s.noise_multiplier:
            return []
        return [
            SubsampledGaussian(scale * s.noise_multiplier, s.sample_rate, 1)
            if scale
            else self.event
            for scale in self._scales
        ]

    def noise_scale(self, records: Sequence[int]) -> float:
        """γ_B (eq. 5); 0 of an empty batch."""
        return float(self._weights[list(records)].mean()) if len(records) else 0.0

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Add the batch's noise in place (eq. 6)."""
        scale, s = self.noise_scale(records), self._params
        self._scales.append(scale)
        add_gaussian_to_each_(sums, scale * s.noise_std, s.randomness)
        return sums, self.event

    def state(self) -> dict[str, Any]:
        """Return γ_B of the releases so far."""
        return {"scales": list(self._scales)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self._scales = list(state["scales"])


def normalised_over(values: Tensor) -> Tensor:
    """(N,) perplexities → privacy weights within 0 and 1 (eq. 4), over the private table.

    The paper names no operator; least becomes 0 and most 1. Where all are equal, all are 1.

    >>> normalised_over(torch.tensor([2.0, 3.0, 6.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread > 0 else torch.ones_like(values)


def _weights(params: MechanismParams) -> Tensor:
    weights = params.weights
    if weights is None or not bool(((weights >= 0) & (weights <= 1)).all()):
        raise ValueError("adaptive noise needs a privacy weight between 0 and 1 for each record")
    return weights.double()
