"""Parameters of a noise mechanism, the same for all policies: noise level, clipping, sampling."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from twinset.config import PolicyConfig
from twinset.privacy.mechanism.randomness import Randomness


@dataclass(frozen=True)
class MechanismParams:
    """What a policy is made with.

    Args:
        noise_multiplier: σ, in units of C; 0 for a run without privacy.
        max_grad_norm: C.
        sample_rate: q.
        randomness: the noise's source.
        options: the policies' own.
        least_share: adaptive: c(1), the share of C that records of privacy weight 1 are clipped to.
        weights: adaptive: (N,) privacy weight of each record.
    """

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    randomness: Randomness
    options: PolicyConfig = PolicyConfig()
    least_share: float = 1.0
    weights: Tensor | None = None

    @property
    def noise_std(self) -> float:
        """σC; 0 without privacy, where C is infinite."""
        return self.noise_multiplier * self.max_grad_norm if self.noise_multiplier else 0.0
