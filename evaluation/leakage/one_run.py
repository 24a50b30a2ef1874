"""A lower bound of ε from one training run, with canaries that a coin put in or left out.

Source: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2
and corollary 5.4. Knows nothing of canaries' texts and of how they are scored.

What must hold, or the bound is none:

- Neighbouring tables differ by one canary: one record added or removed. So a canary is one record,
  planted once, and a unit of the guarantee under test; one that is copied, or that shares an owner
  with another, would be protected by less than was claimed.
- Each canary is in the table with probability 1/2, independently of all others and of all else
  (`include`), whoever trains not choosing them.
- The scores are computed from what the mechanism released and from the canaries themselves, never
  from who is included. They may be as dependent on each other as they like.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from ..findings import Measured, Place, Score

CONFIDENCE = 0.95
BOUND = "lower bound of ε"
PRECISION = 1e-6  # of the bisection
FEWEST_GUESSES = 8  # fewer prove little even where all are right


@dataclass(frozen=True)
class OneRun:
    """What one run proves."""

    epsilon: float  # with the stated confidence ε is at least this
    canaries: int  # m, of which each was included with probability 1/2
    guesses: int  # r, of those guesses that prove most
    correct: int  # v, how many of these were right
    tried: tuple[int, ...]  # numbers of guesses that were tried, among which the level was divided
    delta: float  # δ at which ε is bounded
    confidence: float = CONFIDENCE

    def measured(self, place: Place | None = None) -> Measured:
        """Return the bound as a score: nothing is known above it, so its interval is open."""
        score = Score(
            BOUND, self.epsilon, self.epsilon, math.inf, "minimise", 0.0, math.inf, self.canaries
        )
        return Measured("leakage", score, {"attack": "one run", "sees": "model", **(place or {})})


def include(m: int) -> np.ndarray:
    """Draw which canaries go into the table: (m,) bool, each with probability 1/2.

    The coins are the operating system's. A seed would draw the same ones in every audit, and the
    confidence is a statement about these coins.
    """
    return np.array([secrets.randbits(1) for _ in range(m)], dtype=bool)


def one_run_audit(
    scores: np.ndarray,
    included: np.ndarray,
    delta: float,
    guesses: int | Sequence[int] | None = None,
) -> OneRun:
    """Guess who is included by the scores, and bound ε by how many guesses are right.

    Of r guesses, half say that the highest scores are included, half that the lowest are not; all
    others abstain. Canaries of one score are taken in their own order.

    One number of guesses, fixed before the scores are known, needs no correction. Of several the
    best is taken, and each is tested at (1 - confidence) / number of them. For what the bound
    guarantees see `twinset.privacy.statement.theorems`, ONE_RUN_AUDIT.

    Args:
        scores: (m,) higher where a canary looks included.
        included: (m,) which were, drawn by `include`.
        delta: δ of the guarantee under test.
        guesses: r, or several, chosen without a look at the scores. None halves m again and again.

    Raises:
        ValueError: lengths differ, there is no canary, or a number of guesses is not in 1 … m.
    """
    scores, included = np.asarray(scores, float), np.asarray(included, bool)
    m = len(scores)
    if scores.shape != included.shape or m == 0:
        raise ValueError(f"{m} scores of {len(included)} canaries")
    if guesses is None:
        # m, m/2, m/4 …, as long as they can prove something
        guesses = [m, *(m >> k for k in range(1, m.bit_length()) if m >> k >= FEWEST_GUESSES)]
    tried = (guesses,) if isinstance(guesses, int) else tuple(dict.fromkeys(guesses))
    if not tried or not all(1 <= r <= m for r in tried):
        raise ValueError(f"numbers of guesses are within 1 … {m}")
    each = 1 - (1 - CONFIDENCE) / len(tried)
    order = np.argsort(-scores, kind="stable")
    ranked = included[order]  # by falling score
    correct = [int(ranked[: r - r // 2].sum() + (~ranked[m - r // 2 :]).sum()) for r in tried]
    bounds = [
        epsilon_lower_bound(r, v, m, delta, each) for r, v in zip(tried, correct, strict=True)
    ]
    best = int(np.argmax(bounds))
    return OneRun(bounds[best], m, tried[best], correct[best], tried, delta)


def epsilon_lower_bound(
    guesses: int, correct: int, m: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest ε that so many correct guesses refute, or 0 where they refute none.

    What refutes (ε, δ) refutes every smaller ε at that δ too. The search is a bisection that stops
    on the safe side. Abstentions are no guesses, and m counts all canaries.

    Raises:
        ValueError: not 0 ≤ v ≤ r ≤ m, or δ or the confidence is no probability.

    >>> round(epsilon_lower_bound(100, 75, 1000, 1e-4), 3)  # as in the paper's appendix D
    0.673
    """
    if not (0 <= correct <= guesses <= m and 0 <= delta <= 1 and 0 < confidence < 1):
        raise ValueError(f"{correct} of {guesses} of {m}, δ = {delta}, confidence {confidence}")

    def refuted(epsilon: float) -> bool:
        return p_value(guesses, correct, m, epsilon, delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):  # doubles until the bound lies between
        low, high = high, 2 * high
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def p_value(guesses: int, correct: int, m: int, epsilon: float, delta: float) -> float:
    """Return the most that P(at least v guesses are correct) can be under (ε, δ)-DP.

    Corollary 5.4: with W ~ Binomial(r, e^ε / (1 + e^ε)) it is at most
    P(W ≥ v) + 2 m δ · max over i = 1 … v of P(v > W ≥ v - i) / i. All m canaries count in the
    second term, also those of which nothing was guessed.
    """
    chance = float(expit(epsilon))  # with which randomised response tells the truth
    p = float(binom.sf(correct - 1, guesses, chance))
    if delta > 0 and correct > 0:
        below = binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance).cumsum()
        p += 2 * m * delta * float((below / np.arange(1, correct + 1)).max())
    return min(1.0, p)
