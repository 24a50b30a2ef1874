"""The output layer and its loss: token negative log-likelihoods without a copy of the logits.

With Q = softmax(h Wᵀ) - onehot(target), the gradient of token n's loss is Q[n] W with respect to
h[n] and Q[n]ᵀ h[n] with respect to W. Both are linear in whatever weight the token's loss later
gets, so Q W is made while a chunk of logits is at hand, and Q is kept only where W is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twinset.privacy.clipping.uses import accumulation_dtype

CHUNK_TOKENS = 256  # 50 MB of float32 logits for a vocabulary of 49,152


class TokenNLL(torch.autograd.Function):
    """nll[n] = logsumexp(h[n] Wᵀ) - h[n] · W[target[n]], for N tokens."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, kept: HeadUse | None
    ) -> Tensor:
        """Return (N,) losses; `hidden` is (N, d), `weight` (V, d); fills `kept` with Q."""
        dtype = accumulation_dtype(hidden)
        nll = torch.empty(len(targets), dtype=dtype, device=hidden.device)
        through = torch.empty_like(hidden)
        for start in range(0, len(targets), CHUNK_TOKENS):
            chunk = slice(start, start + CHUNK_TOKENS)
            target = targets[chunk, None]
            logits = (hidden[chunk] @ weight.t()).to(dtype)
            log_z = logits.logsumexp(1, keepdim=True)
            nll[chunk] = (log_z - logits.gather(1, target)).squeeze(1)
            residual = logits.sub_(log_z).exp_()
            residual.scatter_add_(1, target, torch.full_like(log_z, -1.0))
            through[chunk] = residual.to(weight.dtype) @ weight
            if kept is not None:
                kept.residuals.append(residual)
        ctx.through, ctx.kept = through, kept
        return nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of `hidden`; the weight's own gradient is `HeadUse`'s."""
        token_weights = grads[0].detach()
        if ctx.kept is not None:
            ctx.kept.token_weights = token_weights
        return ctx.through * token_weights.to(ctx.through.dtype)[:, None], None, None, None


@dataclass
class HeadUse:
    """The output layer's use of its weight (V, d). Unit i's tokens: offsets[i] … offsets[i+1].

    Args:
        hidden: (N, d) inputs.
        offsets: B + 1 token offsets.
        residuals: Q, in chunks of at most `CHUNK_TOKENS` rows.
        token_weights: (N,) gradient of the total loss with respect to each token's loss.
    """

    hidden: Tensor
    offsets: list[int]
    residuals: list[Tensor]
    token_weights: Tensor | None = None

    def _gradient(self, start: int, stop: int, weights: Tensor) -> Tensor:
        """Return Σ_n weights[n] · Q[n]ᵀ h[n] over tokens start … stop-1, (V, d)."""
        out = None
        while start < stop:
            chunk, first = divmod(start, CHUNK_TOKENS)
            last = min(first + stop - start, CHUNK_TOKENS)
            q = self.residuals[chunk][first:last]
            n = last - first
            h = self.hidden[start : start + n].to(q.dtype) * weights[start : start + n, None]
            out = q.t() @ h if out is None else out.addmm_(q.t(), h)
            start += n
        assert out is not None  # Sequences guarantees a token with loss in every row
        return out

    def unit_gradients(self, start: int, stop: int) -> Tensor:
        """See `uses.Use`."""
        assert self.token_weights is not None
        spans = zip(self.offsets[start:stop], self.offsets[start + 1 : stop + 1], strict=True)
        return torch.stack([self._gradient(a, b, self.token_weights) for a, b in spans])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See `uses.Use`."""
        assert self.token_weights is not None
        lengths = torch.tensor(self.offsets, device=weights.device).diff()
        per_token = weights.to(self.token_weights.dtype).repeat_interleave(lengths)
        if bool((weights != 0).all()):
            return self._gradient(0, self.offsets[-1], self.token_weights * per_token)
        parts = [
            self._gradient(a, b, self.token_weights * per_token)
            for a, b, w in zip(self.offsets, self.offsets[1:], weights.tolist(), strict=False)
            if w
        ]
        return torch.stack(parts).sum(0)
