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

UNBOUNDED = 1 << 20  # positions it reads: as many as there are


class Windows(nn.Module):
    """(R, T) ids → (R, T, d): ReLU layers over the last `previous` words up to each position.

    Words are looked up in a table of vectors, or enter as their numbers, one each, as in the
    paper's code. Before a line's begin there are zeros.

    Args:
        vocabulary: V.
        embedding: length of a word's vector; 0 takes the word's number instead.
        hidden: units of each layer.
        previous: words seen.
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
        """Return the last layer, with a column of ones behind it: the output layer's bias."""
        vectors = self.table(input_ids) if self.table else input_ids[..., None].to(self._dtype)
        before = pad(vectors, (0, 0, self._previous - 1, 0))
        windows = before.unfold(1, self._previous, 1)  # (R, T, e, previous)
        hidden = windows.transpose(2, 3).flatten(2)  # one word's vector behind the other's
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        return SimpleNamespace(last_hidden_state=pad(hidden, (0, 1), value=1.0))

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


class FeedForward(nn.Module):
    """`Windows` and an output layer, in the form of a causal model of transformers.

    Args:
        vocabulary: V.
        embedding: length of a word's vector; 0 takes the word's number instead.
        hidden: units of each layer.
        previous: words seen.
    """

    def __init__(
        self, vocabulary: int, embedding: int, hidden: tuple[int, ...], previous: int = 20
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=UNBOUNDED)
        self.base_model = Windows(vocabulary, embedding, hidden, previous)
        bound = nn.Linear(hidden[-1], vocabulary)  # whose start is the usual one
        self.head = nn.Linear(hidden[-1] + 1, vocabulary, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.cat([bound.weight, bound.bias[:, None]], 1))

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output layer."""
        return self.head

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of words, or what stands in its place."""
        return self.base_model.table or self.base_model.layers[0]

    def forward(self, input_ids: Tensor, **ignored: Any) -> SimpleNamespace:
        """(R, T) → logits (R, T, V)."""
        hidden = self.base_model(input_ids).last_hidden_state
        return SimpleNamespace(logits=self.head(hidden))
