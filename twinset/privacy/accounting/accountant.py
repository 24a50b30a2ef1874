"""From events to ε, and from a wanted ε back to σ. Knows no data, model or file.

All ε here are for adding or removing one record. Each is the smallest of up to four *upper
bounds*, each valid by itself, so that where one fails numerically another holds:

1. Gaussian: subsampling ignored. Closed form (Balle and Wang 2018, theorem 8), exact where q = 1.
2. Rényi, whole orders: Opacus' accountant (Mironov et al. 2019; conversion of Balle et al. 2020).
3. Rényi, orders near 1 (`renyi`), which large ε need.
4. Numerical composition (`loss_distribution`), of any size and in both directions; tight.

`group_bound` and `group_epsilon` go from one record to γ together: what record-level training means
for a person with several. The first takes ε and δ of one record, and both grow. The second takes
what was done and keeps δ. Neither is needed where a person is one unit, with one clip and one draw
for all records together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache

from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.accounting.loss_distribution import composed_epsilon
from twinset.privacy.accounting.renyi import renyi_epsilon


def up_decimals(value: float) -> str:
    """Round up to two decimals; infinity is "infinite".

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


_STEPS = (SubsampledGaussian, IndividualGaussian)
_ACCESSES = (NonPrivateAccess, MaskedAccess)

# (noise multiplier, sample rate, steps), as Opacus keeps them.
History = tuple[tuple[float, float, int], ...]

# Whole orders only: their series has positive terms alone, so no cancellation can lower the bound.
_ORDERS = [*range(2, 64), 80, 96, 128, 192, 256, 512, 1024]
_LARGE_EPSILON = 30.0  # above, the best order is below 2


def compose(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge neighbouring subsampled Gaussians that differ in nothing but steps, which add up.

    Equal accesses without noise in a row become one: it does not matter how often.

    >>> compose([SubsampledGaussian(1.0, 0.1, 2), SubsampledGaussian(1.0, 0.1, 3)])
    (SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=5),)
    """
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, _STEPS) and isinstance(last, _STEPS):
            if replace(event, steps=last.steps) == last:
                merged[-1] = replace(last, steps=last.steps + event.steps)
                continue
        elif isinstance(event, _ACCESSES) and event == last:
            continue
        merged.append(event)
    return tuple(merged)


def epsilon(events: Sequence[Event], delta: float, weight: float = 0.0) -> float:
    """Return an upper bound of the ε that the events spent together, at `delta`.

    Guarantee: whoever sees the output of every event sees an (ε, δ)-differentially private function
    of the records, for adding or removing one record of this privacy weight or a higher one. No
    event: 0. Any access without noise: ∞.

    Args:
        events: what was spent.
        delta: δ.
        weight: ρ; 0 bounds ε for every record. It matters to `IndividualGaussian` alone.

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
    steps = [_step(event, weight) for event in events]
    spent = [step for step in steps if step is not None]
    if len(spent) < len(steps):
        return math.inf
    return _epsilon(_history(spent), delta) if spent else 0.0


def _step(event: Event, weight: float = 0.0) -> tuple[float, float, int] | None:
    """Return (σ, q, steps), or None for an access that no ε covers."""
    if isinstance(event, IndividualGaussian):
        event = event.at(weight)
    match event:
        case SubsampledGaussian(noise_multiplier, sample_rate, steps):
            return noise_multiplier, sample_rate, steps
        case GaussianRelease(noise_multiplier, _):
            return noise_multiplier, 1.0, 1
        case NonPrivateAccess() | MaskedAccess():
            return None
    raise TypeError(f"{type(event).__name__} is not an event this accountant knows")


def _history(steps: Iterable[tuple[float, float, int]]) -> History:
    """Merge what merges exactly: equal (σ, q), and all full-batch Gaussians into one.

    Gaussians over all records compose to one of 1/σ² = Σ steps / σᵢ² (Dong et al. 2019).
    """
    merged: dict[tuple[float, float], int] = {}
    full = 0.0
    for sigma, rate, count in steps:
        if rate == 1:
            full += count / sigma**2
        else:
            merged[sigma, rate] = merged.get((sigma, rate), 0) + count
    history = [(sigma, rate, count) for (sigma, rate), count in sorted(merged.items())]
    return tuple(history + [(full**-0.5, 1.0, 1)] if full else history)


@lru_cache(maxsize=4096)
def _epsilon(history: History, delta: float) -> float:
    bound = gaussian_epsilon(math.sqrt(sum(n / sigma**2 for sigma, _, n in history)), delta)
    if all(rate == 1 for _, rate, _ in history):  # where the closed form is no mere bound
        return bound
    bound = min(bound, _renyi_epsilon(history, delta))
    if bound > _LARGE_EPSILON:
        bound = min(bound, renyi_epsilon(history, delta))
    return min(bound, _composed_epsilon(history, delta, bound))


def _composed_epsilon(history: History, delta: float, bound: float) -> float:
    """Compose on a grid as fine as `bound` asks for, and again where ε turns out far smaller."""
    found = composed_epsilon(history, delta, bound)
    while 0 < found < bound / 2:
        bound, found = found, min(found, composed_epsilon(history, delta, found))
    return found


def _renyi_epsilon(history: History, delta: float) -> float:
    """Opacus' Rényi bound, or ∞ where it is none (its conversion goes below 0 for δ near 1)."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = list(history)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # order at the end of its range; log(0) at q = 1
            found = float(accountant.get_epsilon(delta, alphas=_ORDERS))
    except (ArithmeticError, ValueError):
        return math.inf
    return found if math.isfinite(found) and found >= 0 else math.inf


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


_STEP = 0.9  # of the search for a δ: each is smaller than the last, and the largest that will do
_SMALLEST_DELTA = 1e-300
_LARGEST = 700.0  # e to a larger power is no float


def group_bound(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Return what (ε, δ)-differential privacy of one record is for `size` records together.

    Guarantee: adding or removing any γ records is (γε, δ (e^γε - 1) / (e^ε - 1))-differentially
    private, whatever the mechanism: γ steps of one record each (Vadhan 2017, proof of lemma 2.2).
    A δ of 1 says nothing.

    Args:
        epsilon: ε of one record.
        delta: δ of one record.
        size: γ.

    Raises:
        ValueError: there is no such group.

    >>> group_bound(0.0, 1e-5, 2)
    (0.0, 2e-05)
    >>> group_bound(9.0, 1e-5, 10)
    (90.0, 1.0)
    """
    _require_size(size)
    if math.isinf(epsilon):
        return math.inf, 1.0
    steps = math.exp(min(_log_geometric_sum(epsilon, size), _LARGEST))
    return size * epsilon, min(1.0, delta * steps)


def _log_geometric_sum(epsilon: float, size: int) -> float:
    """Return log of 1 + e^ε + … + e^(γ-1)ε."""
    if epsilon == 0:
        return math.log(size)
    shares = math.expm1(-size * epsilon) / math.expm1(-epsilon)
    return (size - 1) * epsilon + math.log(shares)


def group_epsilon(events: Sequence[Event], delta: float, size: int) -> float:
    """Return an upper bound of the ε that the events spent on `size` records together, at `delta`.

    Guarantee: whoever sees the output of every event sees an (ε, δ)-differentially private function
    of the records, for adding or removing any γ records at once. No event: 0. Any access without
    noise: ∞. One record: `accountant.epsilon`.

    Args:
        events: what was spent; `IndividualGaussian` counts as for records of weight 0.
        delta: δ of the whole group.
        size: γ.

    Raises:
        TypeError: something in `events` is not an event of a known type.
        ValueError: δ does not lie between 0 and 1, or there is no such group.

    >>> group_epsilon([NonPrivateAccess("tuning")], 1e-5, 2)
    inf
    """
    _require_size(size)
    alone = epsilon(events, delta)
    if size == 1 or not events or math.isinf(alone):
        return alone
    plain = gaussian_epsilon(size * math.sqrt(sum(map(_squared_mu, events))), delta)
    return min(plain, _spread_epsilon(events, delta, size))


def says_something(epsilon: float, delta: float) -> bool:
    """Return whether e^ε δ < 1: else what has probability δ without a group may be certain with it.

    >>> says_something(11.5, 1e-5), says_something(11.6, 1e-5), says_something(math.inf, 1e-5)
    (True, False, False)
    """
    return epsilon + math.log(delta) < 0


def _spread_epsilon(events: Sequence[Event], delta: float, size: int) -> float:
    """Return γε, ε being that of one record at a δ that spreads to `delta`; ∞ if none is found."""
    alone = delta / size
    while alone > _SMALLEST_DELTA:
        spent = epsilon(events, alone)
        most = math.exp(math.log(delta) - _log_geometric_sum(spent, size))
        if alone <= most:
            return size * spent
        alone = _STEP * most
    return math.inf


def _require_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"a group has at least one record, not {size}")


def _squared_mu(event: Event) -> float:
    """Return the squared sensitivity over noise of all steps together, subsampling ignored."""
    if isinstance(event, IndividualGaussian):
        event = event.at(0.0)
    match event:
        case SubsampledGaussian(noise_multiplier, _, steps):
            return steps / noise_multiplier**2
        case GaussianRelease(noise_multiplier, _):
            return 1 / noise_multiplier**2
        case NonPrivateAccess() | MaskedAccess():
            return math.inf
    raise TypeError(f"{type(event).__name__} is not an event this accountant knows")
