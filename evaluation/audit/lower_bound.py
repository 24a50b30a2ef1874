"""What observations of a mechanism prove about its ε, from below."""

from __future__ import annotations

import numpy as np
from scipy.stats import beta

CONFIDENCE = 0.95
CANDIDATES = 400  # thresholds tried on the first half


def epsilon_lower_bound(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest ε that the observations refute; 0 where they refute none.

    An (ε, δ)-private mechanism has P(S) ≤ e^ε Q(S) + δ for both orders of the neighbours and every
    set S of outcomes. S is "the score is above a threshold", or "below"; the first half of the
    observations chooses set and order, the second half gives exact bounds of both probabilities
    (Clopper and Pearson 1934). So with probability `confidence` ε is at least what is returned.

    Args:
        present: (n,) scores of outputs with the record.
        absent: (m,) the same without it.
        delta: δ.
        confidence: of the bound.

    >>> rng = np.random.default_rng(0)
    >>> bound = epsilon_lower_bound(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000), 0.01)
    >>> 1.5 < bound < 2.3  # the truth is 2.3
    True
    """
    (present, judged_present), (absent, judged_absent) = (
        np.array_split(np.asarray(scores, float), 2) for scores in (present, absent)
    )
    thresholds = np.quantile(np.concatenate([present, absent]), np.linspace(0, 1, CANDIDATES))
    bounds = _bounds(present, absent, thresholds, delta, confidence)
    test, place = np.unravel_index(np.argmax(bounds), bounds.shape)
    chosen = thresholds[place : place + 1]
    final = _bounds(judged_present, judged_absent, chosen, delta, confidence)
    return max(0.0, float(final[test, 0]))


def _bounds(
    present: np.ndarray, absent: np.ndarray, thresholds: np.ndarray, delta: float, confidence: float
) -> np.ndarray:
    """(4, number of thresholds): above and below it, the record present and absent."""
    above = [_count_above(scores, thresholds) for scores in (present, absent)]
    sizes = [len(present), len(absent)]
    below = [size - count for size, count in zip(sizes, above, strict=True)]
    each = (1 - confidence) / 2  # one half for either probability
    rows = []
    for counts in (above, below):
        for p, q in ((0, 1), (1, 0)):
            least = beta.ppf(each, counts[p], sizes[p] - counts[p] + 1)
            most = beta.ppf(1 - each, counts[q] + 1, sizes[q] - counts[q])
            excess = np.nan_to_num(least) - delta  # of no observation at all the bound is 0
            most = np.where(counts[q] == sizes[q], 1.0, most)
            rows.append(np.log(np.maximum(excess, 1e-300) / most))
    return np.array(rows)


def _count_above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")
