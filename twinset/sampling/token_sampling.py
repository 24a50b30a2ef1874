"""Logits → one token per row: guidance, temperature, and the set of allowed tokens.

Knows nothing of prompts, caches or texts. Nothing here sorts the vocabulary. A full sort costs as
much per token as the model itself, and a sort of the likeliest few fails on flat distributions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twinset.config import SamplingConfig

CACHED = 1 << 19  # float32 numbers that stay in a processor's cache from one pass to the next
NO_TOKEN = -1
PLAUSIBLE = 0.01  # of the likeliest token's probability (guidance lifts nothing below it)


def drawn_tokens(
    own: Tensor,
    wrong: Tensor | None,
    config: SamplingConfig,
    generator: torch.Generator,
    bias: Tensor | None = None,
    end: int = NO_TOKEN,
) -> Tensor:
    """Draw one token per row: (R, V) logits → (R,) ids.

    `own` and `wrong` are logits after each row's own prompt and after a wrong one, if there is
    guidance. `bias` (R, V) is added to them in float32, except for the `end` of a text.
    """
    # A few rows at a time: each is passed over a dozen times, and had better stay in the cache.
    step = max(1, CACHED // own.shape[1]) if own.is_cpu else len(own)
    drawn, strength = [], config.guidance or 0.0
    for start in range(0, len(own), step):
        rows = slice(start, start + step)
        logits = own[rows] if wrong is None else guided(own[rows], wrong[rows], strength)
        if bias is not None:
            changed = logits + bias[rows]
            # The end stays as likely as it was before. Otherwise words that became likelier would
            # crowd it out, and rows would grow longer.
            if end != NO_TOKEN:
                before, after = (  # logarithm (R,) of the mass of all other tokens
                    torch.logaddexp(
                        x[:, :end].float().logsumexp(1), x[:, end + 1 :].float().logsumexp(1)
                    )
                    for x in (logits, changed)
                )
                # it may be alone
                changed[:, end] = logits[:, end] + (after - before).nan_to_num(0.0)
            logits = changed
        drawn.append(next_tokens(logits, config, generator))
    return torch.cat(drawn)


def guided(own: Tensor, wrong: Tensor, strength: float) -> Tensor:
    """Press rows towards their own prompt: logits of p(own) · (p(own) / p(wrong))^γ.

    Classifier-free guidance (Sanchez et al. 2023, eq. 7 with γ + 1 for their γ) among the tokens
    that the own prompt finds plausible, as in contrastive decoding (Li et al. 2022).
    `own` and `wrong` are (R, V), and γ ≥ 0 is the strength.
    """
    own = own.to(torch.float32, copy=True)  # and changed in place: fresh memory costs time
    implausible = own < own.max(1, keepdim=True).values + math.log(PLAUSIBLE)
    own.mul_(1 + strength).sub_(wrong, alpha=strength)
    return own.masked_fill_(implausible, -math.inf)


def next_tokens(logits: Tensor, config: SamplingConfig, generator: torch.Generator) -> Tensor:
    """Draw one token per row: (R, V) logits → (R,) ids.

    Top-p (Holtzman et al. 2020) keeps the likeliest tokens until their probabilities reach the
    mass. Tokens that tie with the last of them are kept too, so no order among ties is invented.

    It draws by rejection. A token drawn from all is kept if the tokens that rank higher have less
    than the mass. If not, all kept tokens rank higher than it, and the next draw is among those
    that do. A draw is rejected with probability 1 - mass at most, later ones less and less often.
    """
    rank = probabilities = token_probabilities(logits, config)
    found = drawn = _any_token(probabilities, generator)
    rows = torch.arange(len(found), device=found.device)  # those that are drawn again
    while config.top_p < 1:
        higher = probabilities * (rank > rank.gather(1, drawn[:, None]))  # (R, V)
        above = higher.sum(1)
        outside = (above >= config.top_p) & (above > 0)  # nothing ranks higher than the first
        if not bool(outside.any()):
            break
        rows, rank, probabilities = rows[outside], rank[outside], higher[outside]
        drawn = _any_token(probabilities, generator)
        found[rows] = drawn
    return found


def token_probabilities(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Return the (R, V) probabilities of (R, V) logits, in float32, before any token is left out.

    Too extreme a temperature or guidance makes them NaN.
    """
    if config.temperature != 1:
        logits = logits.float() / config.temperature
    return logits.softmax(1, dtype=torch.float32)


def _any_token(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw by the inverse of the distribution function: (R, V) weights → (R,) ids.

    This uses one number per row, where `torch.multinomial` uses one per token. Sums must never
    fall, so that a token of weight zero has no room. A GPU adds in parallel and needs float64 for
    that.
    """
    reached = weights.cumsum(1, dtype=torch.float32 if weights.is_cpu else torch.float64)
    total = reached[:, -1:]
    draw = torch.rand(
        len(weights), 1, dtype=torch.float64, device=generator.device, generator=generator
    )
    level = (draw.to(weights.device) * total).to(reached.dtype)
    level = level.minimum(total.nextafter(torch.zeros_like(total)))  # it may be rounded up
    return torch.searchsorted(reached, level, right=True).squeeze(1)
