"""Uniform noise with a public split of the clipping norm between matrices and vectors.

A gradient is clipped as if vectors (biases, norms) were `split_ratio` times shorter, so they may
have more of C. The ratio is an option: public, and the same for every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinset.bounds import bounded
from twinset.policies.policy import MechanismParams, NoisePolicy, PolicyOptions, register
from twinset.privacy.accounting.events import Event
from twinset.privacy.statement.theorems import OWNER, RECORD, UNIFORM, Theorem

if TYPE_CHECKING:
    from torch import Tensor

    from twinset.privacy.clipping.gradient_uses import Scale


@dataclass(frozen=True)
class SplitOptions(PolicyOptions):
    """Options of the split."""

    split_ratio: float = bounded(2.0, 0.01, 100, "split: share of C of vectors over matrices'.")


@register
class Split(NoisePolicy):
    """z ~ N(0, σ²C²I) added to Σ clip(gᵢ / s), and the result multiplied by s."""

    name = "split"
    options = SplitOptions
    theorem = Theorem(
        statement="s is a public constant of each parameter. A unit moves Σ clip(gᵢ / s) by at "
        "most C, so each release is a step of UNIFORM; multiplying by s is post-processing.",
        source="the theorem of UNIFORM, of gradients divided by public constants",
        protects=(RECORD, OWNER),
        events=UNIFORM.events,
    )

    def __init__(self, params: MechanismParams) -> None:
        super().__init__(params)
        self._sizes: list[tuple[int, ...]] = []

    def factors(self) -> list[float]:
        """s of each parameter; nothing before the first release, which is in the plain geometry."""
        options = self._params.options
        assert isinstance(options, SplitOptions)
        ratio = options.split_ratio
        return [ratio if len(size) == 1 else 1 / ratio for size in self._sizes]

    def scales(self) -> list[Scale]:
        """The same constants in every step."""
        import torch

        from twinset.privacy.clipping.gradient_uses import Scale

        pairs = zip(self.factors(), self._sizes, strict=True)
        return [Scale(torch.full(size[-1:], factor)) for factor, size in pairs]

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Add noise in place, in the geometry of `scales`, and leave it."""
        noisy, event = super().release(sums, records)
        for factor, total in zip(self.factors() or [1.0] * len(noisy), noisy, strict=True):
            total *= factor
        return noisy, event

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Note the shapes, which are public."""
        self._sizes = [tuple(parameter.shape) for parameter in parameters]
