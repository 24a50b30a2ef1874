"""Whether drawn tokens follow a distribution, and the one that top-p should give."""

import torch
from torch import Tensor


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """(R, V) exact distribution: the shortest run of likeliest tokens that reaches p."""
    probabilities, order = logits.double().softmax(1).sort(1, descending=True)
    size = (probabilities.cumsum(1) < top_p).sum(1, keepdim=True) + 1
    kept = probabilities * (torch.arange(logits.shape[1]) < size)
    found = torch.zeros_like(kept).scatter_(1, order, kept)
    return found / found.sum(1, keepdim=True)


def chi_square_p(drawn: Tensor, expected: Tensor) -> float:
    """Tokens expected fewer than five times are counted together."""
    from scipy.stats import chisquare

    observed = torch.bincount(drawn, minlength=len(expected)).double()
    assert not observed[expected == 0].any()
    counts = expected * len(drawn)
    rare = (counts < 5) & (counts > 0)
    pooled = [(observed[rare].sum(), counts[rare].sum())] if bool(rare.any()) else []
    cells = [*zip(observed[counts >= 5], counts[counts >= 5], strict=True), *pooled]
    found, wanted = (torch.tensor(x) for x in zip(*cells, strict=True))
    if len(wanted) == 1:
        return 1.0
    return chisquare(found, wanted * found.sum() / wanted.sum()).pvalue
