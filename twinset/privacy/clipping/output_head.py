"""The output layer and its loss: token losses, their gradients and their norms from one look.

With Q = softmax(h Wᵀ) - onehot(target), the gradient of token n's loss is Q[n] W with respect to
h[n] and Q[n]ᵀ h[n] with respect to W. Both are linear in whatever weight the token's loss later
gets. So all that later steps need, Q W, Q Qᵀ of each unit and, for a tied table, Q's columns at the
unit's own tokens, is made while a chunk of logits is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from twinset.privacy.clipping.buffers import Workspace
from twinset.privacy.clipping.gradient_uses import EmbeddingUse, accumulation_dtype, squares
from twinset.privacy.clipping.scales import PLAIN, Scale
from twinset.privacy.clipping.weight_matrices import cancels

CHUNK_TOKENS = 256  # 50 MB of float32 logits for a vocabulary of 49,152


def residuals(hidden: Tensor, weight: Tensor, targets: Tensor, out: Tensor) -> Tensor:
    """Write Q (N, V) into `out`; return the N losses. hidden (N, d), weight (V, d)."""
    if hidden.dtype is out.dtype:
        torch.mm(hidden, weight.t(), out=out)
    else:  # one row alone is multiplied by another kernel, which rounds in another way
        rows = hidden if len(hidden) > 1 else hidden.expand(2, -1)
        out.copy_((rows @ weight.t())[: len(hidden)])
    target = targets[:, None]
    of_target = out.gather(1, target)
    largest, place = out.max(1, keepdim=True)
    torch.softmax(out, 1, out=out)
    losses = largest - out.gather(1, place).log() - of_target
    out.scatter_add_(1, target, torch.full_like(of_target, -1.0))
    return losses.squeeze(1)


class TokenNLL(torch.autograd.Function):
    """nll[n] = logsumexp(h[n] Wᵀ) - h[n] · W[target[n]], for N tokens."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, head: HeadUse) -> Tensor:
        """Return (N,) losses; `hidden` is (N, d), `weight` (V, d)."""
        nll = torch.empty(len(hidden), dtype=accumulation_dtype(hidden), device=hidden.device)
        through = torch.empty_like(hidden)
        for chunk, units in head.chunks():
            q = head.residual_memory(chunk, weight)
            nll[chunk] = residuals(hidden[chunk], weight, head.targets[chunk], q)
            torch.mm(q.to(weight.dtype), weight, out=through[chunk])
            head.keep(q, chunk, units)
        ctx.through, ctx.head = through, head
        return nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of `hidden`; the weight's own gradient is `HeadUse`'s."""
        ctx.head.token_weights = grads[0].detach()
        return ctx.through * grads[0].to(ctx.through.dtype)[:, None], None, None


@dataclass
class HeadUse:
    """The output layer's use of its weight (V, d). Unit i's tokens: offsets[i] … offsets[i+1].

    Args:
        hidden: (N, d) inputs.
        weight: (V, d).
        targets: (N,) tokens to be predicted.
        offsets: B + 1 token offsets.
        workspace: gives the memory of Q.
        trained: whether the weight is; if not, nothing is kept.
        ids: (B, S) tokens of the units, where the weight is also their embedding.
        scale: what the weight's gradient is divided by.
        token_weights: (N,) gradient of the total loss with respect to each token's loss.
    """

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    offsets: list[int]
    workspace: Workspace
    trained: bool
    ids: Tensor | None = None
    scale: Scale = PLAIN
    token_weights: Tensor | None = None
    _q: Tensor | None = None
    _grams: list[Tensor | None] = field(default_factory=list)
    _at_ids: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Reserve memory for all of Q, if there is enough and somebody will ask for it."""
        dtype = accumulation_dtype(self.hidden)
        numbers = len(self.hidden) * len(self.weight)
        if self.trained and self.workspace.reserve(numbers, dtype):
            self._q = self._buffer("residuals", len(self.hidden))

    def chunks(self) -> Iterator[tuple[slice, range]]:
        """Yield tokens and units of pieces of about `CHUNK_TOKENS`; a unit is never cut."""
        first, offsets = 0, self.offsets
        while first < len(offsets) - 1:
            last = first + 1
            while last < len(offsets) - 1 and offsets[last + 1] - offsets[first] <= CHUNK_TOKENS:
                last += 1
            yield slice(offsets[first], offsets[last]), range(first, last)
            first = last

    def residual_memory(self, chunk: slice, weight: Tensor) -> Tensor:
        """Return where Q of a chunk belongs."""
        if self._q is not None:
            return self._q[chunk]
        return self._buffer("chunk of residuals", chunk.stop - chunk.start)

    def keep(self, q: Tensor, chunk: slice, units: range) -> None:
        """Keep of a chunk's Q what the norms need."""
        if not self.trained:
            return
        self._divide(q)
        for unit in units:
            a, b = (self.offsets[unit + i] - chunk.start for i in (0, 1))
            small = b - a <= self.hidden.shape[1]
            self._grams.append(q[a:b] @ q[a:b].t() if small else None)
            if self.ids is not None:
                self._at_ids.append(q[a:b].index_select(1, self.ids[unit]))

    def squared_norms(self) -> Tensor:
        """See `Use`."""
        return torch.stack([self._squared_norm(i) for i in range(len(self.offsets) - 1)])

    def _squared_norm(self, unit: int) -> Tensor:
        gram = self._grams[unit]
        if gram is None:
            return self._formed(unit)
        h = self._weighted_hidden(unit)
        hh = h @ h.t()
        size = hh.trace().double() * gram.trace().double()
        squared = (hh * gram).sum(dtype=torch.float64)
        return self._formed(unit) if bool(cancels(squared, size, h.dtype)) else squared

    def _formed(self, unit: int) -> Tensor:
        return squares(self.unit_gradients(unit, unit + 1))[0]

    def cross(self, embedding: EmbeddingUse) -> Tensor:
        """Return (B,) float64 ⟨gradient of this use, of the embedding's⟩: the tied table's term.

        Σ over the unit's tokens t and predicted tokens n of Q[n, id(t)] · (h[n] · b[t]).
        """
        dots = [
            ((self._weighted_hidden(i) @ embedding.b[i].to(q.dtype).t()) * q).sum(
                dtype=torch.float64
            )
            for i, q in enumerate(self._at_ids)
        ]
        return torch.stack(dots)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `Use`."""
        dtype = accumulation_dtype(self.hidden)
        out = torch.zeros(stop - start, *self.weight.shape, dtype=dtype, device=self.hidden.device)
        for total, unit in zip(out, range(start, stop), strict=True):
            tokens = slice(self.offsets[unit], self.offsets[unit + 1])
            torch.mm(self._residuals(tokens).t(), self._weighted_hidden(unit), out=total)
        return out

    def add_to(self, total: Tensor, weights: Tensor, beta: int = 1) -> None:
        """See `Use`."""
        assert self.token_weights is not None
        lengths = torch.tensor(self.offsets, device=weights.device).diff()
        per_token = self.token_weights * weights.to(total.dtype).repeat_interleave(lengths)
        all_count = bool((weights != 0).all())
        if self._q is not None and all_count:
            h = self._inputs(0, len(self.hidden), total.dtype) * per_token[:, None]
            total.addmm_(self._q.t(), h, beta=beta)
            return
        for chunk, units in self.chunks():
            counted = [i for i in units if all_count or weights[i]]
            for a, b in [(chunk.start, chunk.stop)] if all_count else map(self._span, counted):
                h = self._inputs(a, b, total.dtype) * per_token[a:b, None]
                total.addmm_(self._residuals(slice(a, b)).t(), h, beta=beta)
                beta = 1

    def _span(self, unit: int) -> tuple[int, int]:
        return self.offsets[unit], self.offsets[unit + 1]

    def _residuals(self, tokens: slice) -> Tensor:
        """Return Q of some tokens: kept, or made again."""
        if self._q is not None:
            return self._q[tokens]
        q = self._buffer("chunk of residuals", tokens.stop - tokens.start)
        residuals(self.hidden[tokens], self.weight, self.targets[tokens], q)
        self._divide(q)
        return q

    def _divide(self, q: Tensor) -> None:
        """Scale Q's columns, which are the weight's rows, in place."""
        if self.scale.rows is not None:
            q /= self.scale.rows

    def _inputs(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        return self.scale.per_column(self.hidden[start:stop].to(dtype))

    def _weighted_hidden(self, unit: int) -> Tensor:
        assert self.token_weights is not None
        tokens = slice(*self._span(unit))
        inputs = self._inputs(tokens.start, tokens.stop, self.token_weights.dtype)
        return inputs * self.token_weights[tokens, None]

    def _buffer(self, name: str, tokens: int) -> Tensor:
        like = self.hidden.new_empty(0, dtype=accumulation_dtype(self.hidden))
        return self.workspace.take(name, (tokens, len(self.weight)), like)
