"""What one use of a parameter contributes to its gradient, for each unit or in a weighted sum.

A parameter's gradient is the sum over its uses. GPT-2 uses its token table twice, as embedding and
as output layer, so a norm is that of the sum of both. `engine` sees to that. `output_head` has the
output layer's use. Here are all others, the memory that they share, and the geometry.

Of a weight matrix, unit i's gradient is Gᵢ = LᵢᵀRᵢ over its S tokens. Its norm needs only Gram
matrices, ‖Gᵢ‖² = Σ (LᵢLᵢᵀ ∘ RᵢRᵢᵀ) (Goodfellow 2015 for one token, Li et al. 2022 for sequences),
and the weighted sum is LᵀR with R's rows weighted, from the kept L and R (Bu et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# Gram matrices cost 2·S²(m+n) operations a unit, and the sum 2·S·m·n. A formed gradient costs
# 2·S·m·n, and m·n numbers are written and read twice, but its sum is then a pass over memory. On a
# CPU the second is cheaper once S(m+n)/(mn) reaches this, provided that its memory is not fresh.
FORM_FROM = 0.25
FORM_ANYWAY = 1.0  # here forming is cheaper even where the gradient cannot be kept

# A Gram norm adds numbers as large as ‖L‖²‖R‖² and leaves ‖G‖². If the ratio of these exceeds this
# share of 1 / machine epsilon, rounding may show in the fifth digit, and G is formed.
CANCELLATION = 1e-4


@dataclass(frozen=True)
class UnitWeights:
    """What each unit's gradient is multiplied by.

    Args:
        values: (B,).
        kept: numbers of the units whose weight is not zero; None: they all are.
    """

    values: Tensor
    kept: Tensor | None = None

    @classmethod
    def of(cls, weights: Tensor) -> UnitWeights:
        """Find out once which of the weights (B,) are zero, since each look waits for a GPU."""
        kept = weights.nonzero().squeeze(1)
        return cls(weights, None if len(kept) == len(weights) else kept)

    def select(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return what belongs to the units whose weight is not zero, and these weights."""
        all_parts = (*parts, self.values)
        return all_parts if self.kept is None else tuple(x[self.kept] for x in all_parts)


class ParameterUse(Protocol):
    """One use of one parameter in the forward pass of a physical batch of B units."""

    def squared_norms(self) -> Tensor:
        """Return (B,) float64, ‖gradientᵢ‖² of this use alone."""
        ...

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """Return (stop - start, *parameter shape), the gradients of units start … stop-1."""
        ...

    def add_to(self, total: Tensor, weights: UnitWeights, beta: int = 1) -> None:
        """Make total beta · total + Σ weightsᵢ · gradientᵢ; beta is 1, or 0 for an undefined total.

        Units of weight zero are left out, so they may be NaN.
        """
        ...


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 where anything is float64, else float32: never less.

    >>> accumulation_dtype(torch.ones(1, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def squares(gradients: Tensor) -> Tensor:
    """(B, …) → (B,) float64 squared norms: rows in the tensors' precision, their total in float64.

    A flat float32 norm of tens of millions of numbers reads up to 0.3 % too small.
    """
    rows = torch.linalg.vector_norm(gradients, dim=-1).double().square()
    return rows.reshape(len(gradients), -1).sum(1)


class Workspace:
    """Named buffers that grow and are never given back, and a budget for what outlives a layer.

    Fresh pages cost more than the arithmetic done on them. With a new gradient buffer for every
    physical batch, the step was up to 88 % slower on a CPU.

    Args:
        budget: bytes that formed gradients and residuals of one physical batch may occupy.
    """

    def __init__(self, budget: int) -> None:
        self._budget, self._left = budget, budget
        self._buffers: dict[tuple[Hashable, torch.dtype], Tensor] = {}

    def begin(self) -> None:
        """Start a physical batch: what was reserved is free again."""
        self._left = self._budget

    def reserve(self, numbers: int, dtype: torch.dtype) -> bool:
        """Return whether that many numbers may be kept until the end of this physical batch."""
        wanted = numbers * dtype.itemsize
        if wanted > self._left:
            return False
        self._left -= wanted
        return True

    def take(self, name: Hashable, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of undefined content, valid until `name` is next asked for.

        `like` has its format and its device.
        """
        numbers, key = math.prod(shape), (name, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < numbers:
            buffer = torch.empty(numbers, dtype=like.dtype, device=like.device)
            self._buffers[key] = buffer
        return buffer[:numbers].view(shape)


@dataclass(frozen=True)
class Scale:
    """s = rows ⊗ columns of a parameter (m, n); a vector (n,) has columns only. `None`: ones.

    A policy that wants less noise in some directions may not simply draw less there, since a unit
    would show in those directions. It may clip g / s instead of g, add the same noise everywhere,
    and multiply the result by s. s is kept factored, so norms still need no per-unit gradients.

    Args:
        columns: (n,) positive and finite.
        rows: (m,) likewise.

    Raises:
        ValueError: a factor is not positive and finite.
    """

    columns: Tensor | None = None
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a scale that clips some direction to nothing, or not at all."""
        for factor in (self.columns, self.rows):
            if factor is not None and not bool((factor.isfinite() & (factor > 0)).all()):
                raise ValueError("every scale must be positive and finite")

    def fits(self, shape: torch.Size) -> bool:
        """Return whether a parameter of this shape may have this scale.

        >>> [Scale(rows=torch.ones(3)).fits(torch.Size(shape)) for shape in ([3, 2], [3])]
        [True, False]
        """
        columns_fit = self.columns is None or self.columns.shape == shape[-1:]
        rows_fit = self.rows is None or (len(shape) == 2 and self.rows.shape == shape[:1])
        return columns_fit and rows_fit

    def per_column(self, x: Tensor) -> Tensor:
        """Return x (…, n) divided by the columns' factors."""
        return x if self.columns is None else x / self.columns

    def per_row(self, x: Tensor) -> Tensor:
        """Return x (…, m) divided by the rows' factors."""
        return x if self.rows is None else x / self.rows

    def mean(self) -> Tensor:
        """Return the mean of s over the whole parameter, a scalar.

        >>> Scale(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0])).mean()
        tensor(6.)
        """
        factors = [f.mean() for f in (self.columns, self.rows) if f is not None]
        return torch.stack(factors).prod() if factors else torch.ones(())

    def times_(self, total: Tensor) -> Tensor:
        """Multiply a tensor of the parameter's shape by s, in place: back to plain gradients.

        >>> Scale(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 10.0])).times_(torch.ones(2, 2))
        tensor([[ 2.,  3.],
                [20., 30.]])
        """
        if self.columns is not None:
            total *= self.columns
        if self.rows is not None:
            total *= self.rows[:, None]
        return total


PLAIN = Scale()


@dataclass(frozen=True)
class FormedUse:
    """A use whose gradients are at hand: (B, *parameter shape)."""

    gradients: Tensor

    def squared_norms(self) -> Tensor:
        """See `ParameterUse`."""
        return squares(self.gradients)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `ParameterUse`."""
        return self.gradients[start:stop]

    def add_to(self, total: Tensor, weights: UnitWeights, beta: int = 1) -> None:
        """See `ParameterUse`."""
        gradients, own = weights.select(self.gradients)
        columns = gradients.reshape(len(gradients), total.numel()).t()
        total.view(-1).addmv_(columns, own.to(total.dtype), beta=beta)


@dataclass(frozen=True)
class EmbeddingUse:
    """A token or position table of `size` rows: ids (B, S), output gradient b (B, S, p).

    Gradients of equal tokens are added, so b is in the precision of sums.
    """

    ids: Tensor
    b: Tensor
    size: int

    def squared_norms(self) -> Tensor:
        """See `ParameterUse`. A token that a unit has several times is one row of its gradient."""
        units = len(self.ids)
        owner = torch.arange(units, device=self.ids.device)[:, None]
        rows, place = torch.unique(owner * self.size + self.ids, return_inverse=True)
        table = self.b.new_zeros(len(rows), self.b.shape[2])
        table.index_add_(0, place.reshape(-1), self.b.flatten(0, 1))
        of_rows = squares(table)
        return of_rows.new_zeros(units).index_add_(0, rows // self.size, of_rows)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `ParameterUse`."""
        ids, b = self.ids[start:stop], self.b[start:stop]
        table = b.new_zeros((stop - start) * self.size, b.shape[2])
        rows = ids + self.size * torch.arange(stop - start, device=ids.device)[:, None]
        table.index_add_(0, rows.reshape(-1), b.flatten(0, 1))
        return table.view(-1, self.size, b.shape[2])

    def add_to(self, total: Tensor, weights: UnitWeights, beta: int = 1) -> None:
        """See `ParameterUse`."""
        if not beta:
            total.zero_()
        ids, b, own = weights.select(self.ids, self.b)
        b = b * own.to(total.dtype)[:, None, None]
        total.index_add_(0, ids.reshape(-1), b.flatten(0, 1).to(total.dtype))


def cancels(squared: Tensor, size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return where ‖G‖², computed by Gram matrices, may have lost its digits. A NaN stays.

    `size` is (B,) ‖L‖²‖R‖².
    """
    return size > squared * (CANCELLATION / torch.finfo(dtype).eps)


def matrix_use(left: Tensor, right: Tensor, workspace: Workspace, name: object) -> ParameterUse:
    """Return the use of a matrix (m, n) whose gradient is leftᵀ right: (B, S, m) and (B, S, n).

    `left` is the layer's input or output gradient, whichever gives the matrix's rows. `name` is
    that of this use in the workspace, unique in the physical batch.
    """
    dtype = accumulation_dtype(left, right)
    left, right = left.to(dtype), right.to(dtype)
    units, tokens, m = left.shape
    n = right.shape[2]
    if tokens * (m + n) >= FORM_FROM * m * n and workspace.reserve(units * m * n, dtype):
        buffer = workspace.take(name, (units, m, n), left)
        return FormedUse(torch.bmm(left.transpose(1, 2), right, out=buffer))
    return MatrixUse(left, right, workspace)


@dataclass(frozen=True)
class MatrixUse:
    """A matrix's use kept as its two factors, (B, S, m) and (B, S, n)."""

    left: Tensor
    right: Tensor
    workspace: Workspace

    def squared_norms(self) -> Tensor:
        """See `ParameterUse`. By Gram matrices where that is quick and does not cancel."""
        units, tokens, m = self.left.shape
        n = self.right.shape[2]
        formed: list[int] | range = range(units)
        squared = torch.empty(units, dtype=torch.float64, device=self.left.device)
        if tokens * (m + n) < FORM_ANYWAY * m * n:
            ll = self.workspace.take("left gram", (units, tokens, tokens), self.left)
            rr = self.workspace.take("right gram", (units, tokens, tokens), self.left)
            torch.bmm(self.left, self.left.transpose(1, 2), out=ll)  # (B, S, S)
            torch.bmm(self.right, self.right.transpose(1, 2), out=rr)
            traces = (g.diagonal(dim1=1, dim2=2).sum(1, dtype=torch.float64) for g in (ll, rr))
            size = torch.stack(list(traces)).prod(0)  # (B,) ‖L‖²‖R‖²: how much may cancel
            squared = ll.mul_(rr).sum((1, 2), dtype=torch.float64)
            formed = cancels(squared, size, self.left.dtype).nonzero().squeeze(1).tolist()
        one = self.workspace.take("one gradient", (1, m, n), self.left)
        for i in formed:  # (1, m, S) times (1, S, n), one unit at a time in the same memory
            left, right = self.left[i : i + 1].transpose(1, 2), self.right[i : i + 1]
            squared[i] = squares(torch.bmm(left, right, out=one))[0]
        return squared

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `ParameterUse`."""
        return torch.bmm(self.left[start:stop].transpose(1, 2), self.right[start:stop])

    def add_to(self, total: Tensor, weights: UnitWeights, beta: int = 1) -> None:
        """See `ParameterUse`. The factors share memory with other layers, so they stay."""
        left, right, own = weights.select(self.left, self.right)
        per_token = own.to(total.dtype)[:, None, None]
        if left.shape[2] < right.shape[2]:
            out = self.workspace.take("weighted", tuple(left.shape), left)
            left = torch.mul(left, per_token, out=out)
        else:
            out = self.workspace.take("weighted", tuple(right.shape), right)
            right = torch.mul(right, per_token, out=out)
        total.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1), beta=beta)
