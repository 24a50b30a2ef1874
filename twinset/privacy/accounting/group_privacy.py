"""From one record to γ together: what record-level training means for a person with several.

Two ways. `group_bound` takes ε and δ of one record, and both grow. `group_epsilon` takes what was
done and keeps δ; its ε is the smaller of two upper bounds, valid by themselves:

1. Gaussian: subsampling ignored, a group moves each sum by at most γ times what a record does.
   Closed form (Balle and Wang 2018, theorem 8), exact where q = 1.
2. `group_bound` of ε at a δ of one record so small that the group's is the wanted one.

Of subsampled steps neither is tight: the tests compare with an accountant of the group's own
mixture (Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling via mixture of
Gaussians mechanisms", theorem 3.1), which finds less.

Assumes that records are clipped and drawn one by one. Where a person is one unit, with one clip and
one draw for all records together, nothing of this is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from twinset.privacy.accounting.accountant import epsilon as epsilon_of_one
from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.accounting.gaussian_mechanism import gaussian_epsilon

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
    alone = epsilon_of_one(events, delta)
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
        spent = epsilon_of_one(events, alone)
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
