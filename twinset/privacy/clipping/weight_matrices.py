"""A weight matrix's use: norms without gradients where that is cheaper, sums as one product.

Unit i's gradient is Gᵢ = LᵢᵀRᵢ over its S tokens. Its norm needs only Gram matrices,
‖Gᵢ‖² = Σ (LᵢLᵢᵀ ∘ RᵢRᵢᵀ) (Goodfellow 2015 for one token, Li et al. 2022 for sequences), and the
weighted sum is LᵀR with R's rows weighted, from the kept L and R (Bu et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twinset.privacy.clipping.buffers import Workspace
from twinset.privacy.clipping.gradient_uses import FormedUse, Use, accumulation_dtype, squares

# Gram matrices cost 2·S²(m+n) operations a unit beside the sum's 2·S·m·n. A formed gradient costs
# 2·S·m·n and m·n numbers written and read twice, but its sum is then a pass over memory. On a CPU
# the second is cheaper once S(m+n)/(mn) reaches this, provided that its memory is not fresh.
FORM_FROM = 0.25
FORM_ANYWAY = 1.0  # here forming is cheaper even where the gradient cannot be kept

# A Gram norm adds numbers as large as ‖L‖²‖R‖² and leaves ‖G‖². Where the ratio of these exceeds
# this share of 1 / machine epsilon, rounding may show in the fifth digit, and G is formed.
CANCELLATION = 1e-4


def cancels(squared: Tensor, size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return where ‖G‖², got by Gram matrices, may have lost its digits; a NaN has not: it stays.

    Args:
        squared: ‖G‖² as found.
        size: ‖L‖²‖R‖².
        dtype: precision of the Gram matrices.
    """
    return size > squared * (CANCELLATION / torch.finfo(dtype).eps)


def matrix_use(left: Tensor, right: Tensor, workspace: Workspace, name: object) -> Use:
    """Return the use of a matrix (m, n) whose gradient is leftᵀ right: (B, S, m) and (B, S, n).

    Args:
        left: layer input or output gradient, whichever gives the matrix's rows.
        right: the other one.
        workspace: gives the memory of formed gradients.
        name: of this use in the workspace, unique in the physical batch.
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
        """See `Use`."""
        tokens, m, n = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        if tokens * (m + n) >= FORM_ANYWAY * m * n:
            return self._formed(range(len(self.left)))
        squared, size = self._gram()
        doubtful = cancels(squared, size, self.left.dtype).nonzero().squeeze(1).tolist()
        if doubtful:
            squared[doubtful] = self._formed(doubtful)
        return squared

    def _gram(self) -> tuple[Tensor, Tensor]:
        """Return (B,) ‖G‖² by Gram matrices, and ‖L‖²‖R‖² that tells how much may cancel."""
        shape = (len(self.left), self.left.shape[1], self.left.shape[1])
        ll = self.workspace.take("left gram", shape, self.left)
        rr = self.workspace.take("right gram", shape, self.left)
        torch.bmm(self.left, self.left.transpose(1, 2), out=ll)
        torch.bmm(self.right, self.right.transpose(1, 2), out=rr)
        traces = (g.diagonal(dim1=1, dim2=2).sum(1, dtype=torch.float64) for g in (ll, rr))
        size = torch.stack(list(traces)).prod(0)
        return ll.mul_(rr).sum((1, 2), dtype=torch.float64), size

    def _formed(self, units: list[int] | range) -> Tensor:
        shape = (1, self.left.shape[2], self.right.shape[2])
        one = self.workspace.take("one gradient", shape, self.left)
        found = [squares(torch.bmm(self._left_of(i), self._right_of(i), out=one)) for i in units]
        return torch.cat(found)

    def _left_of(self, unit: int) -> Tensor:
        return self.left[unit : unit + 1].transpose(1, 2)

    def _right_of(self, unit: int) -> Tensor:
        return self.right[unit : unit + 1]

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `Use`."""
        return torch.bmm(self.left[start:stop].transpose(1, 2), self.right[start:stop])

    def add_to(self, total: Tensor, weights: Tensor, beta: int = 1) -> None:
        """See `Use`. The factors share memory with other layers' and are never changed in place."""
        left, right, kept = self.left, self.right, weights != 0
        if not bool(kept.all()):
            left, right, weights = left[kept], right[kept], weights[kept]
        per_token = weights.to(total.dtype)[:, None, None]
        if left.shape[2] < right.shape[2]:
            left = torch.mul(left, per_token, out=self._scratch(left))
        else:
            right = torch.mul(right, per_token, out=self._scratch(right))
        total.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1), beta=beta)

    def _scratch(self, like: Tensor) -> Tensor:
        return self.workspace.take("weighted", tuple(like.shape), like)
