"""The one-layer LSTM of Shi et al. 2022, in the form of a causal model of transformers.

Built so that `ClippingEngine` knows each row's whole gradient. Its rule for a linear layer wants
all tokens of a row at once, but a recurrence has the next input only when the last output is there.
So the layer reads states that were computed before, without a graph, and the recurrence adds to its
output what states with a graph would have changed: zero, but for its gradient. What the layer's
hook sees is then exactly its input and the loss's gradient at its output, through all of time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

UNBOUNDED = 1 << 20  # positions it reads: as many as there are


class State:
    """Hidden and cell states (R, d) of R rows; stands where transformers have a cache.

    Args:
        hidden: h.
        cell: c.
    """

    def __init__(self, hidden: Tensor, cell: Tensor) -> None:
        self.hidden, self.cell = hidden, cell

    def batch_select_indices(self, places: Tensor) -> None:
        """Keep these rows, in this order, as caches of transformers do."""
        self.hidden, self.cell = self.hidden[places], self.cell[places]


class Recurrence(nn.Module):
    """(R, T) ids → (R, T, d) hidden states, from zeros or from `begin`.

    Args:
        vocabulary: V.
        width: d, of words' vectors and of both states.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Embedding(vocabulary, width)
        self.gates = nn.Linear(2 * width, 4 * width)  # of word and hidden state; i, f, g, o
        bound = width**-0.5
        with torch.no_grad():  # as `nn.LSTM` begins
            for parameter in self.gates.parameters():
                parameter.uniform_(-bound, bound)
        self.begin: State | None = None
        self.states: tuple[Tensor, Tensor] | None = None

    def forward(self, input_ids: Tensor, **ignored: Any) -> SimpleNamespace:
        """Return the last layer, with a column of ones behind it: the output layer's bias.

        Where gradients are wanted, `states` holds (R, T, d) hidden and cell states afterwards.
        """
        vectors = self.table(input_ids)
        begin = self.begin or self.zeros(len(input_ids))
        hidden, last = self.read(vectors.detach(), begin)
        if torch.is_grad_enabled() and vectors.requires_grad:
            hidden = self._with_graph(vectors, hidden, begin)
        ones = pad(hidden, (0, 1), value=1.0)
        return SimpleNamespace(last_hidden_state=ones, past_key_values=last)

    def zeros(self, rows: int) -> State:
        """Return the state before any word."""
        empty = torch.zeros(2, rows, self.width, dtype=self.gates.weight.dtype)
        return State(empty[0], empty[1])  # two tensors: some write into them

    @torch.no_grad()
    def read(self, vectors: Tensor, begin: State) -> tuple[Tensor, State]:
        """(R, T, d) vectors → (R, T, d) hidden states, and the state behind them; no graph."""
        weight, bias = self.gates.weight, self.gates.bias
        of_word, of_state = (part.contiguous() for part in weight.split(self.width, dim=1))
        weights = [of_word, of_state, bias, torch.zeros_like(bias)]
        before = (begin.hidden[None].contiguous(), begin.cell[None].contiguous())
        hidden, h, c = torch.lstm(vectors, before, weights, True, 1, 0.0, False, False, True)
        return hidden, State(h[0], c[0])

    def _with_graph(self, vectors: Tensor, known: Tensor, begin: State) -> Tensor:
        """Return the same hidden states with a graph; see the head of this file."""
        previous = torch.cat([begin.hidden[:, None], known[:, :-1]], 1).detach()
        gates = self.gates(torch.cat([vectors, previous], 2))  # (R, T, 4d)
        weight = self.gates.weight[:, self.width :].detach().t()
        h, c, hidden, cells = begin.hidden, begin.cell, [], []
        for t in range(vectors.shape[1]):
            i, f, g, o = (gates[:, t] + (h - previous[:, t]) @ weight).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
            cells.append(c)
        found = torch.stack(hidden, 1)
        self.states = found.detach(), torch.stack(cells, 1).detach()
        return found


class Lstm(nn.Module):
    """`Recurrence` and an output layer.

    Args:
        vocabulary: V.
        width: of words' vectors and states.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(max_position_embeddings=UNBOUNDED)
        self.base_model = Recurrence(vocabulary, width)
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

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of words."""
        return self.base_model.table

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: State | None = None,
        logits_to_keep: int = 0,
        **ignored: Any,
    ) -> SimpleNamespace:
        """(R, T) → logits (R, T, V), of the last tokens only where so many are asked for."""
        recurrence = self.base_model
        recurrence.begin = past_key_values
        try:
            found = recurrence(input_ids)
        finally:
            recurrence.begin = None
        hidden = found.last_hidden_state[:, -logits_to_keep:]
        state = found.past_key_values
        if past_key_values is not None:  # a cache grows in place
            past_key_values.hidden, past_key_values.cell = state.hidden, state.cell
        return SimpleNamespace(logits=self.head(hidden), past_key_values=state)
