"""Exposure where the secret could be too much to score all of it: a skew-normal through a sample.

Source: Carlini et al. 2019, "The Secret Sharer", section 4.3: the losses of all candidates follow a
skew-normal distribution; its tail below the secret's loss, fitted to a random sample, stands for
rank / |R|. What the tail really is, a sample cannot tell: where candidates come in kinds that the
model likes differently, compare with secrets that it never saw, not with theory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evaluation.leakage.canaries import Canary
from evaluation.leakage.exposure import Exposure, candidate_losses, expected_rank

CANDIDATES = 2000


def extrapolated_exposure(
    model: Any,
    tokenizer: Any,
    prompt: Sequence[int],
    canary: Canary,
    *,
    seed: int,
    candidates: int = CANDIDATES,
) -> Exposure:
    """Estimate what `exposure` computes from a random sample of so many other secrets."""
    space = canary.format.space
    texts = [canary.text, *map(canary.format.text, sampled_secrets(canary, candidates, seed))]
    losses = candidate_losses(model, tokenizer, prompt, texts)
    rank, method = extrapolated_rank(losses[1:], float(losses[0]), space)
    return Exposure(canary, rank, space, method)


def sampled_secrets(canary: Canary, many: int, seed: int) -> list[int]:
    """Return the numbers of random secrets, with replacement, none of which is the canary's."""
    drawn = np.random.default_rng(seed).integers(canary.format.space - 1, size=many)
    others: list[int] = (drawn + (drawn >= canary.secret)).tolist()
    return others


def extrapolated_rank(sample: np.ndarray, loss: float, space: int) -> tuple[float, str]:
    """Return a secret's rank among |R| candidates, 1 … |R|, and how it was found.

    A sample that no curve can be fitted to, for its losses are all one or some are no numbers, as
    of a model that diverged, gives the rank within the sample, scaled to the space.

    Args:
        sample: losses of random candidates.
        loss: of the secret.
        space: |R|.
    """
    from scipy.stats import skewnorm

    losses = np.append(loss, sample)
    if not np.isfinite(losses).all() or np.ptp(sample) < 1e-9:
        rank = expected_rank(losses, 0) / len(losses) * space
        return max(1.0, rank), f"rank among {len(sample)} candidates"
    tail = float(skewnorm.cdf(loss, *skewnorm.fit(sample)))
    return min(max(1.0, tail * space), float(space)), f"skew-normal, {len(sample)} candidates"
