"""The feed-forward language model of Kerrigan et al. 2020: the next word from the 20 before it.

Built as a causal model over whole lines, (R, T) → (R, T, V), so that `ClippingEngine` sees it as it
sees GPT-2: all words of a line, each with its window of 20, are one unit.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from evaluation.papers.causal_model import CausalModel, hidden_with_ones


class Windows(nn.Module):
    """(R, T) ids → (R, T, d): ReLU layers over the last `previous` words up to each position.

    Words are looked up in a table of vectors, or enter as their numbers, one each, as in the
    paper's code. Before a line's begin there are zeros. For its parameters see `feed_forward`.
    """

    def __init__(
        self, vocabulary: int, embedding: int, hidden: tuple[int, ...], previous: int
    ) -> None:
        super().__init__()
        self._previous = previous
        self.table = nn.Embedding(vocabulary, embedding) if embedding else None
        widths = (previous * max(1, embedding), *hidden)
        pairs = zip(widths, hidden, strict=False)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)

    def forward(self, input_ids: Tensor, **ignored: Any) -> SimpleNamespace:
        """Return the last layer, with a column of ones."""
        dtype = next(self.parameters()).dtype
        vectors = self.table(input_ids) if self.table else input_ids[..., None].to(dtype)
        before = pad(vectors, (0, 0, self._previous - 1, 0))
        windows = before.unfold(1, self._previous, 1)  # (R, T, e, previous)
        hidden = windows.transpose(2, 3).flatten(2)  # one word's vector behind the other's
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        return hidden_with_ones(hidden)


def feed_forward(
    vocabulary: int, embedding: int, hidden: tuple[int, ...], previous: int = 20
) -> CausalModel:
    """Return the model with random weights.

    Args:
        vocabulary: V.
        embedding: length of a word's vector; 0 takes the word's number instead.
        hidden: units of each layer.
        previous: words seen.
    """
    windows = Windows(vocabulary, embedding, hidden, previous)
    return CausalModel(windows, hidden[-1], vocabulary)
