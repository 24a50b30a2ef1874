"""In which geometry gradients are measured and clipped: one factored scale for each parameter.

A policy that wants less noise in some directions than in others may not simply draw less there: in
those directions a unit would show. It may clip g / s instead of g, add the same noise everywhere,
and multiply the result by s. s is kept factored, so that norms still need no per-unit gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scale:
    """s = rows ⊗ columns of a parameter (m, n); a vector (n,) has columns only. `None`: ones.

    Args:
        columns: (n,) positive and finite.
        rows: (m,) likewise.

    Raises:
        ValueError: a factor is not positive and finite.
    """

    columns: Tensor | None = None
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a scale in which some direction would be clipped to nothing, or not at all."""
        for factor in (self.columns, self.rows):
            if factor is not None and not bool((factor.isfinite() & (factor > 0)).all()):
                raise ValueError("every scale must be positive and finite")

    def fits(self, shape: torch.Size) -> bool:
        """Return whether a parameter of this shape may have this scale."""
        columns_fit = self.columns is None or self.columns.shape == shape[-1:]
        rows_fit = self.rows is None or (len(shape) == 2 and self.rows.shape == shape[:1])
        return columns_fit and rows_fit

    def per_column(self, x: Tensor) -> Tensor:
        """Return x (…, n) divided by the columns' factors."""
        return x if self.columns is None else x / self.columns

    def per_row(self, x: Tensor) -> Tensor:
        """Return x (…, m) divided by the rows' factors."""
        return x if self.rows is None else x / self.rows

    def per_row_of(self, ids: Tensor, x: Tensor) -> Tensor:
        """Return x (…, n) divided by the factors of the rows `ids` (…) that it belongs to."""
        return x if self.rows is None else x / self.rows[ids][..., None]

    def mean(self) -> Tensor:
        """Return the mean of s over the whole parameter, a scalar."""
        factors = [f.mean() for f in (self.columns, self.rows) if f is not None]
        return torch.stack(factors).prod() if factors else torch.ones(())

    def times_(self, total: Tensor) -> Tensor:
        """Multiply a tensor of the parameter's shape by s, in place: back to plain gradients."""
        if self.columns is not None:
            total *= self.columns
        if self.rows is not None:
            total *= self.rows[:, None]
        return total


PLAIN = Scale()
