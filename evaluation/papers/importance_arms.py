"""Variants of noise by importance that a study compares; `twinset` offers none of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from twinset.policies.importance import Importance, PublishedImportance
from twinset.privacy.accounting.events import Event, NonPrivateAccess
from twinset.privacy.clipping.gradient_uses import Scale


class Recentred(Importance):
    """`Importance` with all scales divided by one number, after which their mean square is one.

    Then the noise is as long as that of `Uniform`. The number follows from the scales, so from what
    was released before: the theorem of IMPORTANCE, which holds for any scales of that kind, and its
    ε are the same. Clipping gᵢ / (s/c) to C is clipping gᵢ / s to C/c, so what changes is C.
    """

    def scales(self) -> list[Scale]:
        """See `Importance`."""
        shapes = [i.shape for i in self.importance()]
        self._scales = recentred(super().scales(), shapes)
        return self._scales


class ByGradient(Recentred):
    """`Recentred` by |g̃| in place of |g̃ · θ|, which is nothing where θ begins at zero."""

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """See `Importance`."""
        super().update_statistics([torch.ones_like(p) for p in parameters], gradients)


class Oracle(PublishedImportance):
    """Importance of the gradient before noise, plain clipping, noise as long as that of `Uniform`.

    What importance could do at most, if it cost no privacy. Nothing is guaranteed.
    """

    _exact: list[Tensor]

    def _spent(self) -> Event:
        return NonPrivateAccess("noise follows gradients that were not released")

    def noise_scales(self) -> list[Tensor]:
        """Return those of the published form, divided by the root of their mean square."""
        scales = super().noise_scales()
        total = sum(float(s.double().square().sum()) for s in scales)
        root = math.sqrt(total / max(1, sum(s.numel() for s in scales)))
        return [s / root for s in scales]

    def release(self, sums: list[Tensor], records: Sequence[int]) -> tuple[list[Tensor], Event]:
        """Add noise in place, and keep what it is added to."""
        self._exact = [total.clone() for total in sums]
        return super().release(sums, records)

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Take the sum before noise; importance has no unit, so it need not be a mean."""
        super().update_statistics(parameters, self._exact)


class OracleByGradient(Oracle):
    """`Oracle` by |g| in place of |g · θ|."""

    def update_statistics(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """See `Oracle`."""
        super().update_statistics([torch.ones_like(p) for p in parameters], gradients)


def recentred(scales: Sequence[Scale], shapes: Sequence[torch.Size]) -> list[Scale]:
    """Return scales as `factored` makes them, divided by the root of their mean square.

    >>> scale = Scale(torch.tensor([1.0, 7.0]))
    >>> recentred([scale], [torch.Size([2])])[0].columns.tolist()  # mean square 25
    [0.20000000298023224, 1.399999976158142]
    """
    sizes = [shape.numel() for shape in shapes]
    squares = [mean_square(s) * n for s, n in zip(scales, sizes, strict=True)]
    root = math.sqrt(sum(squares) / max(1, sum(sizes)))
    return [Scale(s.columns / root, s.rows) for s in scales if s.columns is not None]


def mean_square(scale: Scale) -> float:
    """Return the mean of s² over a whole parameter."""
    factors = [f for f in (scale.columns, scale.rows) if f is not None]
    return math.prod(float(f.double().square().mean()) for f in factors)
