"""The rows of a physical batch: units made of K token sequences each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """B units of K sequences, right-padded to T tokens; unit i owns rows i·K … i·K+K-1.

    Args:
        input_ids: (B·K, T) token ids.
        loss_mask: (B·K, T) true where a token carries loss (text and end of text, never prompt or
            padding). Column 0 must be false: nothing predicts the first token.
        per_unit: K.
        filler: how many of the units, the last ones, are nobody's. They take part in the products,
            so that these always have one shape, and in nothing else; see `batch_invariance`.
    """

    input_ids: Tensor
    loss_mask: Tensor
    per_unit: int
    filler: int = 0

    def __post_init__(self) -> None:
        """Refuse rows that cannot be grouped into units or that carry no loss."""
        if self.input_ids.shape != self.loss_mask.shape or self.input_ids.dim() != 2:
            raise ValueError("input_ids and loss_mask must both be (rows, tokens)")
        if self.input_ids.shape[0] % self.per_unit:
            raise ValueError("the number of rows must be a multiple of the sequences per unit")
        if bool(self.loss_mask[:, 0].any()) or not bool(self.loss_mask.any(1).all()):
            raise ValueError("every row needs a token with loss, and the first token carries none")

    @property
    def units(self) -> int:
        """B, the number of units, filler among them."""
        return self.input_ids.shape[0] // self.per_unit

    def filled(self, units: int) -> Sequences:
        """Return the same with filler behind, so that there are so many units.

        Raises:
            ValueError: there are more already.
        """
        more = units - self.units
        if more < 0:
            raise ValueError(f"{self.units} units do not fit into a batch of {units}")
        ids = self.input_ids.new_zeros(more * self.per_unit, self.input_ids.shape[1])
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, 1] = True
        ids, mask = torch.cat([self.input_ids, ids]), torch.cat([self.loss_mask, mask])
        return Sequences(ids, mask, self.per_unit, self.filler + more)

    @property
    def predicting(self) -> Tensor:
        """(N,) flat indices of the positions whose next token carries loss, row by row."""
        shifted = torch.zeros_like(self.loss_mask)
        shifted[:, :-1] = self.loss_mask[:, 1:]
        return shifted.reshape(-1).nonzero().squeeze(1)

    @property
    def targets(self) -> Tensor:
        """(N,) the tokens to be predicted, in the order of `predicting`."""
        return self.input_ids[self.loss_mask]

    @property
    def tokens_per_row(self) -> Tensor:
        """(B·K,) number of tokens with loss."""
        return self.loss_mask.sum(1)
