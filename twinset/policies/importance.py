"""Less noise where released gradients say that a parameter matters (Li et al. 2024, ANADP).

The paper draws less noise there and clips as before, and claims that scales of mean one cost
nothing; in the least noisy direction they do. The sound form moves the clipping along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twinset.policies.uniform import Uniform
from twinset.privacy.clipping.geometry import Scale
from twinset.privacy.events import Event
from twinset.privacy.randomness import Randomness


@dataclass(frozen=True)
class ImportanceOptions:
    """How importance is averaged and turned into scales; all of it is public.

    Args:
        beta1: β₁, of the moving average of the sensitivity |g̃ · θ| (eq. 3).
        beta2: β₂, of the moving average of its deviation (eq. 4).
        alpha: α, towards the mean (eq. 6).
        low: quantile q₂ of eq. 6.
        high: quantile q₁ of eq. 6.
        bound: b ≥ 1; each factor of a scale lies between 1/b and b. 1 makes the policy uniform.
    """

    beta1: float = 0.85
    beta2: float = 0.85
    alpha: float = 0.5
    low: float = 0.25
    high: float = 0.75
    bound: float = 2.0


class Importance:
    """z ~ N(0, σ²C²I) added to Σ clip(gᵢ / s), and the result multiplied by s.

    Guarantee:
        s is a function of gradients released before and of weights that follow from them, never of
        the records. Given s, a unit moves Σ clip(gᵢ / s) by at most C, so that each release is one
        step of the subsampled Gaussian mechanism with multiplier σ under adding or removing one
        unit, as in `Uniform`; multiplying by s is post-processing. The first step has s = 1.

    Args:
        noise_multiplier: σ, in units of C.
        max_grad_norm: C.
        sample_rate: q.
        randomness: the noise's source.
        options: of the scales.
    """

    name = "importance"
    form = "sound"

    def __init__(
        self,
        noise_multiplier: float,
        max_grad_norm: float,
        sample_rate: float,
        randomness: Randomness,
        options: ImportanceOptions | None = None,
    ) -> None:
        self._uniform = Uniform(noise_multiplier, max_grad_norm, sample_rate, randomness)
        self._options = options or ImportanceOptions()
        self._sensitivity: list[Tensor] = []  # S̄ of eq. 3
        self._deviation: list[Tensor] = []  # Ū of eq. 4
        self._scales: list[Scale] = []

    def scales(self) -> list[Scale]:
        """Choose the next step's geometry from what was released so far."""
        pairs = zip(self._sensitivity, self._deviation, strict=True)
        self._scales = factored([s * u for s, u in pairs], self._options)  # eq. 5
        return self._scales

    def release(self, sums: list[Tensor]) -> tuple[list[Tensor], Event]:
        """Add noise in place, in the geometry of `scales`, and leave it."""
        noisy, event = self._uniform.release(sums)
        for scale, total in zip(self._scales, noisy, strict=bool(self._scales)):
            scale.times_(total)
        return noisy, event

    def learn(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Take a released gradient, and the weights before it is applied, into the averages."""
        b1, b2 = self._options.beta1, self._options.beta2
        seen = [(g * p.detach()).abs() for g, p in zip(gradients, parameters, strict=True)]
        if not self._sensitivity:
            self._sensitivity = [torch.zeros_like(s) for s in seen]
            self._deviation = [torch.zeros_like(s) for s in seen]
        for mean, deviation, now in zip(self._sensitivity, self._deviation, seen, strict=True):
            mean.mul_(b1).add_(now, alpha=1 - b1)
            deviation.mul_(b2).add_((now - mean).abs_(), alpha=1 - b2)


def factored(importance: Sequence[Tensor], options: ImportanceOptions) -> list[Scale]:
    """Return a scale for each parameter: one level for the whole of it, times rows and columns."""
    if not importance:
        return []
    levels = noise_factor(torch.stack([i.mean() for i in importance]), options)
    scales = []
    for level, i in zip(levels, importance, strict=True):
        if i.dim() == 2:
            columns, rows = noise_factor(i.mean(0), options), noise_factor(i.mean(1), options)
            scales.append(Scale(level * columns, rows))
        else:
            scales.append(Scale(level * noise_factor(i, options)))
    return scales


def noise_factor(importance: Tensor, options: ImportanceOptions) -> Tensor:
    """(n,) importance → (n,) factors of the noise: small where it is large, within 1/b … b."""
    return 1.0 / normalised(importance, options).clamp(1.0 / options.bound, options.bound)


def normalised(importance: Tensor, options: ImportanceOptions) -> Tensor:
    """Centre at one, robustly (eqs. 6 and 7); ones where the quantiles do not tell them apart.

    >>> normalised(torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]), ImportanceOptions(alpha=0.0)).tolist()
    [-0.5, 0.0, 0.5, 1.0, 4.0]
    """
    high, low = torch.quantile(importance, options.high), torch.quantile(importance, options.low)
    if not high > low:
        return torch.ones_like(importance)
    scaled = (importance - importance.median()) / (high - low)
    smooth = (1 - options.alpha) * scaled + options.alpha * scaled.mean()
    return smooth - (smooth.mean() - 1)
