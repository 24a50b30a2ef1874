"""From ε to the noise multiplier σ that keeps within it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import Event, SubsampledGaussian
from twinset.privacy.accounting.rounding import up_decimals

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

    floor = spent(_LARGEST_MULTIPLIER)
    if floor > target_epsilon:
        raise ValueError(
            f"no noise reaches epsilon {target_epsilon:g} at delta {target_delta:g}: "
            f"the smallest attainable, with what else is released, is {up_decimals(floor)}"
        )
    return _smallest_multiplier(spent, target_epsilon)


def _smallest_multiplier(spent: Spent, target: float) -> float:
    """Bracket σ by doubling, close in on a logarithmic scale, and end on the safe side."""
    from scipy.optimize import brentq

    high = 1.0
    while spent(high) > target:
        high *= 2
    low = high / 2
    while spent(low) <= target:
        high, low = low, low / 2

    def excess(log_sigma: float) -> float:
        return math.log(max(spent(math.exp(log_sigma)), 1e-9) / target)

    found = brentq(excess, math.log(low), math.log(high), xtol=_MULTIPLIER_ERROR / 4)
    sigma = math.exp(found)
    while spent(sigma) > target:
        sigma *= 1 + _MULTIPLIER_ERROR / 2
    return sigma
