"""The output layer and its loss: token losses, their gradients and their norms from one look.

With Q = softmax(h Wᵀ) - onehot(target), the gradient of token n's loss is Q[n] W with respect to
h[n] and Q[n]ᵀ h[n] with respect to W. Both are linear in whatever weight the token's loss later
gets. So all that later steps need, Q W, Q Qᵀ of each unit and, for a tied table, Q's columns at the
unit's own tokens, is made while a chunk of logits is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from twinset.privacy.clipping.gradient_uses import (
    PLAIN,
    EmbeddingUse,
    Scale,
    UnitWeights,
    Workspace,
    accumulation_dtype,
    cancels,
    squares,
)

# Tokens in one product: a library that packs a vocabulary's weights anew for each product, as those
# for bfloat16 do, spends as long on it as on 512 rows of 576 numbers. Memory: 100 MB of float32
# logits for a vocabulary of 49,152.
PIECE = 512
CACHED = 1 << 19  # float32 numbers that stay in a processor's cache from one pass to the next


def _rows_at_once(weight: Tensor) -> int:
    """Return of how many tokens logits are passed over together: on a GPU all of a piece."""
    return max(1, CACHED // len(weight)) if weight.is_cpu else PIECE


def piece_of(room: int) -> int:
    """Return how many tokens one product has in a physical batch of so many, padding included.

    >>> piece_of(100), piece_of(100_000)
    (100, 512)
    """
    return min(PIECE, room)


def whole_pieces(tokens: int, piece: int) -> int:
    """Round a number of tokens up to whole pieces.

    >>> whole_pieces(1, 512), whole_pieces(512, 512), whole_pieces(513, 512)
    (512, 512, 1024)
    """
    return -(-tokens // piece) * piece


def residuals(hidden: Tensor, weight: Tensor, targets: Tensor, q: Tensor, low: Tensor) -> Tensor:
    """Write Q (N, V) into `q` and `low`; return the N losses. hidden (N, d), weight (V, d).

    Args:
        hidden: inputs.
        weight: of the output layer, in the same format.
        targets: (N,) tokens to be predicted.
        q: (N, V) in the format of sums; or fewer rows, which are written over and over.
        low: (N, V) in the format of the inputs; the same tensor as `q` where that is the same.
    """
    torch.mm(hidden, weight.t(), out=low)
    losses = torch.empty(len(hidden), dtype=q.dtype, device=q.device)
    step = _rows_at_once(weight)
    for start in range(0, len(hidden), step):
        rows = slice(start, min(start + step, len(hidden)))
        some = q[rows] if len(q) == len(hidden) else q[: rows.stop - start]
        losses[rows] = _residuals(low[rows], targets[rows, None], some)
    return losses


def _residuals(logits: Tensor, targets: Tensor, q: Tensor) -> Tensor:
    """Turn a few rows of logits into Q, in both formats, and return their losses."""
    if q.dtype != logits.dtype:
        q.copy_(logits)
    of_target, largest = q.gather(1, targets), q.amax(1, keepdim=True)
    torch.softmax(q, 1, out=q)
    losses = largest - q.amax(1, keepdim=True).log() - of_target
    q.scatter_add_(1, targets, torch.full_like(of_target, -1.0))
    if q.dtype != logits.dtype:
        logits.copy_(q)
    return losses.squeeze(1)


class TokenNLL(torch.autograd.Function):
    """nll[n] = logsumexp(h[n] Wᵀ) - h[n] · W[target[n]], for N tokens in whole pieces.

    All products of a batch's shape have as many rows: how a row is rounded then depends on that row
    alone.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, head: HeadUse) -> Tensor:
        """Return (N,) losses; `hidden` is (N, d), `weight` (V, d)."""
        nll = torch.empty(len(hidden), dtype=accumulation_dtype(hidden), device=hidden.device)
        through = torch.empty_like(hidden)
        for piece in head.pieces(0, len(hidden)):
            nll[piece], low = head.look(piece)
            torch.mm(low, weight, out=through[piece])
            head.keep(piece.stop)
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
        hidden: (N, d) inputs, in whole pieces; those behind the last unit's are nobody's.
        weight: (V, d).
        targets: (N,) tokens to be predicted.
        offsets: B + 1 token offsets.
        workspace: gives the memory of Q.
        trained: whether the weight is; if not, nothing is kept.
        room: tokens to reserve memory for: those of the rows, whichever of them carry loss, so
            that what is kept depends on the batch's shape alone.
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
    room: int
    ids: Tensor | None = None
    scale: Scale = PLAIN
    token_weights: Tensor | None = None
    _grams: list[Tensor | None] = field(default_factory=list)
    _at_ids: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take memory for all of Q, if there is enough and somebody will ask; else for a window."""
        dtype = accumulation_dtype(self.hidden)
        self._whole = self.trained and self.workspace.reserve(self.room * len(self.weight), dtype)
        longest = max(b - a for a, b in pairwise(self.offsets)) if self.trained else 0
        window = whole_pieces(longest, self.piece) + self.piece  # a unit may begin anywhere in one
        if not self.trained:
            same = dtype == self.hidden.dtype
            window = self.piece if same else _rows_at_once(self.weight)
        self._q = self._buffer("residuals", len(self.hidden) if self._whole else window)
        self._first = 0  # the token of Q's first row

    @property
    def piece(self) -> int:
        """Tokens in one product."""
        return piece_of(self.room)

    def pieces(self, start: int, stop: int) -> Iterator[slice]:
        """Yield the pieces in which tokens lie."""
        for first in range(start // self.piece * self.piece, stop, self.piece):
            yield slice(first, first + self.piece)

    def look(self, piece: slice) -> tuple[Tensor, Tensor]:
        """Return the losses of the next piece, and its Q in the format of products."""
        q = self._memory(piece) if self.trained else self._q
        return self._residuals(piece, q)

    def _residuals(self, piece: slice, q: Tensor) -> tuple[Tensor, Tensor]:
        low = q
        if self.hidden.dtype != q.dtype:
            shape = (self.piece, len(self.weight))
            low = self.workspace.take("piece of logits", shape, self.hidden)
        return residuals(self.hidden[piece], self.weight, self.targets[piece], q, low), low

    def _memory(self, piece: slice) -> Tensor:
        """Return where Q of the next piece belongs; units that are not whole yet stay."""
        if piece.stop - self._first > len(self._q):
            first = self.offsets[len(self._grams)] // self.piece * self.piece
            held = self._q[first - self._first : piece.start - self._first].clone()
            self._q[: len(held)] = held
            self._first = first
        return self._q[piece.start - self._first : piece.stop - self._first]

    def keep(self, done: int) -> None:
        """Keep what the norms need of the units that lie before token `done`."""
        while self.trained and len(self._grams) < len(self.offsets) - 1:
            unit = len(self._grams)
            if self.offsets[unit + 1] > done:
                return
            a, b = (token - self._first for token in self._span(unit))
            q = self._q[a:b]  # (S, V), of one unit
            self._divide(q)
            small = len(q) <= self.hidden.shape[1]
            self._grams.append(q @ q.t() if small else None)  # (S, S)
            if self.ids is not None:
                self._at_ids.append(q.index_select(1, self.ids[unit]))

    def squared_norms(self) -> Tensor:
        """See `ParameterUse`."""
        found = torch.stack([self._by_gram(unit) for unit in range(len(self.offsets) - 1)])
        squared, size = found[:, 0], found[:, 1]
        doubtful = cancels(squared, size, accumulation_dtype(self.hidden))
        for unit in doubtful.nonzero().squeeze(1).tolist():  # one look for all: a GPU waits for it
            squared[unit] = self._formed(unit)
        return squared

    def _by_gram(self, unit: int) -> Tensor:
        """Return (2,) float64: ‖G‖² by Gram matrices where that is quick, and how much cancels."""
        gram = self._grams[unit]
        if gram is None:
            return self._formed(unit).expand(2)
        h = self._weighted_hidden(unit)
        hh = h @ h.t()
        size = hh.trace().double() * gram.trace().double()
        return torch.stack([(hh * gram).sum(dtype=torch.float64), size])

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
        """See `ParameterUse`."""
        dtype = accumulation_dtype(self.hidden)
        out = torch.zeros(stop - start, *self.weight.shape, dtype=dtype, device=self.hidden.device)
        for total, unit in zip(out, range(start, stop), strict=True):
            q = self._again(*self._span(unit))
            torch.mm(q.t(), self._weighted_hidden(unit), out=total)
        return out

    def add_to(self, total: Tensor, weights: UnitWeights, beta: int = 1) -> None:
        """See `ParameterUse`."""
        assert self.token_weights is not None
        lengths = torch.tensor(self.offsets, device=weights.values.device).diff()
        per_token = self.token_weights[: self.offsets[-1]]
        per_token = per_token * weights.values.to(total.dtype).repeat_interleave(lengths)
        # Spans of tokens that cover all units whose weight is not zero, and no other unit.
        last = self.offsets[-1]
        step = last if self._whole else self.piece
        if weights.kept is not None:
            spans = [self._span(unit) for unit in weights.kept.tolist()]
        else:
            spans = [(start, min(start + step, last)) for start in range(0, last, step)]
        for a, b in spans:
            h = self._inputs(a, b, total.dtype) * per_token[a:b, None]
            total.addmm_(self._again(a, b).t(), h, beta=beta)
            beta = 1

    def _span(self, unit: int) -> tuple[int, int]:
        return self.offsets[unit], self.offsets[unit + 1]

    def _again(self, start: int, stop: int) -> Tensor:
        """Return Q of some tokens: kept, or made again by the very same products."""
        if self._whole:
            return self._q[start:stop]
        pieces = list(self.pieces(start, stop))
        first = pieces[0].start
        q = self._buffer("residuals again", pieces[-1].stop - first)
        for piece in pieces:
            self._residuals(piece, q[piece.start - first : piece.stop - first])
        q = q[start - first : stop - first]
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
