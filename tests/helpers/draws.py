"""Rows behind prompts, and whether drawn tokens follow the distribution that top-p should give."""

from collections import deque

import torch
from torch import Tensor

from twinset.config import SamplingConfig
from twinset.sampling.decoding import Request, decode


def continue_prompts(
    model, prompts, end, longest, config: SamplingConfig, seed: int = 0, against=None, **request
) -> list[list[int]]:
    """Decode a row behind each prompt, guided away from those of `against`."""
    pairs = zip(prompts, against, strict=True) if against else zip(prompts, strict=True)
    waiting = deque(Request(i, tuple(map(tuple, p)), **request) for i, p in enumerate(pairs))
    generator = torch.Generator().manual_seed(seed)
    written = dict(decode(model, waiting, end, longest, config, generator))
    return [written[i] for i in range(len(prompts))]


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
