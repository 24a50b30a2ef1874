"""ε by numerical composition: the distribution of the privacy loss on a grid, from above.

Knows no event. It computes with losses, never with their exponentials, so that ε may be large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Step = tuple[float, float, int]  # noise multiplier, sample rate, number

_UNLIKELY = 1e-8  # share of δ for losses above the grid, and again for sums above the window
_POINTS = 1 << 20  # of the grid between 0 and a known bound of ε, at most four times as many
_FINEST = 5e-4  # of that bound: no finer grid
_EXCESS = 0.005  # T h² over that bound; a grid of h adds at most h² / 8 to the mean loss of a step
# T h² log(1 / δ) over that bound's square: h adds at most h² / 4 to the variance of a step's loss,
# and of a sum like a normal one ε² is about 2 log(1 / δ) variances.
_SPREAD = 0.005
_FLOAT = 5e-16  # relative error of what is computed in double precision
# Of a transform to the power of the steps, over steps, log2 of its size and the root of size times
# squared masses: 25 times the most that tails of binomial distributions were seen to be off by.
_TRANSFORM_ERROR = 1e-17
_EPSILON_ERROR = 1e-9  # relative
_RATES = (0.1, 1e6)  # of Chernoff's bound, over a known bound of ε
_ROUGHLY = {"xatol": 0.1}


def composed_epsilon(steps: Sequence[Step], delta: float, bound: float) -> float:
    """Return an upper bound of ε at `delta`, for adding or removing one record, or ∞.

    Guarantee: (ε, δ)-differential privacy of Poisson-subsampled Gaussian sums. Of each step the
    pair (1 - q) N(0, σ²) + q N(1, σ²) and N(0, σ²) dominates, in one order for removing a record
    and in the other for adding one (Zhu, Dong and Wang 2022, theorem 11); both are composed.
    Let an output have loss l between the grid points a and b. It is replaced by an a or a b, at
    random, so that both distributions keep their masses; who sees the a or b can make up the
    output from it, so the attacker loses nothing ("connect the dots", Doroshenko et al. 2022).
    Losses below the grid are rounded up. Losses above it, sums above the window (Chernoff's bound)
    and the rounding of the Fourier transforms are charged to δ. Sums below the window come out at
    its upper end, where they count for more.

    Args:
        steps: of each kind; a rate of 1 is a plain release.
        delta: δ.
        bound: a known upper bound of ε. The grid is chosen by it; a wrong one makes ε no smaller
            than it is.
    """
    try:
        with np.errstate(divide="ignore", under="ignore", over="raise", invalid="raise"):
            return max(_one_way(steps, delta, bound, removed) for removed in (True, False))
    except (ArithmeticError, MemoryError, ValueError):
        return math.inf


@dataclass(frozen=True)
class _Losses:
    """The losses of one step.

    Args:
        least: loss.
        width: from one to the next.
        masses: (n,) probability of each.
        above: probability of those above the last.
        count: steps like this.
    """

    least: float
    width: float
    masses: Array
    above: float
    count: int

    def log_moment(self, rate: float) -> float:
        """Return log E[e^(rate × sum of all steps)], but for those above the last."""
        exponents = np.log(self.masses) + rate * self.width * np.arange(len(self.masses))
        largest = float(exponents.max())  # taken out, so that no power of e overflows
        moment = largest + math.log(float(np.exp(exponents - largest).sum()))
        return self.count * (rate * self.least + moment)


def _one_way(steps: Sequence[Step], delta: float, bound: float, removed: bool) -> float:
    """Return ε for removing a record, or for adding one.

    The order: a grid, the losses of each kind of step on it, a window that their sum hardly ever
    leaves, the sum by Fourier transforms, and ε of that.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    count, unlikely = sum(count for _, _, count in steps), _UNLIKELY * delta
    mean, spread = _EXCESS * bound, _SPREAD * bound**2 / -math.log(delta)
    finest = min(math.sqrt(min(mean, spread) / count), _FINEST * bound)
    width = max(finest, bound / _POINTS)
    parts = [_discretised(step, width, unlikely / count, removed) for step in steps]
    low, high = _window(parts, unlikely, bound)
    size = int(next_fast_len(_length((high - low) / width), real=True))
    # Losses `size` places apart are one here. The window is so wide that they hardly ever meet.
    spectrum = np.ones(size // 2 + 1, complex)
    for part in parts:
        places = np.arange(len(part.masses)) % size
        spectrum *= rfft(np.bincount(places, part.masses, size)) ** part.count
    least = sum(part.count * part.least for part in parts)
    first = math.ceil((high - least) / width) - size + 1  # place of the window's lowest loss
    masses = np.roll(irfft(spectrum, size), -(first % size))  # (size,)
    lost = sum(part.count * part.above for part in parts)
    rounding = _TRANSFORM_ERROR * count * math.log2(size) * math.sqrt(size * (masses @ masses))
    losses = least + width * (first + np.arange(size))
    return _epsilon_of(losses, np.maximum(masses, 0), delta - lost - unlikely - rounding)


def _discretised(step: Step, width: float, unlikely: float, removed: bool) -> _Losses:
    """Return the losses of a step on a grid, from above."""
    from scipy.special import log_ndtr

    sigma, rate, count = step
    losses, places = _grid(sigma, rate, width, unlikely)
    # log-probability of an output above each place: without the record, and where it was drawn
    if removed:
        without, taken = log_ndtr(-places), log_ndtr(-(places - 1 / sigma))
    else:  # the mirror image, so that losses rise again
        losses, places = -losses[::-1], -places[::-1]
        without, taken = log_ndtr(-places), log_ndtr(-(places + 1 / sigma))
    mixed = (
        taken if rate == 1 else np.logaddexp(math.log1p(-rate) + without, math.log(rate) + taken)
    )
    likely, other = (mixed, without) if removed else (without, mixed)
    masses = _dots(losses, width, likely, other)
    return _Losses(float(losses[0]), width, masses, math.exp(likely[-1]), count)


def _grid(sigma: float, rate: float, width: float, unlikely: float) -> tuple[Array, Array]:
    """Return losses (n,), `width` apart, and the outputs, over σ, that have them.

    The first is the least there is, log(1 - q): where noise is small, that of most outputs without
    the record.
    """
    from scipy.special import ndtri

    reach = -float(ndtri(unlikely / 2))
    farthest = reach / sigma + 1 / (2 * sigma**2)
    if rate == 1:
        least = -reach / sigma - 1 / (2 * sigma**2)
        losses = least + width * np.arange(_length((farthest - least) / width))
        return losses, sigma * losses + 1 / (2 * sigma)
    odds = math.log(rate) - math.log1p(-rate)
    top = float(np.logaddexp(0, odds + farthest))
    rises = width * np.arange(_length(top / width))
    exponents = rises + np.log(-np.expm1(-rises)) - odds
    return math.log1p(-rate) + rises, sigma * exponents + 1 / (2 * sigma)


def _dots(losses: Array, width: float, likely: Array, other: Array) -> Array:
    """Return the mass (n,) at each loss, of outputs that are more likely the higher it is.

    Args:
        losses: (n,) l.
        width: between them.
        likely: (n,) log-probability of an output of loss above l, in the case that is likely.
        other: (n,) the same in the other case.
    """
    beyond, weighed = np.exp(likely), np.exp(losses[:-1] + other[:-1])
    cells = np.maximum(beyond[:-1] - beyond[1:], 0)
    others = weighed - np.exp(losses[:-1] + other[1:])
    rounding = _FLOAT * (beyond[:-1] + (1 + np.abs(losses[:-1])) * weighed)
    higher = np.clip((cells - others + rounding) / -math.expm1(-width), 0, cells)
    masses = np.append(cells - higher, 0) + np.append(0, higher)
    masses[0] += 1 - beyond[0]
    return masses


def _window(parts: list[_Losses], unlikely: float, bound: float) -> tuple[float, float]:
    """Return losses that the sum is not below and not above, each but for `unlikely`.

    Chernoff's bound holds at every rate, so the search for the best one need not be exact.
    """
    from scipy.optimize import minimize_scalar

    def farthest(log_rate: float, sign: int) -> float:
        rate = math.exp(log_rate)
        moment = sum(part.log_moment(sign * rate) for part in parts)
        return (moment - math.log(unlikely)) / rate

    rates = [math.log(rate / bound) for rate in _RATES]
    found = [
        minimize_scalar(farthest, bounds=rates, args=(sign,), method="bounded", options=_ROUGHLY)
        for sign in (1, -1)
    ]
    return -float(found[1].fun), float(found[0].fun)


def _length(points: float) -> int:
    """Return so many points and one or two more, where that is not far too many."""
    if not points < 4 * _POINTS:
        raise ValueError("the grid is too large")
    return max(0, math.ceil(points)) + 2


def _epsilon_of(losses: Array, masses: Array, delta: float) -> float:
    """Return the smallest ε ≥ 0 with Σ masses (1 - e^(ε - losses))₊ ≤ δ, rounded up."""
    if not delta > 0:
        return math.inf

    def spent(epsilon: float) -> float:
        above = int(np.searchsorted(losses, epsilon))
        return float(masses[above:] @ -np.expm1(epsilon - losses[above:]))

    low, high = 0.0, max(0.0, float(losses[-1]))
    if spent(low) <= delta:
        return 0.0
    while high - low > _EPSILON_ERROR * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= delta else (middle, high)
    return high * (1 + _EPSILON_ERROR)
