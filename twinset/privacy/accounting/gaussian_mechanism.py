"""One Gaussian release: δ, ε and σ of each other (Balle and Wang 2018, theorem 8), exact."""

from __future__ import annotations

import math
from collections.abc import Callable


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return δ(ε) of one Gaussian release, `mu` being sensitivity over noise."""
    from scipy.special import log_ndtr

    inside = math.exp(log_ndtr(mu / 2 - epsilon / mu))
    return inside - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε(δ) of the same, 0 where δ alone covers it."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return _smallest(lambda epsilon: gaussian_delta(mu, epsilon) <= delta)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest σ for one Gaussian release alone to be (ε, δ)-differentially private.

    >>> round(gaussian_noise_multiplier(1.0, 1e-5), 3)
    3.731
    """
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1):
        raise ValueError("epsilon must be finite and above 0, delta between 0 and 1")
    return _smallest(lambda sigma: gaussian_delta(1 / sigma, epsilon) <= delta)


def _smallest(holds: Callable[[float], bool]) -> float:
    """Return a point where `holds`, within 1e-12 (relative) of the smallest positive one."""
    high = 1.0
    while not holds(high):
        high *= 2
    low = high / 2
    while holds(low):
        high, low = low, low / 2
    while high > low * (1 + 1e-12):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
