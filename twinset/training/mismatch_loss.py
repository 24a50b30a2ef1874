"""The prompt-mismatch loss: a text should be likely under its own prompt, not under others.

Source: Mattern et al. 2022, "Differentially Private Language Models for Secure Data Sharing". The
forms here are of one record alone; the authors' code subtracts a batch mean, which would mix
records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus

from twinset.config import MismatchForm


@dataclass(frozen=True)
class MismatchLoss:
    """ℓ = NLL(x | right) + λ · penalty, as a function of one record's K mean token losses.

    published: penalty = -mean_w NLL(x | w), unbounded below.
    bounded: penalty = mean_w softplus(n · (NLL(x | right) - NLL(x | w))) / n with n tokens. Times
    n, each term is -log of the probability that the text belongs to its own prompt rather than to
    w, were both equally likely before: zero once the text tells them apart, so nothing runs away.

    Args:
        weight: λ ≥ 0; 0 leaves the plain likelihood.
        form: which penalty.
    """

    weight: float
    form: MismatchForm

    def __call__(self, means: Tensor, counts: Tensor) -> Tensor:
        """(B, K) mean losses, right prompt first, and (B, K) token counts → (B,) losses."""
        right = means[:, 0]
        if means.shape[1] == 1 or self.weight == 0:
            return right
        if self.form == "published":
            return right - self.weight * means[:, 1:].mean(1)
        tokens = counts[:, :1]
        gap = softplus(tokens * (means[:, :1] - means[:, 1:])) / tokens
        return right + self.weight * gap.mean(1)


def summed(loss: MismatchLoss, records: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of units of several records, the sum of their losses.

    Args:
        loss: of one record.
        records: m, of each unit; (B, m·K) means and counts then have record by record its K.
    """

    def of_unit(means: Tensor, counts: Tensor) -> Tensor:
        sequences = means.shape[1] // records
        each = loss(means.reshape(-1, sequences), counts.reshape(-1, sequences))
        return each.view(-1, records).sum(1)

    return of_unit
