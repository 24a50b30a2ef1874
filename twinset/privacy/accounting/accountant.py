"""From events to ε. Knows no data, model or file; the way back is `calibration`.

All ε here are for adding or removing one record. Each is the smallest of up to four *upper
bounds*, each valid by itself, so that where one fails numerically another holds:

1. Gaussian: subsampling ignored. Closed form (Balle and Wang 2018, theorem 8), exact where q = 1.
2. Rényi, whole orders: Opacus' accountant (Mironov et al. 2019; conversion of Balle et al. 2020).
3. Rényi, orders near 1 (`renyi`), which large ε need.
4. Numerical composition (`loss_distribution`), of any size and in both directions; tight.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.accounting.gaussian_mechanism import gaussian_epsilon
from twinset.privacy.accounting.loss_distribution import composed_epsilon
from twinset.privacy.accounting.renyi import renyi_epsilon

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
