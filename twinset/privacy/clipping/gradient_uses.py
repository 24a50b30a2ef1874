"""What one use of a parameter adds to its gradient, for each unit or in a weighted sum.

A parameter's gradient is the sum over its uses. GPT-2 uses its token table twice, as embedding and
as output layer, so its norm is that of the sum of both. `engine` takes care of that. `output_head`
has the output layer's use. This module has all other uses, their shared memory, the scaling, and
the known layers (`parameter_use`).

Unit i's gradient of a weight matrix is Gᵢ = LᵢᵀRᵢ over its S tokens. Its norm needs only Gram
matrices, ‖Gᵢ‖² = Σ (LᵢLᵢᵀ ∘ RᵢRᵢᵀ) (Goodfellow 2015 for one token, Li et al. 2022 for sequences).
The weighted sum is LᵀR with R's rows weighted, from the kept L and R (Bu et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

# Gram matrices cost 2·S²(m+n) operations a unit, and the sum 2·S·m·n. A formed gradient costs
# 2·S·m·n, and m·n numbers are written and read twice, but its sum is then a pass over memory. On a
# CPU the second is cheaper once S(m+n)/(mn) reaches this, provided that its memory is not fresh.
FORM_FROM = 0.25
FORM_ANYWAY = 1.0  # here forming is cheaper even where the gradient cannot be kept

# A Gram norm adds numbers as large as ‖L‖²‖R‖² and leaves ‖G‖². If the ratio of these exceeds this
# share of 1 / machine epsilon, rounding may show in the fifth digit, and G is formed.
CANCELLATION = 1e-4


Kept = slice | Tensor  # numbers of the units with a nonzero weight (a slice if all have one)


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 if any tensor is float64, else float32, but never less.

    >>> accumulation_dtype(torch.ones(1, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def squares(gradients: Tensor) -> Tensor:
    """(B, …) → (B,) float64 squared norms: rows in the tensors' precision, their total in float64.

    A flat float32 norm of tens of millions of numbers is up to 0.3 % too small.
    """
    rows = torch.linalg.vector_norm(gradients, dim=-1).double().square()
    return rows.reshape(len(gradients), -1).sum(1)


@dataclass
class Workspace:
    """Named buffers that grow and are never freed, and a budget for data that outlives a layer.

    Fresh pages cost more than the arithmetic on them. With a new gradient buffer for every physical
    batch, the step was up to 88 % slower on a CPU.

    Args:
        left: bytes that formed gradients and residuals may still occupy. It is set again at the
            start of each physical batch.
    """

    left: int
    _buffers: dict[tuple[Hashable, torch.dtype], Tensor] = field(default_factory=dict)

    def reserve(self, numbers: int, dtype: torch.dtype) -> bool:
        """Return whether that many numbers may be kept until the end of this physical batch."""
        wanted = numbers * dtype.itemsize
        if wanted > self.left:
            return False
        self.left -= wanted
        return True

    def take(self, name: Hashable, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of undefined content, valid until `name` is requested again.

        It has the format and the device of `like`.
        """
        numbers, key = math.prod(shape), (name, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < numbers:
            buffer = torch.empty(numbers, dtype=like.dtype, device=like.device)
            self._buffers[key] = buffer
        return buffer[:numbers].view(shape)


@contextmanager
def repeatable_kernels(like: Tensor) -> Iterator[None]:
    """Make a GPU add in the same order every time, and multiply float32 in float32 (no TF32).

    An operation without such a kernel raises an error. If it only warned, the backward pass of
    every fused attention would add in any order. A CPU is repeatable anyway. `like` is on the
    device.
    """
    if like.is_cpu:
        yield
        return
    precision, strict = torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    try:
        torch.set_float32_matmul_precision("highest")
        torch.set_deterministic_debug_mode("error")
        memory.fill_uninitialized_memory = False  # all of it is written over
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_deterministic_debug_mode(strict)
        memory.fill_uninitialized_memory = fills


@dataclass(frozen=True)
class Scale:
    """s = rows ⊗ columns of a parameter (m, n). A vector (n,) has columns only. `None`: ones.

    A policy that wants less noise in some directions may not simply draw less there, because a unit
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

    def per_column(self, x: Tensor) -> Tensor:
        """Return x (…, n) divided by the columns' factors."""
        return x if self.columns is None else x / self.columns

    def mean(self) -> Tensor:
        """Return the mean of s over the whole parameter, a scalar.

        >>> Scale(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0])).mean()
        tensor(6.)
        """
        factors = [f.mean() for f in (self.columns, self.rows) if f is not None]
        return torch.stack(factors).prod() if factors else torch.ones(())

    def times_(self, total: Tensor) -> Tensor:
        """Multiply a tensor of the parameter's shape by s, in place, to get plain gradients again.

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
    """A use with explicit gradients: (B, *parameter shape).

    Every use of a parameter, in the forward pass of a physical batch of B units, has these methods.
    """

    gradients: Tensor

    def squared_norms(self) -> tuple[Tensor, Tensor]:
        """Return (B,) float64 ‖gradientᵢ‖² of this use alone, and how far it may be off, squared.

        That is by `rounding`, here and in the sum.
        """
        squared = squares(self.gradients)
        return squared, rounding(squared, 1, self.gradients.dtype)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """Return (stop - start, *parameter shape), the gradients of units start … stop-1."""
        return self.gradients[start:stop]

    def add_to(self, total: Tensor, weights: Tensor, kept: Kept, beta: int = 1) -> None:
        """Set total to beta · total + Σ weightsᵢ · gradientᵢ. beta is 1, or 0 to ignore total.

        `weights` is (B,). Units that are not in `kept` are left out, so their weights may be NaN.
        """
        gradients = self.gradients[kept]
        columns = gradients.reshape(len(gradients), total.numel()).t()
        total.view(-1).addmv_(columns, weights[kept].to(total.dtype), beta=beta)


@dataclass(frozen=True)
class EmbeddingUse:
    """A token or position table of `size` rows: ids (B, S), output gradient b (B, S, p).

    Gradients of equal tokens are added, so b is in the precision of sums.
    """

    ids: Tensor
    b: Tensor
    size: int

    def squared_norms(self) -> tuple[Tensor, Tensor]:
        """See `FormedUse`. A token that a unit has several times is one row of its gradient."""
        units = len(self.ids)
        owner = torch.arange(units, device=self.ids.device)[:, None]
        places = owner * self.size + self.ids
        rows, place, times = torch.unique(places, return_inverse=True, return_counts=True)
        table = self.b.new_zeros(len(rows), self.b.shape[2])
        table.index_add_(0, place.reshape(-1), self.b.flatten(0, 1))
        of_rows = squares(table)
        squared = of_rows.new_zeros(units).index_add_(0, rows // self.size, of_rows)
        # (B, S), as if each row were a matrix of its tokens
        size = torch.linalg.vector_norm(self.b, dim=2).double().square() * times[place]
        return squared, rounding((size * times[place]).sum(1), 1, self.b.dtype)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `FormedUse`."""
        ids, b = self.ids[start:stop], self.b[start:stop]
        table = b.new_zeros((stop - start) * self.size, b.shape[2])
        rows = ids + self.size * torch.arange(stop - start, device=ids.device)[:, None]
        table.index_add_(0, rows.reshape(-1), b.flatten(0, 1))
        return table.view(-1, self.size, b.shape[2])

    def add_to(self, total: Tensor, weights: Tensor, kept: Kept, beta: int = 1) -> None:
        """See `FormedUse`."""
        if not beta:
            total.zero_()
        b = self.b[kept] * weights[kept].to(total.dtype)[:, None, None]
        total.index_add_(0, self.ids[kept].reshape(-1), b.flatten(0, 1).to(total.dtype))


def rounding(size: Tensor, terms: Tensor | int, dtype: torch.dtype) -> Tensor:
    """Return the square of how far rounding may move a sum of `terms` products: √terms · ε · √size.

    It is twice what is expected of one sum (Higham and Mary 2019, "A New Approach to Probabilistic
    Rounding Error Analysis"), as norm and sum are rounded apart. For `size` see `cancels`.
    """
    return size * terms * torch.finfo(dtype).eps ** 2


def cancels(squared: Tensor, size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return where ‖G‖², computed by Gram matrices, may have lost its digits. A NaN stays.

    `size` is (B,) ‖L‖²‖R‖².
    """
    return size > squared * (CANCELLATION / torch.finfo(dtype).eps)


@dataclass(frozen=True)
class MatrixUse:
    """A matrix's use, kept as its two factors (B, S, m) and (B, S, n)."""

    left: Tensor
    right: Tensor
    workspace: Workspace

    def squared_norms(self) -> tuple[Tensor, Tensor]:
        """See `FormedUse`. Uses Gram matrices if they are fast and do not cancel."""
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
        else:
            size = squares(self.left) * squares(self.right)
        one = self.workspace.take("one gradient", (1, m, n), self.left)
        for i in formed:  # (1, m, S) times (1, S, n), one unit at a time in the same memory
            left, right = self.left[i : i + 1].transpose(1, 2), self.right[i : i + 1]
            squared[i] = squares(torch.bmm(left, right, out=one))[0]
        return squared, rounding(size, tokens, self.left.dtype)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `FormedUse`."""
        return torch.bmm(self.left[start:stop].transpose(1, 2), self.right[start:stop])

    def add_to(self, total: Tensor, weights: Tensor, kept: Kept, beta: int = 1) -> None:
        """See `FormedUse`. The factors share memory with other layers, so they stay."""
        left, right = self.left[kept], self.right[kept]
        per_token = weights[kept].to(total.dtype)[:, None, None]
        if left.shape[2] < right.shape[2]:
            out = self.workspace.take("weighted", tuple(left.shape), left)
            left = torch.mul(left, per_token, out=out)
        else:
            out = self.workspace.take("weighted", tuple(right.shape), right)
            right = torch.mul(right, per_token, out=out)
        total.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1), beta=beta)


# -- layers whose parameters have such uses --------------------------------------------------------


class UnsupportedModule(TypeError):
    """A trained parameter lives in a module whose per-unit gradient is not known."""


def rms_normalised(module: nn.Module, x: Tensor, scale: float = 1.0) -> Tensor:
    """Return an RMS norm's output, in exactly the arithmetic of the module.

    Its whole weight is set to `scale`.
    """
    weight = torch.full_like(module._parameters["weight"], scale)  # type: ignore[arg-type]
    output = functional_call(module, {"weight": weight}, (x,))
    assert isinstance(output, Tensor)
    return output


class FeatureFactors(nn.Module):
    """Multiplies features (…, d) by trained factors (d,), which begin at 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply in float32, in which factors are trained, and return the format of x."""
        return (x * self.weight).to(x.dtype)


def known_parameters(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters whose per-unit gradient `parameter_use` knows, or raise.

    Types are compared exactly, because a subclass may compute something else (scaled embeddings).
    """
    if type(module) is nn.Embedding:
        if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
            raise UnsupportedModule("an embedding with max_norm, sparse or scale_grad_by_freq")
        return ("weight",)
    is_norm = type(module) is nn.LayerNorm and len(module.normalized_shape) == 1
    if is_norm or type(module) in (nn.Linear, Conv1D):
        return "weight", "bias"
    if type(module) is FeatureFactors:
        return ("weight",)
    # An RMS norm (Llama family). Each model of transformers has a class of its own, so the name
    # decides, and that it has a weight and nothing else.
    if type(module).__name__.endswith("RMSNorm") and [*module._parameters] == ["weight"]:
        weight = module._parameters["weight"]
        assert weight is not None
        # The weight must be the factor itself. Gemma's normalisation has 1 + weight.
        if not rms_normalised(module, torch.ones_like(weight)[None], scale=0.0).any():
            return ("weight",)
    raise UnsupportedModule(type(module).__name__)


def parameter_use(
    module: nn.Module,
    name: str,
    a: Tensor,
    b: Tensor,
    scale: Scale,
    workspace: Workspace,
    key: object,
) -> FormedUse | EmbeddingUse | MatrixUse:
    """Return what a module's parameter adds to its gradient, in one pass over B units.

    `a` is the layer's input (B, S, d), or normalised (B, S, p), or (B, S) ids of a table. `b` is
    the gradient (B, S, p) of its output. `key` names this use in the workspace, and no other use of
    the physical batch.
    """
    if name == "bias":
        return FormedUse(scale.per_column(b).sum(1, dtype=accumulation_dtype(b)))  # (B, p)
    if isinstance(module, nn.Embedding):
        if module.padding_idx is not None:  # as in autograd, the padding's row gets no gradient
            b = b.masked_fill((a == module.padding_idx)[..., None], 0.0)
        b = scale.per_column(b.to(accumulation_dtype(b)))
        if scale.rows is not None:  # those of the rows that the ids name
            b = b / scale.rows[a][..., None]
        return EmbeddingUse(a, b, module.num_embeddings)
    if not isinstance(module, nn.Linear | Conv1D):  # factors, of a normalisation or by themselves
        b = scale.per_column(b)
        return FormedUse((a * b).sum(1, dtype=accumulation_dtype(a, b)))  # (B, p)
    # A matrix (m, n), whose gradient is leftᵀ right of each unit: (B, S, m) and (B, S, n). That is
    # y = a Wᵀ with W (p, d), or GPT-2's y = a W with W (d, p).
    left, right = (b, a) if isinstance(module, nn.Linear) else (a, b)
    left = left if scale.rows is None else left / scale.rows
    right = scale.per_column(right)
    dtype = accumulation_dtype(left, right)
    left, right = left.to(dtype), right.to(dtype)
    units, tokens, m = left.shape
    n = right.shape[2]
    if tokens * (m + n) >= FORM_FROM * m * n and workspace.reserve(units * m * n, dtype):
        buffer = workspace.take(key, (units, m, n), left)
        return FormedUse(torch.bmm(left.transpose(1, 2), right, out=buffer))
    return MatrixUse(left, right, workspace)
