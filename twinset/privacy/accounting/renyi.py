"""Rényi ε at orders near 1, where the series of whole orders has nothing. Knows no event.

Large ε needs them: the best order falls like 1 + √(2 log(1/δ) / ε).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_RANGE = 40.0  # of the logarithm of q e^Y / (1 - q); beyond, one of the two is lost in rounding
_CELLS = 4000  # on each side of 0
_ROUNDING = (1e-11, 1e-14)  # of a log-moment: of the sums, and a share for its exponent
_LEAST, _MOST = 1e-6, 3.0  # order - 1


def renyi_epsilon(steps: Sequence[tuple[float, float, int]], delta: float) -> float:
    """Return an upper bound of ε at `delta`, for adding or removing one record.

    Guarantee: (ε, δ)-differential privacy of Poisson-subsampled Gaussian sums: Rényi divergences
    add up, removing a record has the larger one at every order (Mironov et al. 2019, theorem 5),
    and they convert by proposition 12 of Canonne et al. 2020. Every order gives a valid ε, so the
    search for the best one need not be exact; the moments are bounded from above (`log_moment`).

    Args:
        steps: (noise multiplier, sample rate, number) of each kind; a rate of 1 is a plain release.
        delta: δ.
    """
    from scipy.optimize import minimize_scalar

    def converted(log_excess: float) -> float:
        excess = math.exp(log_excess)
        moment = sum(count * log_moment(sigma, rate, 1 + excess) for sigma, rate, count in steps)
        return (moment - math.log(delta) - math.log1p(excess)) / excess + math.log(
            excess / (1 + excess)
        )

    bounds = (math.log(_LEAST), math.log(_MOST))
    found = minimize_scalar(converted, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return max(0.0, float(found.fun)) if math.isfinite(found.fun) else math.inf


def log_moment(sigma: float, rate: float, order: float) -> float:
    """Return an upper bound of log E[L^α], L the likelihood ratio of one step without the record.

    L = 1 - q + q e^Y with Y = x/σ - 1/2σ², x ~ N(0, 1). With u = log(q e^Y / (1 - q)), the parts

        u < 0:  (1 - q)^α E[(1 + e^u)^α]            for x ~ N(0, 1)
        u ≥ 0:  q^α e^(α(α - 1)/2σ²) E[(1 + e^-u)^α]  for x ~ N(α/σ, 1)

    have convex functions of x, between 1 and 2^α, in E. So the chord bounds them from above in each
    cell. The weight of its higher end is the mean place within the cell, which for the Gaussian
    density is no more than for an exponential one as steep as it is at its steepest:
    1 / (1 - e^-s) - 1 / s ≤ 1/2 + s/12; and no more than 1/2 where the density falls.

    Args:
        sigma: noise multiplier σ.
        rate: sample rate q.
        order: α > 1.
    """
    if rate == 1:
        return order * (order - 1) / (2 * sigma**2)
    centre = sigma * math.log((1 - rate) / rate) + 1 / (2 * sigma)  # x where u = 0
    lower = order * math.log1p(-rate) + _log_half(-centre, sigma, order)
    tilt = order * math.log(rate) + order * (order - 1) / (2 * sigma**2)
    upper = tilt + _log_half(centre - order / sigma, sigma, order)
    moment = float(np.logaddexp(lower, upper))
    return moment + _ROUNDING[0] + _ROUNDING[1] * (abs(tilt) + abs(moment))


def _log_half(start: float, sigma: float, order: float) -> float:
    """Return no less than log E[(1 + e^-(x - start)/σ)^α; x > start], x ~ N(0, 1)."""
    from scipy.special import ndtr

    depth = np.linspace(0, _RANGE, _CELLS + 1)  # (x - start) / σ
    ends = start + sigma * depth
    mass = np.append(ndtr(-ends[:-1]) - ndtr(-ends[1:]), ndtr(-ends[-1]))
    values = np.exp(order * np.log1p(np.exp(-depth)))
    steepness = np.maximum(ends[1:], 0) * np.diff(ends)
    high = np.append(np.minimum(0.5 + steepness / 12, 1), 1)
    low_values = np.append(values[1:], 0)
    with np.errstate(divide="ignore"):
        return float(np.log(np.maximum(mass, 0) @ (high * values + (1 - high) * low_values)))
