"""The output layer and its loss: token losses, their gradients and their norms in one pass.

With Q = softmax(h Wᵀ) - onehot(target), the gradient of token n's loss is Q[n] W with respect to
h[n] and Q[n]ᵀ h[n] with respect to W. Both are linear in whatever weight the token's loss gets
later. So everything for later steps is computed while a chunk of logits is in the cache: Q W, Q Qᵀ
of each unit and, for a tied table, Q's columns at the unit's own tokens.
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
    FormedUse,
    Kept,
    MatrixUse,
    Scale,
    Workspace,
    accumulation_dtype,
    cancels,
    rounding,
    squares,
)

# Tokens in one product. Some libraries repack a vocabulary's weights for each product, as for
# bfloat16, which takes as long as 512 rows of 576 numbers. Memory: 100 MB of float32 logits for
# a vocabulary of 49,152.
PIECE = 512
CACHED = 1 << 19  # float32 numbers that stay in a processor's cache from one pass to the next
BUFFER_NUMBERS = 1 << 26  # per-unit gradients formed at once: 256 MB of float32
LEAST_OF_TIED = 0.1  # a tied table's squared norm over that of its two uses, unless they cancel


def whole_pieces(tokens: int, room: int) -> int:
    """Round a number of tokens up to whole products of a physical batch.

    Args:
        tokens: number of tokens.
        room: tokens of the batch, padding included. A product has at most this many.

    >>> whole_pieces(1, 100), whole_pieces(1, 10**5), whole_pieces(513, 10**5)
    (100, 512, 1024)
    """
    piece = min(PIECE, room)
    return -(-tokens // piece) * piece


class TokenNLL(torch.autograd.Function):
    """nll[n] = logsumexp(h[n] Wᵀ) - h[n] · W[target[n]], for N tokens in whole pieces.

    All products for one batch shape have the same number of rows. So the rounding of a row depends
    on that row alone.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, head: HeadUse) -> Tensor:
        """Return (N,) losses of `hidden` (N, d) and `weight` (V, d)."""
        nll = torch.empty(len(hidden), dtype=accumulation_dtype(hidden), device=hidden.device)
        through = torch.empty_like(hidden)
        head.read(nll, through)
        ctx.through, ctx.head = through, head
        return nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of `hidden`. `HeadUse` has the weight's own gradient."""
        ctx.head.token_weights = grads[0].detach()
        return ctx.through * grads[0].to(ctx.through.dtype)[:, None], None, None


@dataclass
class HeadUse:
    """The output layer's use of its weight (V, d). Unit i's tokens: offsets[i] … offsets[i+1].

    Args:
        hidden: (N, d) inputs, in whole pieces. Those after the last unit's are filler.
        weight: (V, d).
        targets: (N,) tokens to be predicted.
        offsets: B + 1 token offsets.
        workspace: provides the memory of Q.
        trained: whether the weight is trained. If not, nothing is kept.
        room: tokens to reserve memory for: all tokens of the rows, with loss or without, so the
            kept data depend on the batch's shape alone.
        ids: (B, S) tokens of the units, if the weight is also their embedding.
        scale: the divisor of the weight's gradient.
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
    # of each unit's Q (S, S), or (1,) its squared norm if the gradient is cheaper to form
    _grams: list[Tensor] = field(default_factory=list)
    _at_ids: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Reserve memory for all of Q if it will be used and there is enough, else for a window."""
        self.piece = min(PIECE, self.room)  # tokens in one product
        # Number of tokens whose logits are processed together. On a GPU that is a whole piece.
        self._rows = max(1, CACHED // len(self.weight)) if self.weight.is_cpu else PIECE
        dtype = accumulation_dtype(self.hidden)
        self._whole = self.trained and self.workspace.reserve(self.room * len(self.weight), dtype)
        if self._whole:
            window = len(self.hidden)
        elif self.trained:  # a unit may begin anywhere in a piece
            longest = max(b - a for a, b in pairwise(self.offsets))
            window = whole_pieces(longest, self.room) + self.piece
        else:
            window = self.piece if dtype == self.hidden.dtype else self._rows
        self._like = self.hidden.new_empty(0, dtype=dtype)
        self._q = self.workspace.take("residuals", (window, len(self.weight)), self._like)
        self._first = 0  # the token of Q's first row

    def pieces(self, start: int, stop: int) -> Iterator[slice]:
        """Yield the pieces that hold the tokens."""
        for first in range(start // self.piece * self.piece, stop, self.piece):
            yield slice(first, first + self.piece)

    def read(self, nll: Tensor, through: Tensor) -> None:
        """Write the losses (N,) and Q W (N, d), and keep what the norms of each unit will need."""
        q = self._q
        for piece in self.pieces(0, len(self.hidden)):
            if self.trained:
                if piece.stop - self._first > len(self._q):
                    # Units that are not whole yet move to the front of the window.
                    first = self.offsets[len(self._grams)] // self.piece * self.piece
                    held = self._q[first - self._first : piece.start - self._first].clone()
                    self._q[: len(held)] = held
                    self._first = first
                q = self._q[piece.start - self._first : piece.stop - self._first]
            nll[piece], low = self._residuals(piece, q)
            torch.mm(low, self.weight, out=through[piece])
            while self.trained and len(self._grams) < len(self.offsets) - 1:
                unit = len(self._grams)
                start, stop = self.offsets[unit : unit + 2]
                if stop > piece.stop:
                    break
                own = self._q[start - self._first : stop - self._first]  # (S, V), of one unit
                if self.scale.rows is not None:  # the weight's rows are Q's columns
                    own /= self.scale.rows
                small = len(own) <= self.hidden.shape[1]
                self._grams.append(own @ own.t() if small else squares(own[None]))
                if self.ids is not None:
                    self._at_ids.append(own.index_select(1, self.ids[unit]))  # (S, unit's tokens)

    def squared_norms(self) -> tuple[Tensor, Tensor]:
        """See `FormedUse`. Uses Gram matrices if they are fast and do not cancel."""
        found = []
        for unit, gram in enumerate(self._grams):
            h = self._weighted_hidden(unit)
            if gram.dim() == 1:  # 0 for now, so it is formed below
                size = gram * squares(h[None])
                found.append(torch.cat([torch.zeros_like(size), size]))
                continue
            hh = h @ h.t()  # (S, S)
            size = hh.trace().double() * gram.trace().double()
            found.append(torch.stack([(hh * gram).sum(dtype=torch.float64), size]))
        both = torch.stack(found)  # (B, 2): ‖G‖², and how much cancels
        (squared, size), dtype = both.unbind(1), accumulation_dtype(self.hidden)
        doubtful = cancels(squared, size, dtype)
        for unit in doubtful.nonzero().squeeze(1).tolist():  # one look for all: a GPU waits for it
            squared[unit] = squares(self.unit_gradients(unit, unit + 1))[0]
        return squared, rounding(size, torch.tensor(self.offsets).diff().to(size.device), dtype)

    def cross(self, embedding: EmbeddingUse) -> Tensor:
        """Return (B,) float64 ⟨gradient of this use, of the embedding's⟩: the tied table's term.

        Σ over the unit's tokens t and predicted tokens n of Q[n, id(t)] · (h[n] · b[t]).
        """
        dots = []
        for unit, q in enumerate(self._at_ids):
            products = self._weighted_hidden(unit) @ embedding.b[unit].to(q.dtype).t()
            dots.append((products * q).sum(dtype=torch.float64))
        return torch.stack(dots)

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `FormedUse`."""
        dtype = accumulation_dtype(self.hidden)
        out = torch.zeros(stop - start, *self.weight.shape, dtype=dtype, device=self.hidden.device)
        for total, unit in zip(out, range(start, stop), strict=True):
            q = self._again(*self.offsets[unit : unit + 2])
            torch.mm(q.t(), self._weighted_hidden(unit), out=total)  # (V, S) times (S, d)
        return out

    def add_to(self, total: Tensor, weights: Tensor, kept: Kept, beta: int = 1) -> None:
        """See `FormedUse`."""
        assert self.token_weights is not None
        lengths = torch.tensor(self.offsets, device=weights.device).diff()
        last = self.offsets[-1]
        per_token = weights.to(total.dtype).repeat_interleave(lengths)
        per_token = self.token_weights[:last] * per_token
        # Spans of tokens that cover exactly the units with a nonzero weight.
        if isinstance(kept, Tensor):
            spans = [self.offsets[unit : unit + 2] for unit in kept.tolist()]
        else:
            step = last if self._whole else self.piece
            spans = [[start, min(start + step, last)] for start in range(0, last, step)]
        for a, b in spans:
            h = self.scale.per_column(self.hidden[a:b].to(total.dtype)) * per_token[a:b, None]
            total.addmm_(self._again(a, b).t(), h, beta=beta)
            beta = 1

    def _residuals(self, piece: slice, q: Tensor) -> tuple[Tensor, Tensor]:
        """Write Q of a piece into `q`. Return its losses, and Q in the format of products.

        `q` is in the format of sums. If it has fewer rows, they are reused.
        """
        hidden, targets, low = self.hidden[piece], self.targets[piece], q
        if hidden.dtype != q.dtype:
            shape = (self.piece, len(self.weight))
            low = self.workspace.take("piece of logits", shape, hidden)
        torch.mm(hidden, self.weight.t(), out=low)
        losses = torch.empty(len(hidden), dtype=q.dtype, device=q.device)
        for start in range(0, len(hidden), self._rows):
            rows = slice(start, min(start + self._rows, len(hidden)))
            logits, wanted = low[rows], targets[rows, None]
            some = q[rows] if len(q) == len(hidden) else q[: rows.stop - start]
            # A few rows of logits become Q, in both formats.
            if some.dtype != logits.dtype:
                some.copy_(logits)
            of_target, largest = some.gather(1, wanted), some.amax(1, keepdim=True)
            torch.softmax(some, 1, out=some)
            losses[rows] = (largest - some.amax(1, keepdim=True).log() - of_target).squeeze(1)
            some.scatter_add_(1, wanted, torch.full_like(of_target, -1.0))
            if some.dtype != logits.dtype:
                logits.copy_(some)
        return losses, low

    def _again(self, start: int, stop: int) -> Tensor:
        """Return Q of some tokens, kept or recomputed by exactly the same products."""
        if self._whole:
            return self._q[start:stop]
        pieces = list(self.pieces(start, stop))
        first = pieces[0].start
        shape = (pieces[-1].stop - first, len(self.weight))
        q = self.workspace.take("residuals again", shape, self._like)
        for piece in pieces:
            self._residuals(piece, q[piece.start - first : piece.stop - first])
        q = q[start - first : stop - first]
        if self.scale.rows is not None:
            q /= self.scale.rows
        return q

    def _weighted_hidden(self, unit: int) -> Tensor:
        """Return (S, d) scaled inputs of a unit, times the weights of its tokens."""
        assert self.token_weights is not None
        tokens = slice(*self.offsets[unit : unit + 2])
        inputs = self.scale.per_column(self.hidden[tokens].to(self.token_weights.dtype))
        return inputs * self.token_weights[tokens, None]


ParameterUse = FormedUse | EmbeddingUse | MatrixUse | HeadUse


def squared_norms(uses: list[ParameterUse], numbers: int, units: int) -> Tensor:
    """Return (B,) float64 ‖gradientᵢ‖² of the sum of all uses of a parameter of `numbers`.

    It is rounded up, so it bounds what `add_to` adds. A table that is output layer and embedding
    has ‖H‖² + ‖E‖² + 2⟨H, E⟩. If H and E almost cancel, the sum loses its digits. A norm that is
    too small would be clipped to more than C. In that case, and for other parameters with several
    uses, the gradient is formed.
    """

    def formed(start: int, stop: int) -> Tensor:
        total = uses[0].unit_gradients(start, stop).clone()
        for use in uses[1:]:
            total += use.unit_gradients(start, stop)
        return squares(total)

    apart, rounded = torch.stack([torch.stack(use.squared_norms()) for use in uses]).sum(0)
    match uses:
        case [_]:
            squared = apart
        case [HeadUse() as head, EmbeddingUse() as embedding] if head.ids is not None:
            squared = apart + 2 * head.cross(embedding)
            for unit in (squared < LEAST_OF_TIED * apart).nonzero().squeeze(1).tolist():
                squared[unit] = formed(unit, unit + 1)[0]
        case _:
            step = max(1, BUFFER_NUMBERS // numbers)
            squared = torch.cat([formed(i, min(i + step, units)) for i in range(0, units, step)])
    return (squared.sqrt() + rounded.sqrt()).square()
