"""The form in which `ClippingEngine` and measures take a small model: that of transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

UNBOUNDED = 1 << 20  # positions it reads: as many as there are


class CausalModel(nn.Module):
    """Layers and an output layer, whose bias is its last column.

    Args:
        base_model: (R, T) ids → `hidden_with_ones`; its `table` of words may be None, where its
            first of `layers` reads numbers.
        width: d, of the last layer.
        vocabulary: V.
    """

    def __init__(self, base_model: Any, width: int, vocabulary: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=UNBOUNDED)
        self.base_model = base_model
        bound = nn.Linear(width, vocabulary)  # whose start is the usual one
        self.head = nn.Linear(width + 1, vocabulary, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.cat([bound.weight, bound.bias[:, None]], 1))

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.head.weight.device

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output layer."""
        return self.head

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of words, or what stands in its place."""
        first: nn.Module = self.base_model.table or self.base_model.layers[0]
        return first

    def forward(self, input_ids: Tensor, **ignored: Any) -> SimpleNamespace:
        """(R, T) → logits (R, T, V)."""
        return SimpleNamespace(logits=self.head(self.base_model(input_ids).last_hidden_state))


def hidden_with_ones(hidden: Tensor, **more: Any) -> SimpleNamespace:
    """(R, T, d) → the last layer, with a column of ones behind it: the output layer's bias."""
    return SimpleNamespace(last_hidden_state=pad(hidden, (0, 1), value=1.0), **more)
