"""From events to ε. Knows no data, model or file; the way back is `calibration`.

All ε here are for adding or removing one record. Each is the smallest of up to three *upper
bounds*, each valid by itself, so that where one fails numerically another holds:

1. Gaussian: subsampling ignored. Closed form (Balle and Wang 2018, theorem 8), exact where q = 1.
2. Rényi: Opacus' RDP accountant (Mironov et al. 2019; conversion of Balle et al. 2020).
3. PRV: Opacus' numerical composition (Gopi et al. 2021), its upper end; tight. It composes the
   loss of *removing* a record, the larger of the two directions for subsampled Gaussians wherever
   the tests compare it with an accountant that composes both.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from twinset.privacy.analyticgaussian import gaussian_epsilon
from twinset.privacy.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)

_STEPS = (SubsampledGaussian, IndividualGaussian)
_ACCESSES = (NonPrivateAccess, MaskedAccess)

# (noise multiplier, sample rate, steps), as Opacus keeps them.
History = tuple[tuple[float, float, int], ...]

# Where PRV is used. Beyond this its Fourier transforms in double precision are not to be trusted
# (δ) or its grid is too large (ε); within it, the tests compare it with a second implementation.
_PRV_SMALLEST_DELTA = 1e-10
_PRV_LARGEST_EPSILON = 300.0
_PRV_GRID_POINTS = 2_000_000
_PRV_RELATIVE_ERROR = 0.002
_PRV_COARSE_ERROR = 0.02  # of a known upper bound
_PRV_LARGEST_ERROR = 0.04  # likewise; with 0.05 it was seen to fail

_PRV_LARGEST_HISTORY = 8  # different steps, each of which costs a grid
_PRV_SMALLEST_EPSILON = 0.01  # below, its grids cost seconds and the other bounds will do

# Whole orders only: their series has positive terms alone, so no cancellation can lower the bound.
_ORDERS = [*range(2, 64), 80, 96, 128, 192, 256, 512, 1024]


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


def rough_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return about the ε of `epsilon`, more quickly: no bound, but a place to begin a search."""
    spent = [_step(event) for event in events]
    return math.inf if None in spent else _rough_epsilon(_history(filter(None, spent)), delta)


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
    bound = _quick_epsilon(history, delta)
    return bound if _is_exact(history) else min(bound, _prv_epsilon(history, delta, bound))


@lru_cache(maxsize=4096)
def _rough_epsilon(history: History, delta: float) -> float:
    bound = _quick_epsilon(history, delta)
    if _is_exact(history) or not _prv_is_trusted(delta, bound):
        return bound
    if not _prv_is_quick(history, delta, bound):
        return min(bound, gaussian_epsilon(_central_limit(history), delta))
    return min(bound, _run_prv(history, delta, _PRV_COARSE_ERROR * bound))


def _is_exact(history: History) -> bool:
    """Tell whether all is Gaussian, where the closed form is no mere bound."""
    return all(rate == 1 for _, rate, _ in history)


def _quick_epsilon(history: History, delta: float) -> float:
    """Bounds 1 and 2, which cost no grid."""
    mu = math.sqrt(sum(steps / sigma**2 for sigma, _, steps in history))
    bound = gaussian_epsilon(mu, delta)
    return bound if _is_exact(history) else min(bound, _renyi_epsilon(history, delta))


def _central_limit(history: History) -> float:
    """μ of the Gaussian that very many steps come to (Bu et al. 2020, "Deep learning with GDP")."""
    parts = (
        steps * rate**2 * math.expm1(min(1 / sigma**2, 700)) if rate < 1 else steps / sigma**2
        for sigma, rate, steps in history
    )
    return math.sqrt(sum(parts))


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


def _prv_epsilon(history: History, delta: float, bound: float) -> float:
    """Opacus' PRV upper end, or ∞ where it fails or is not to be trusted.

    `bound` is a known upper bound. A coarse grid tells about where ε is, and nothing more: asked
    for an error of 5 where ε is 50.7, its "upper end" was 0.5 (σ 0.384, q 0.001, 100,000 steps).
    """
    if not _prv_is_trusted(delta, bound) or len(history) > _PRV_LARGEST_HISTORY:
        return math.inf
    guess = bound
    if _prv_is_quick(history, delta, bound):
        guess = min(bound, _run_prv(history, delta, _PRV_COARSE_ERROR * bound))
    error = _prv_error(history, delta, guess, bound)
    return _run_prv(history, delta, error) if error <= _PRV_LARGEST_ERROR * bound else math.inf


def _prv_is_trusted(delta: float, bound: float) -> bool:
    return delta >= _PRV_SMALLEST_DELTA and _PRV_SMALLEST_EPSILON < bound < _PRV_LARGEST_EPSILON


def _prv_error(history: History, delta: float, guess: float, bound: float) -> float:
    """Error of ε to ask for: a share of the guess, but no finer than the largest grid allows."""
    return max(_PRV_RELATIVE_ERROR * guess, _finest_error(history, delta, bound))


def _finest_error(history: History, delta: float, bound: float) -> float:
    """Return the error of ε that the largest grid has."""
    steps = sum(count for _, _, count in history)
    width = 2 * (1.5 * bound + 3)
    return width / _PRV_GRID_POINTS * math.sqrt(steps * math.log(12_000 / delta) / 2)


def _prv_is_quick(history: History, delta: float, bound: float) -> bool:
    """Tell whether a coarse grid is far smaller than the largest one."""
    return _PRV_COARSE_ERROR * bound > 10 * _finest_error(history, delta, bound)


def _run_prv(history: History, delta: float, error: float) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(history)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # log(0) at q = 1
            found = float(accountant.get_epsilon(delta, eps_error=error))
    except (ArithmeticError, IndexError, MemoryError, RuntimeError, ValueError):
        return math.inf
    return found if math.isfinite(found) and found > 0 else math.inf
