"""Less noise where released gradients show that a parameter matters (Li et al. 2024, ANADP).

The paper draws less noise there, clips as before, and claims that scales with mean one cost no
privacy. In the least noisy direction they do. The sound form scales the clipping as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinset.bounds import bounded
from twinset.errors import InputError
from twinset.policies.policy import MechanismParams, NoisePolicy, PolicyOptions, register
from twinset.privacy.accounting.events import Event
from twinset.privacy.statement.theorems import IMPORTANCE, IMPORTANCE_PUBLISHED

if TYPE_CHECKING:
    from torch import Tensor

    from twinset.privacy.clipping.gradient_uses import Scale


@dataclass(frozen=True)
class ImportanceOptions(PolicyOptions):
    """Options of importance."""

    # β₁ and β₂ of the moving averages of the sensitivity |g̃ · θ| and of its deviation, α, the
    # quantiles that set the unit of importance, and b.
    importance_beta1: float = bounded(
        0.85, 0, 1, "β₁ of the moving average of the sensitivity.", expert=True
    )
    importance_beta2: float = bounded(
        0.85, 0, 1, "β₂ of the moving average of its deviation.", expert=True
    )
    importance_alpha: float = bounded(
        0.5, 0, 1, "Shrink importance towards its mean by this much.", expert=True
    )
    importance_low: float = bounded(
        0.25, 0, 1, "Lower quantile that scales importance.", expert=True
    )
    importance_high: float = bounded(
        0.75, 0, 1, "Upper quantile that scales importance.", expert=True
    )
    importance_bound: float = bounded(
        2.0, 1, 100, "Each noise factor lies in 1/b to b. 1 is uniform noise.", expert=True
    )

    def __post_init__(self) -> None:
        """Refuse quantiles that make no unit."""
        super().__post_init__()
        if not self.importance_low < self.importance_high:
            raise InputError("`importance_low` must be below `importance_high`")


@register
class Importance(NoisePolicy):
    """z ~ N(0, σ²C²I) added to Σ clip(gᵢ / s), and the result multiplied by s.

    s follows from earlier releases, before a record of the step is read. For its guarantee see
    `twinset.privacy.statement.theorems`, IMPORTANCE.

    Args:
        params: with the options of importance.
    """

    name = "importance"
    theorem = IMPORTANCE
    options = ImportanceOptions
    kept = ("_sensitivity", "_deviation", "_releases", "mean_noise", "claimed")

    def __init__(self, params: MechanismParams) -> None:
        assert isinstance(params.options, ImportanceOptions)
        self._options = params.options
        super().__init__(params)
        self._sensitivity: list[Tensor] = []  # S̄ of eq. 3
        self._deviation: list[Tensor] = []  # Ū of eq. 4
        self._scales: list[Scale] = []
        self._releases = 0

    def scales(self) -> list[Scale]:
        """Return a scale for each parameter: one level for all of it, times rows and columns."""
        import torch

        from twinset.privacy.clipping.gradient_uses import Scale

        # I = S̄ · Ū of each parameter (eq. 5)
        importance = [s * u for s, u in zip(self._sensitivity, self._deviation, strict=True)]
        self._scales = []
        if importance:
            levels = noise_factor(torch.stack([i.mean() for i in importance]), self._options)
            for level, i in zip(levels, importance, strict=True):
                if i.dim() == 2:
                    rows, columns = (noise_factor(i.mean(d), self._options) for d in (1, 0))
                    self._scales.append(Scale(level * columns, rows))
                else:
                    self._scales.append(Scale(level * noise_factor(i, self._options)))
        return self._scales

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Add noise in place, in the geometry of `scales`, and return to plain gradients."""
        import torch

        noisy, event = super().release(sums, records)
        for scale, total in zip(self._scales, noisy, strict=bool(self._scales)):
            scale.times_(total)
        self._note([scale.mean() for scale in self._scales] or [torch.ones(())] * len(sums))
        return noisy, event

    def _note(self, means: list[Tensor]) -> None:
        """Add the mean s of each parameter in one release to `mean_noise`."""
        import torch

        self._releases += 1
        now = torch.stack(means).tolist()
        pairs = zip(self.mean_noise or [0.0] * len(now), now, strict=True)
        self.mean_noise = [mean + (new - mean) / self._releases for mean, new in pairs]

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Update the averages with a released gradient and the weights before it is applied."""
        import torch

        b1, b2 = self._options.importance_beta1, self._options.importance_beta2
        seen = [(g * p.detach()).abs() for g, p in zip(gradients, parameters, strict=True)]
        if not self._sensitivity:
            self._sensitivity = [torch.zeros_like(s) for s in seen]
            self._deviation = [torch.zeros_like(s) for s in seen]
        for mean, deviation, now in zip(self._sensitivity, self._deviation, seen, strict=True):
            mean.mul_(b1).add_(now, alpha=1 - b1)
            deviation.mul_(b2).add_((now - mean).abs_(), alpha=1 - b2)


@register
class PublishedImportance(Importance):
    """Plain clipping and z_j = s_j · N(0, σ²C²), s_j = 2 - I_j of eq. 7, kept within 1/b and b.

    The equations centre I at one and do not say how noise follows from it. 2 - I is the only
    affine map that falls and keeps this mean, and noise needs scales above 0.

    The event has the multiplier σ / b, that of the least noisy direction. σ is the paper's, and
    noise may be lower than that by the factor b. For its guarantee see
    `twinset.privacy.statement.theorems`, IMPORTANCE_PUBLISHED.

    Args:
        params: with the options of importance.
    """

    form = "published"
    theorem = IMPORTANCE_PUBLISHED
    shapes_noise = True
    claims_more = True
    budget = "ε = {target:g} is nominal, guaranteed is ε = {spent}"

    @classmethod
    def least_noise(cls, options: ImportanceOptions) -> float:
        return 1 / options.importance_bound

    def scales(self) -> list[Scale]:
        return []

    def noise_shapes(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return s in each parameter's shape. All are 1 before the first release."""
        import torch

        importance = [s * u for s, u in zip(self._sensitivity, self._deviation, strict=True)]
        if not importance:
            return super().noise_shapes(parameters)
        bound = self._options.importance_bound
        flat = normalised(torch.cat([i.flatten() for i in importance]), self._options)
        s = (2.0 - flat).clamp(1.0 / bound, bound)
        parts = s.split([i.numel() for i in importance])
        return [part.view_as(i) for part, i in zip(parts, importance, strict=True)]

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Add stretched noise in place."""
        from twinset.privacy.mechanism.noise import add_gaussian_to_each_

        shapes, params = self.noise_shapes(sums), self._params
        add_gaussian_to_each_(sums, params.noise_std, params.randomness, shapes)
        self.claimed.append(1.0)
        self._note([s.mean() for s in shapes])
        return sums, self.event


def noise_factor(importance: Tensor, options: ImportanceOptions) -> Tensor:
    """Return factors (n,) of the noise, within 1/b … b: small where importance (n,) is large."""
    bound = options.importance_bound
    return 1.0 / normalised(importance, options).clamp(1.0 / bound, bound)


def normalised(importance: Tensor, options: ImportanceOptions) -> Tensor:
    """Centre importance (n,) at one with robust statistics (eqs. 6 and 7).

    If the quantiles are equal, all results are one.

    >>> import torch
    >>> options = ImportanceOptions(importance_alpha=0.0)
    >>> normalised(torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]), options).tolist()
    [-0.5, 0.0, 0.5, 1.0, 4.0]
    """
    import numpy as np
    import torch

    # NumPy's quantile: torch's refuses more than 2²⁴ numbers
    at = [options.importance_low, 0.5, options.importance_high]
    low, middle, high = np.quantile(importance.double().cpu().numpy(), at).tolist()
    if not high > low:
        return torch.ones_like(importance)
    scaled = (importance - middle) / (high - low)
    alpha = options.importance_alpha
    smooth = (1 - alpha) * scaled + alpha * scaled.mean()
    return smooth - (smooth.mean() - 1)
