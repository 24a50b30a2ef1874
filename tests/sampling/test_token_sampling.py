"""The draw of one token: which tokens may be drawn, how often, and by whose stream."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from twinset.config import SamplingConfig
from twinset.sampling import token_sampling as drawing
from twinset.sampling.token_sampling import guided, next_tokens


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """(R, V) exact distribution: the shortest run of likeliest tokens that reaches p."""
    probabilities, order = logits.double().softmax(1).sort(1, descending=True)
    size = (probabilities.cumsum(1) < top_p).sum(1, keepdim=True) + 1
    kept = probabilities * (torch.arange(logits.shape[1]) < size)
    found = torch.zeros_like(kept).scatter_(1, order, kept)
    return found / found.sum(1, keepdim=True)


def chi_square_p(drawn: Tensor, expected: Tensor) -> float:
    """Tokens expected fewer than five times are counted together."""
    observed, counts = torch.bincount(drawn, minlength=len(expected)), expected * len(drawn)
    assert not observed[expected == 0].any()
    often = counts >= 5
    cells = ([*x[often].tolist(), float(x[~often].sum())] for x in (observed, counts))
    found, wanted = (torch.tensor(x)[: None if counts[~often].any() else -1] for x in cells)
    return 1.0 if len(wanted) == 1 else chisquare(found, wanted * found.sum() / wanted.sum()).pvalue


def _logits(rows: int, size: int, spread: float) -> Tensor:
    generator = torch.Generator().manual_seed(int(10 * spread))
    return spread * torch.randn(rows, size, generator=generator)


@pytest.mark.parametrize(
    ("config", "exact"),
    [
        (SamplingConfig(top_p=1.0, temperature=1.0), lambda logits: logits.double().softmax(1)),
        (SamplingConfig(top_p=0.8, temperature=1.0), lambda logits: nucleus(logits, 0.8)),
        (SamplingConfig(top_p=0.8, temperature=0.5), lambda logits: nucleus(logits / 0.5, 0.8)),
    ],
)
def test_draws_follow_the_exact_distribution(config, exact):
    logits = _logits(1, 40, 1.5)
    for factor in (1.0, 1.1):  # the second is the control
        rows = (factor * logits).expand(20_000, -1)
        drawn = next_tokens(rows, config, torch.Generator().manual_seed(0))
        fits = chi_square_p(drawn, exact(logits)[0])
        assert fits > 1e-3 if factor == 1.0 else fits < 1e-6


def test_rows_of_one_batch_keep_to_their_own_distributions():
    """Peaked, flat, and one token that has it all; redraws go back to their own rows."""
    logits = torch.stack([_logits(1, 200, 0.1)[0], _logits(1, 200, 3.0)[0], torch.zeros(200)])
    logits[2, 5] = 50.0
    generator = torch.Generator().manual_seed(0)
    config = SamplingConfig(top_p=0.7, temperature=1.0)
    drawn = torch.stack([next_tokens(logits, config, generator) for _ in range(2000)])
    for row, expected in enumerate(nucleus(logits, 0.7)):
        assert chi_square_p(drawn[:, row], expected) > 1e-3
    assert (drawn[:, 2] == 5).all()


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_guidance_weighs_plausible_tokens_by_the_ratio_of_both_prompts(strength):
    own, wrong = _logits(4, 60, 3.0), _logits(8, 60, 3.0)[4:]
    p, q = own.double().softmax(1), wrong.double().softmax(1)
    expected = p * (p / q) ** strength * (p >= drawing.PLAUSIBLE * p.max(1, keepdim=True).values)
    found = guided(own, wrong, strength).double().softmax(1)
    torch.testing.assert_close(found, expected / expected.sum(1, keepdim=True), rtol=1e-4, atol=0)
    assert (found == 0).any()  # an implausible token stays so, whatever the wrong prompt says
