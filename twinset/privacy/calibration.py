"""From ε to the noise multiplier σ that keeps within it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from twinset.privacy.accountant import epsilon, rough_epsilon
from twinset.privacy.events import Event, SubsampledGaussian
from twinset.privacy.rounding import up_decimals

Spent = Callable[[float], float]  # σ → ε

_MULTIPLIER_ERROR = 5e-4
_LARGEST_MULTIPLIER = 1e6


def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps: int,
    others: Sequence[Event] = (),
) -> float:
    """Return the smallest σ (to 0.1 %, on the safe side) that keeps all events within the target.

    Args:
        target_epsilon: ε of everything, `others` included.
        target_delta: δ of the same.
        sample_rate: q of the subsampled Gaussian whose σ is sought.
        steps: its steps.
        others: what else is released.

    Raises:
        ValueError: no σ reaches the target; says what is attainable.
    """
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise ValueError(f"target_epsilon must be finite and above 0, not {target_epsilon}")

    def spent(multiplier: float) -> float:
        step = SubsampledGaussian(multiplier, sample_rate, steps)
        return epsilon([*others, step], target_delta)

    def rough(multiplier: float) -> float:
        step = SubsampledGaussian(multiplier, sample_rate, steps)
        return rough_epsilon([*others, step], target_delta)

    floor = spent(_LARGEST_MULTIPLIER)
    if floor > target_epsilon:
        raise ValueError(
            f"no noise reaches epsilon {target_epsilon:g} at delta {target_delta:g}: "
            f"the smallest attainable, with what else is released, is {up_decimals(floor)}"
        )
    return _smallest_multiplier(spent, rough, target_epsilon)


def _smallest_multiplier(spent: Spent, rough: Spent, target: float) -> float:
    """Find σ roughly, and close in from there, ending on the safe side."""
    sigma = _rough_multiplier(rough, target)
    slope = math.log(max(rough(1.05 * sigma), 1e-9) / max(rough(sigma), 1e-9)) / math.log(1.05)
    low, high = 0.0, math.inf  # too little noise, enough noise
    while high > low * (1 + _MULTIPLIER_ERROR):
        found = max(spent(sigma), 1e-9)
        low, high = (low, sigma) if found <= target else (sigma, high)
        if 1 - _MULTIPLIER_ERROR < found / target <= 1:
            break
        aim = math.log(found / (target * (1 - _MULTIPLIER_ERROR / 2))) / -min(slope, -0.1)
        sigma = _within(low, high, sigma * math.exp(aim))
    return high


def _rough_multiplier(rough: Spent, target: float) -> float:
    """Bracket σ by doubling and halve the bracket on a logarithmic scale."""
    from scipy.optimize import brentq

    high = 1.0
    while rough(high) > target:
        high *= 2
    low = high / 2
    while rough(low) <= target:
        high, low = low, low / 2

    def excess(log_sigma: float) -> float:
        return math.log(max(rough(math.exp(log_sigma)), 1e-9) / target)

    return math.exp(brentq(excess, math.log(low), math.log(high), xtol=3e-3))


def _within(low: float, high: float, sigma: float) -> float:
    """Return σ if it lies well inside the bracket, else a point that does."""
    if math.isinf(high):
        return max(sigma, low * (1 + _MULTIPLIER_ERROR))
    if low == 0:
        return min(sigma, high / (1 + _MULTIPLIER_ERROR))
    return sigma if low < sigma < high else math.sqrt(low * high)
