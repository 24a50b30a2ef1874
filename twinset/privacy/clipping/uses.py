"""The gradient that one use of a parameter contributes, for each unit apart or weighted and summed.

A parameter's gradient is the sum over its uses. GPT-2 uses its token table twice, as embedding and
as output layer, so its two uses are added *before* a norm is taken; that is all the care tied
weights need.

Every rule here is linear in the output gradient b. So the weighted sum over units is the same rule
applied to one big unit whose output gradients were multiplied by the weights: one formula serves
the norms and the sum, and they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor], Tensor]


class Use(Protocol):
    """One use of one parameter in the forward pass of a physical batch of B units."""

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """Return (stop - start, *parameter shape), the gradients of units start … stop-1."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ weightsᵢ · gradientᵢ; units of weight zero are left out, so they may be NaN."""
        ...


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 where anything is float64, else float32: never less."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


@dataclass(frozen=True)
class LayerUse:
    """A layer's use of a parameter: input a (B, S, …), output gradient b (B, S, p), S tokens."""

    rule: Rule
    a: Tensor
    b: Tensor

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `Use`."""
        return self.rule(*self._accumulable(self.a[start:stop], self.b[start:stop]))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See `Use`."""
        kept = weights != 0
        a, b = (self.a, self.b) if bool(kept.all()) else (self.a[kept], self.b[kept])
        a, b = self._accumulable(a, b)
        b = b * weights[kept].to(b.dtype)[:, None, None]
        return self.rule(a.flatten(0, 1)[None], b.flatten(0, 1)[None])[0]

    def _accumulable(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dtype = accumulation_dtype(a, b)
        return (a.to(dtype) if a.is_floating_point() else a), b.to(dtype)


def linear_weight(a: Tensor, b: Tensor) -> Tensor:
    """`nn.Linear`: y = a Wᵀ, W (p, d). Returns (B, p, d)."""
    return torch.bmm(b.transpose(1, 2), a)


def conv1d_weight(a: Tensor, b: Tensor) -> Tensor:
    """GPT-2's `Conv1D`: y = a W, W (d, p). Returns (B, d, p)."""
    return torch.bmm(a.transpose(1, 2), b)


def bias(a: Tensor, b: Tensor) -> Tensor:
    """Any added bias. Returns (B, p)."""
    return b.sum(1)


def normalised_scale(a: Tensor, b: Tensor) -> Tensor:
    """Scale of a layer or RMS normalisation; a is the normalised input. Returns (B, p)."""
    return (a * b).sum(1)


def embedding_table(size: int) -> Rule:
    """Token or position table of `size` rows; a holds the ids (B, S). Returns (B, size, p)."""

    def rule(a: Tensor, b: Tensor) -> Tensor:
        units = b.shape[0]
        table = b.new_zeros(units * size, b.shape[2])
        rows = a + size * torch.arange(units, device=a.device)[:, None]
        return table.index_add_(0, rows.reshape(-1), b.flatten(0, 1)).view(units, size, -1)

    return rule
