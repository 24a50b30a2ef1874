"""From events to ε, and from a wanted ε back to σ. Knows no data, model or file.

Every guarantee rests on `epsilon`. It is the smaller of two *upper bounds*, each valid without the
other. The neighbouring relation uses or leaves out one record, which adds it to sums or removes it:

1. Gaussian: subsampling ignored. Closed form (Balle and Wang 2018, theorem 8), exact where q = 1.
2. Numerical composition of any size and in both directions (`composed_epsilon`). It is tight.

`prv_epsilon` computes the same number with other code: the PRV accountant of Opacus. It is a
cross-check, never the source of a guarantee.

`group_epsilon` goes from one record to γ records together: what record-level training means for a
person with several. For subsampled steps it is not tight. The tests compare it with an accountant
of the group's own mixture, which finds less (Ganesh 2024, "Tight group-level DP guarantees for
DP-SGD with sampling via mixture of Gaussians mechanisms", theorem 3.1). It is not needed if a
person is one unit, with one clip and one draw for all records together.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    LabelSelection,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)

Step = tuple[float, float, int]  # noise multiplier σ, sample rate q, number of steps
Array = NDArray[np.floating[Any]]

_MULTIPLIER_ERROR = 5e-4
_LARGEST_MULTIPLIER = 1e6
_COARSE = 0.8  # of a bound: an ε below this share of it deserves a grid of its own
_STEP = 0.9  # of the search for a δ: each is smaller than the last, and the largest that will do
_SLOW = 4  # from this try on, its step is ever larger, so that no search takes more than ten
_SMALLEST_DELTA = 1e-300

_WITNESS_ERROR = 0.01  # of ε: bound of the PRV accountant's own error
_WITNESS_POINTS = 1 << 22  # of its grids together, at most: seconds, and some hundred megabytes

_UNLIKELY = 1e-8  # share of δ for losses above the grid, and again for sums above the window
# Of the grid between 0 and a known bound of ε. A whole grid has at most four times this number, and
# those of all kinds of steps together twice as many: ledgers from others shall take seconds.
_POINTS = 1 << 20
_COARSER = (1, 8)  # how many times coarser a grid is tried, if it would have more
_FINEST = 5e-4  # of that bound: no finer grid
_EXCESS = 0.005  # T h² over that bound (a grid of h adds at most h² / 8 to the mean loss of a step)
# T h² log(1 / δ) over that bound's square: h adds at most h² / 4 to the variance of a step's loss,
# and of a sum like a normal one ε² is about 2 log(1 / δ) variances.
_SPREAD = 0.005
_FLOAT = 5e-16  # relative error of computations in double precision
# Of a transform to the power of the steps, over steps, log2 of its size and the root of size times
# squared masses: 25 times the largest error seen in tails of binomial distributions.
_TRANSFORM_ERROR = 1e-17
_EPSILON_ERROR = 1e-9  # relative
_RATES = (0.1, 1e6)  # of Chernoff's bound, over a known bound of ε


def compose(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge neighbouring subsampled Gaussians that differ only in their steps, which add up.

    Equal accesses without noise in a row become one, because their number does not matter.

    >>> compose([SubsampledGaussian(1.0, 0.1, 2), SubsampledGaussian(1.0, 0.1, 3)])
    (SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=5),)
    """
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, SubsampledGaussian | IndividualGaussian):
            if isinstance(last, SubsampledGaussian | IndividualGaussian):
                if replace(event, steps=last.steps) == last:
                    merged[-1] = replace(last, steps=last.steps + event.steps)
                    continue
        elif isinstance(event, NonPrivateAccess | MaskedAccess) and event == last:
            continue
        merged.append(event)
    return tuple(merged)


def epsilon(events: Sequence[Event], delta: float, weight: float = 0.0) -> float:
    """Return an upper bound of the ε that the events spent together, at `delta`.

    Guarantee: the output of all events together is an (ε, δ)-differentially private function of
    the records, for adding or removing one record of this privacy weight or a higher one. Without
    events ε is 0. With any access without noise it is ∞.

    Args:
        events: the spending so far.
        delta: δ.
        weight: ρ. 0 bounds ε for every record. It matters to `IndividualGaussian` alone.

    Raises:
        TypeError: something in `events` is not an event of a known type.
        ValueError: δ does not lie between 0 and 1.

    >>> epsilon([], 1e-5)
    0.0
    >>> epsilon([NonPrivateAccess("tuning")], 1e-5)
    inf
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, not {delta}")
    spent, delta = _steps(events, weight), left_of(delta, events)
    if spent is None or not delta > 0:
        return math.inf
    # Gaussians over all records compose to one of 1/σ² = Σ steps / σᵢ² (Dong et al. 2019).
    full = sum(count / sigma**2 for sigma, rate, count in spent if rate == 1)
    history = [step for step in spent if step[1] < 1]
    history += [(full**-0.5, 1.0, 1)] if full else []
    return _epsilon(tuple(history), delta) if history else 0.0


def left_of(delta: float, events: Sequence[Event], units: int = 1) -> float:
    """Return the δ that selections of label values leave, for `units` units together.

    Guarantee: take two tables that differ in a unit. A selection and all that follows it are alike
    on both, except with the probability that one of the unit's own values is released. This is
    bounded by `LabelSelection.delta`. So δ of the whole is δ of the Gaussian sums plus this bound.
    With several selections none releases such a value with the product of their probabilities.
    """
    total = 0.0
    for event in events:
        if isinstance(event, LabelSelection):
            total += event.delta(units) * (1 + total)
    return delta - total


def _steps(events: Sequence[Event], weight: float = 0.0) -> list[Step] | None:
    """Return the steps of each (σ, q) as a record of this weight sees them, or None if no ε covers.

    Equal steps are added up here, for both accountants. So thousands of equal events cost nothing.
    """
    steps: Counter[tuple[float, float]] = Counter()
    is_covered = True
    for event in events:
        match event.at(weight) if isinstance(event, IndividualGaussian) else event:
            case SubsampledGaussian(sigma, rate, count):
                steps[sigma, rate] += count
            case GaussianRelease(sigma) | LabelSelection(sigma):
                steps[sigma, 1.0] += 1
            case NonPrivateAccess() | MaskedAccess():
                is_covered = False  # but an unknown event after it must still raise
            case _:
                raise TypeError(f"{type(event).__name__} is not an event this accountant knows")
    return [(*kind, count) for kind, count in sorted(steps.items())] if is_covered else None


@lru_cache(maxsize=4096)  # calibration asks for the same ones again and again
def _epsilon(history: tuple[Step, ...], delta: float) -> float:
    """Return the smaller of both bounds."""
    bound = gaussian_epsilon(math.sqrt(sum(n / sigma**2 for sigma, _, n in history)), delta)
    if all(rate == 1 for _, rate, _ in history):  # where the closed form is no mere bound
        return bound
    # The grid is as fine as the known bound asks for. Where ε turns out far smaller, that grid was
    # too coarse, and a finer one finds less. Each result is an upper bound, so any one may stay.
    found = composed_epsilon(history, delta, bound)
    while 0 < found < _COARSE * bound:
        bound, found = found, min(found, composed_epsilon(history, delta, found))
    return min(bound, found)


class NotCovered(ValueError):
    """The PRV accountant cannot handle these events. The message says why."""


def prv_epsilon(events: Sequence[Event], delta: float, weight: float = 0.0) -> float:
    """Return the ε of the events by Opacus' PRV accountant, as an independent cross-check.

    It shares no code with `epsilon`: Opacus discretises the privacy loss in another way (Gopi, Lee
    and Wutschitz 2021, "Numerical Composition of Differential Privacy"). If the two differ by more
    than 1 %, one of them is wrong. A Gaussian release is a step of sample rate 1. An
    `IndividualGaussian` is its dominating Gaussian: by the theorem of adaptive noise a record of
    weight ρ sees the multiplier σ / c(ρ).

    The result is an estimate and not an upper bound. By theorem 5.5 of that paper the exact ε, at a
    δ within a thousandth of `delta`, lies within 1 % of it. In tests both were within 0.1 %. If
    1 % needs too fine a grid, the bound is what 2²² points allow, for all kinds of steps together.
    It covers only the removal of a record, which has the larger ε of the two directions. Its
    arguments are those of `epsilon`.

    Raises:
        NotCovered: an access without noise is among the events, or the numbers are out of the PRV
            accountant's range.
        TypeError: something in `events` is not an event of a known type.

    >>> round(prv_epsilon([SubsampledGaussian(1.0, 0.01, 1000)], 1e-5), 2)
    1.83
    """
    spent, delta = _steps(events, weight), left_of(delta, events)
    if spent is None:
        raise NotCovered("records were used without noise, which no accountant covers")
    if not delta > 0:
        raise NotCovered("the selection of label values alone has a larger delta")
    return _compose_prvs(tuple(spent), delta) if spent else 0.0


@lru_cache(maxsize=64)  # it takes seconds, and a run and its check ask for the same
def _compose_prvs(spent: tuple[Step, ...], delta: float) -> float:
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis.prv import Domain, PoissonSubsampledGaussianPRV

    accountant = PRVAccountant()
    accountant.history = list(spent)
    kinds = [PoissonSubsampledGaussianPRV(rate, sigma) for sigma, rate, _ in spent]
    counts, delta_error = [count for _, _, count in spent], delta / 1000
    try:
        # It warns of log(0), and where orders end of a Rényi bound that only sizes its grid.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error, found = 0.5, 0.0
            whole = accountant._get_domain(kinds, counts, error, delta_error)
            points = whole.size * len(kinds)
            if points > _WITNESS_POINTS:  # it would fill the memory before it failed
                raise ArithmeticError(f"needs grids of {points} points")

            def refine(eps_error: float, **given: object) -> Domain:
                width = whole.dt * eps_error / 0.5
                return Domain.create_aligned(whole.t_min, -whole.t_min, width)  # as far both ways

            # How far a grid must reach takes a second to find, and is the same for a finer one.
            accountant._get_domain = refine
            # Once coarsely, to learn how large ε is, and once as finely as that asks for.
            for _ in range(2):
                grid = accountant._get_dprv(eps_error=error, delta_error=delta_error)
                found = max(0.0, float(grid.compute_epsilon(delta, delta_error, error)[1]))
                finest = error * grid.domain.size * len(kinds) / _WITNESS_POINTS
                error = min(error, max(_WITNESS_ERROR * found, finest))
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as fault:
        raise NotCovered(f"out of the PRV accountant's range ({fault})") from fault
    if not math.isfinite(found):
        raise NotCovered("out of the PRV accountant's range (its epsilon is not finite)")
    return found


# -- numerical composition: the distribution of the privacy loss on a grid, from above -------------
# It computes with losses, never with their exponentials, so ε may be large.


def composed_epsilon(steps: Sequence[Step], delta: float, bound: float) -> float:
    """Return an upper bound of ε at `delta`, for adding or removing one record, or ∞.

    Guarantee: (ε, δ)-differential privacy of Poisson-subsampled Gaussian sums. Each step is
    dominated by the pair (1 - q) N(0, σ²) + q N(1, σ²) and N(0, σ²), in one order for removing a
    record and in the other for adding one (Zhu, Dong and Wang 2022, theorem 11). Both are composed.
    Let an output have loss l between the grid points a and b. It is replaced by an a or a b, at
    random, so that both distributions keep their masses. The output can be reconstructed from the a
    or b, so the attacker loses nothing ("connect the dots", Doroshenko et al. 2022). Losses below
    the grid are rounded up. Losses above it, sums above the window (Chernoff's bound) and the
    rounding of the Fourier transforms are charged to δ. Sums below the window come out at its upper
    end, where they count for more.

    Args:
        steps: steps of each kind. A rate of 1 is a plain release.
        delta: δ.
        bound: a known upper bound of ε. It sets the grid. A wrong one makes ε no smaller.
    """
    with np.errstate(divide="ignore", under="ignore", over="raise", invalid="raise"):
        for coarser in _COARSER:
            try:
                ways = (
                    _one_way(steps, delta, bound, removed, coarser) for removed in (True, False)
                )
                return max(ways)
            except (ArithmeticError, MemoryError, ValueError):
                continue
    return math.inf


class _Losses(NamedTuple):
    """The losses of one kind of step in rising order, on a grid."""

    least: float
    masses: Array  # (n,) probability of each loss
    above: float  # probability of those above the last
    steps: int  # like this


def _one_way(
    steps: Sequence[Step], delta: float, bound: float, removed: bool, coarser: int
) -> float:
    """Return ε for removing a record, or for adding one.

    The order: a grid, the losses of each kind of step on it, a window that their sum hardly ever
    leaves, the sum by Fourier transforms, and ε of that.
    """
    from scipy.fft import irfft, next_fast_len, rfft
    from scipy.optimize import minimize_scalar

    count, unlikely = sum(count for _, _, count in steps), _UNLIKELY * delta
    mean, spread = _EXCESS * bound, _SPREAD * bound**2 / -math.log(delta)
    finest = min(math.sqrt(min(mean, spread) / count), _FINEST * bound)
    width, most = coarser * max(finest, bound / _POINTS), 8 * _POINTS // max(2, len(steps))
    parts = [_discretise(step, width, most, unlikely / count, removed) for step in steps]

    # The sum is above `high`, or below `low`, with a probability of at most `unlikely`. Chernoff's
    # bound holds at every rate, so the search for the best one need not be exact.
    def farthest(log_rate: float, sign: int) -> float:
        rate, moments = math.exp(log_rate), 0.0
        for part in parts:  # add up log E[e^(± rate × sum of all steps)]
            exponents = np.log(part.masses) + sign * rate * width * np.arange(len(part.masses))
            largest = float(exponents.max())  # taken out, so that no power of e overflows
            moment = largest + math.log(float(np.exp(exponents - largest).sum()))
            moments += part.steps * (sign * rate * part.least + moment)
        return (moments - math.log(unlikely)) / rate

    rates = [math.log(rate / bound) for rate in _RATES]
    search = {"bounds": rates, "method": "bounded", "options": {"xatol": 0.1}}
    high, low = (s * float(minimize_scalar(farthest, args=(s,), **search).fun) for s in (1, -1))

    size = int(next_fast_len(_length((high - low) / width, most), real=True))
    # Losses `size` places apart are one here. The window is so wide that they hardly ever meet.
    spectrum = np.ones(size // 2 + 1, complex)
    for part in parts:
        places = np.arange(len(part.masses)) % size
        spectrum *= rfft(np.bincount(places, part.masses, size)) ** part.steps
    least = sum(part.steps * part.least for part in parts)
    first = math.ceil((high - least) / width) - size + 1  # place of the window's lowest loss
    masses = np.roll(irfft(spectrum, size), -(first % size))  # (size,)
    lost = sum(part.steps * part.above for part in parts)
    rounding = _TRANSFORM_ERROR * count * math.log2(size) * math.sqrt(size * (masses @ masses))
    losses, masses = least + width * (first + np.arange(size)), np.maximum(masses, 0)
    allowed = delta - lost - unlikely - rounding
    if not allowed > 0:
        return math.inf

    # The smallest ε ≥ 0 with Σ masses (1 - e^(ε - losses))₊ ≤ what is allowed, rounded up.
    lower, middle, upper = 0.0, 0.0, max(0.0, float(losses[-1]))  # 0 is looked at first
    while upper - lower > _EPSILON_ERROR * upper:
        above = int(np.searchsorted(losses, middle))
        if masses[above:] @ -np.expm1(middle - losses[above:]) <= allowed:
            upper = middle
        else:
            lower = middle
        middle = (lower + upper) / 2
    return upper * (1 + _EPSILON_ERROR)


def _discretise(step: Step, width: float, most: int, unlikely: float, removed: bool) -> _Losses:
    """Return upper bounds of the losses of a step, on a grid of `most` points with this spacing.

    The first is the smallest possible loss, log(1 - q). With little noise, most outputs without the
    record have it.
    """
    from scipy.special import log_ndtr, ndtri

    sigma, rate, count = step
    reach = -float(ndtri(unlikely / 2))
    farthest = reach / sigma + 1 / (2 * sigma**2)
    # losses (n,), and the outputs, over σ, that have them
    if rate == 1:
        least = -reach / sigma - 1 / (2 * sigma**2)
        losses = least + width * np.arange(_length((farthest - least) / width, most))
        places = sigma * losses + 1 / (2 * sigma)
    else:
        odds = math.log(rate) - math.log1p(-rate)
        top = float(np.logaddexp(0, odds + farthest))
        rises = width * np.arange(_length(top / width, most))
        exponents = rises + np.log(-np.expm1(-rises)) - odds
        losses, places = math.log1p(-rate) + rises, sigma * exponents + 1 / (2 * sigma)
    # log-probability of an output above each place: without the record, and where it was drawn
    if removed:
        without, taken = log_ndtr(-places), log_ndtr(-(places - 1 / sigma))
    else:  # the mirror image, so that losses rise again
        losses, places = -losses[::-1], -places[::-1]
        without, taken = log_ndtr(-places), log_ndtr(-(places + 1 / sigma))
    mixed = taken
    if rate < 1:
        mixed = np.logaddexp(math.log1p(-rate) + without, math.log(rate) + taken)
    likely, other = (mixed, without) if removed else (without, mixed)
    masses = _dots(losses, width, likely, other)
    return _Losses(float(losses[0]), masses, math.exp(likely[-1]), count)


def _dots(losses: Array, width: float, likely: Array, other: Array) -> Array:
    """Return the mass (n,) at each loss, of outputs that are more likely the higher it is.

    `likely` and `other` are (n,) log-probabilities of an output above each loss, in both cases.
    """
    beyond, weighed = np.exp(likely), np.exp(losses[:-1] + other[:-1])
    cells = np.maximum(beyond[:-1] - beyond[1:], 0)
    others = weighed - np.exp(losses[:-1] + other[1:])
    rounding = _FLOAT * (beyond[:-1] + (1 + np.abs(losses[:-1])) * weighed)
    higher = np.clip((cells - others + rounding) / -math.expm1(-width), 0, cells)
    masses = np.append(cells - higher, 0) + np.append(0, higher)
    masses[0] += 1 - beyond[0]
    return masses


def _length(points: float, most: int) -> int:
    """Return this number of points and one or two more, if that is not far too many."""
    if not points < most:
        raise ValueError("the grid is too large")
    return max(0, math.ceil(points)) + 2


# -- one Gaussian release: δ, ε and σ of each other, exact -----------------------------------------


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return δ(ε) of one Gaussian release, with `mu` the sensitivity over the noise.

    Balle and Wang 2018, theorem 8: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ). Both terms are computed from
    logarithms, so a large ε does not overflow.
    """
    from scipy.special import log_ndtr

    near, far = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return math.exp(log_ndtr(near)) - math.exp(epsilon + log_ndtr(far))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε(δ) of one Gaussian release, with `mu` the sensitivity over the noise.

    The result is 0 if δ alone covers it.
    """
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return _smallest(lambda epsilon: gaussian_delta(mu, epsilon) <= delta)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest σ that makes a single Gaussian release (ε, δ)-differentially private.

    Raises:
        ValueError: ε or δ is out of range.

    >>> round(gaussian_noise_multiplier(1.0, 1e-5), 3)
    3.731
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
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


# -- from ε to the noise multiplier ----------------------------------------------------------------


def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps: int,
    others: Sequence[Event] = (),
) -> float:
    """Return the smallest σ that keeps all events within the target, to 0.1 %, on the safe side.

    Args:
        target_epsilon: ε of everything, `others` included.
        target_delta: δ of everything.
        sample_rate: q of the subsampled Gaussian with the unknown σ.
        steps: its steps.
        others: all other releases.

    Raises:
        ValueError: no σ reaches the target. The message says what is attainable.
    """
    from scipy.optimize import brentq

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
    # Bracket σ by doubling, close in on a logarithmic scale, and end on the safe side.
    high = 1.0
    while spent(high) > target_epsilon:
        high *= 2
    low = high / 2
    while spent(low) <= target_epsilon:
        high, low = low, low / 2
    found = brentq(
        lambda log_sigma: math.log(max(spent(math.exp(log_sigma)), 1e-9) / target_epsilon),
        math.log(low),
        math.log(high),
        xtol=_MULTIPLIER_ERROR / 4,
    )
    sigma = math.exp(found)
    while spent(sigma) > target_epsilon:
        sigma *= 1 + _MULTIPLIER_ERROR / 2
    return sigma


# -- from one record to a group --------------------------------------------------------------------


def group_epsilon(events: Sequence[Event], delta: float, size: int) -> float:
    """Return an upper bound of the ε that the events spent on `size` records together, at `delta`.

    Guarantee: the output of all events together is an (ε, δ)-differentially private function of the
    records, for adding or removing any γ records at once. Without events ε is 0. With any access
    without noise it is ∞. For one record it is `epsilon`. It is the smaller of two upper bounds.
    First, with subsampling ignored, a group moves each sum by at most γ times what a record does.
    Second, for any mechanism, (ε, δ) of one record is (γε, δ (1 + e^ε + … + e^(γ-1)ε)) of γ, by γ
    steps of one record each (Vadhan 2017, proof of lemma 2.2). δ of one record is chosen so small
    that the group's is `delta`.

    Args:
        events: the spending so far. `IndividualGaussian` counts as for records of weight 0.
        delta: δ of the whole group.
        size: γ.

    Raises:
        TypeError: something in `events` is not an event of a known type.
        ValueError: δ does not lie between 0 and 1, or there is no such group.

    >>> group_epsilon([NonPrivateAccess("tuning")], 1e-5, 2)
    inf
    """
    if size < 1:
        raise ValueError(f"a group has at least one record, not {size}")
    spent, steps = epsilon(events, delta), _steps(events)
    if size == 1 or not steps:  # no event, or one that no ε covers
        return spent
    mu = math.sqrt(sum(count / sigma**2 for sigma, _, count in steps))
    left = left_of(delta, events, size)
    plain = gaussian_epsilon(size * mu, left) if left > 0 else math.inf
    alone, tries = delta / size, 0  # δ of one record: it shrinks until it spreads to `delta`
    while alone > _SMALLEST_DELTA:
        spent = epsilon(events, alone)
        if math.isinf(spent):
            break
        log_sum = math.log(size)  # of 1 + e^ε + … + e^(γ-1)ε
        if spent:
            shares = math.expm1(-size * spent) / math.expm1(-spent)
            log_sum = (size - 1) * spent + math.log(shares)
        most = math.exp(math.log(delta) - log_sum)
        if alone <= most:
            return min(plain, size * spent)
        alone, tries = most * _STEP**4 ** max(0, tries - _SLOW + 1), tries + 1
    return plain


# -- numbers of a guarantee in digits: no stated ε or δ is below the computed ----------------------


def up_decimals(value: float) -> str:
    """Round up to two decimals. Infinity becomes "infinite".

    >>> up_decimals(7.9964), up_decimals(0.001)
    ('8.00', '0.01')
    """
    if math.isinf(value):
        return "infinite"
    return str(Decimal(value).quantize(Decimal("0.01"), ROUND_CEILING))


def up_digits(value: float) -> str:
    """Round up to three significant digits.

    >>> up_digits(1e-5), up_digits(2.5114e-07)
    ('1e-05', '2.52e-07')
    """
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(value))):.3g}"
