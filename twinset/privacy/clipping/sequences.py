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
    """

    input_ids: Tensor
    loss_mask: Tensor
    per_unit: int

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
        """B, the number of units."""
        return self.input_ids.shape[0] // self.per_unit

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
