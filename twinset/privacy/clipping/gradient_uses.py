"""What one use of a parameter contributes to its gradient, for each unit or in a weighted sum.

A parameter's gradient is the sum over its uses. GPT-2 uses its token table twice, as embedding and
as output layer, so a norm is that of the sum of both; `engine` sees to that. `weight_matrices`
has the uses of weight matrices, `output_head` those of the output layer; here are the plain ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Use(Protocol):
    """One use of one parameter in the forward pass of a physical batch of B units."""

    def squared_norms(self) -> Tensor:
        """Return (B,) float64, ‖gradientᵢ‖² of this use alone."""
        ...

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """Return (stop - start, *parameter shape), the gradients of units start … stop-1."""
        ...

    def add_to(self, total: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Make total beta · total + Σ weightsᵢ · gradientᵢ; beta is 1, or 0 for an undefined total.

        Units of weight zero are left out, so they may be NaN.
        """
        ...


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 where anything is float64, else float32: never less."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def squares(gradients: Tensor) -> Tensor:
    """(B, …) → (B,) float64 squared norms: rows in the tensors' precision, their total in float64.

    A flat float32 norm of tens of millions of numbers reads up to 0.3 % too small.
    """
    rows = torch.linalg.vector_norm(gradients, dim=-1).double().square()
    return rows.reshape(len(gradients), -1).sum(1)


@dataclass(frozen=True)
class FormedUse:
    """A use whose gradients are at hand: (B, *parameter shape)."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        """See `Use`."""
        return squares(self.gradients)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `Use`."""
        return self.gradients[start:stop]

    def add_to(self, total: Tensor, weights: Tensor, beta: int = 1) -> None:
        """See `Use`."""
        gradients, kept = self.gradients, weights != 0
        if not bool(kept.all()):
            gradients, weights = gradients[kept], weights[kept]
        columns = gradients.reshape(len(gradients), total.numel()).t()
        total.view(-1).addmv_(columns, weights.to(total.dtype), beta=beta)


def bias_use(b: Tensor) -> FormedUse:
    """Any added bias, of a layer with output gradient b (B, S, p)."""
    return FormedUse(b.sum(1, dtype=accumulation_dtype(b)))


def scale_use(normalised: Tensor, b: Tensor) -> FormedUse:
    """Scale of a layer or RMS normalisation with normalised input and output gradient (B, S, p)."""
    return FormedUse((normalised * b).sum(1, dtype=accumulation_dtype(normalised, b)))


@dataclass(frozen=True)
class EmbeddingUse:
    """A token or position table of `size` rows: ids (B, S), output gradient b (B, S, p).

    Gradients of equal tokens are added, so b is in the precision of sums.
    """

    ids: Tensor
    b: Tensor
    size: int

    def squared_norms(self) -> Tensor:
        """See `Use`. A token that a unit has several times is one row of its gradient."""
        units = len(self.ids)
        owner = torch.arange(units, device=self.ids.device)[:, None]
        rows, place = torch.unique(owner * self.size + self.ids, return_inverse=True)
        table = self.b.new_zeros(len(rows), self.b.shape[2])
        table.index_add_(0, place.reshape(-1), self.b.flatten(0, 1))
        of_rows = squares(table)
        return of_rows.new_zeros(units).index_add_(0, rows // self.size, of_rows)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `Use`."""
        ids, b = self.ids[start:stop], self.b[start:stop]
        table = b.new_zeros((stop - start) * self.size, b.shape[2])
        rows = ids + self.size * torch.arange(stop - start, device=ids.device)[:, None]
        table.index_add_(0, rows.reshape(-1), b.flatten(0, 1))
        return table.view(-1, self.size, b.shape[2])

    def add_to(self, total: Tensor, weights: Tensor, beta: int = 1) -> None:
        """See `Use`."""
        if not beta:
            total.zero_()
        kept = weights != 0
        b = self.b[kept] * weights[kept].to(total.dtype)[:, None, None]
        total.index_add_(0, self.ids[kept].reshape(-1), b.flatten(0, 1).to(total.dtype))
