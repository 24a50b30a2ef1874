"""What was done with the private records, as frozen data. Accountants interpret it; this does not.

A type that is not listed in `KINDS` is not an event: reading one, or accounting for one, raises.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any


def _require_multiplier(value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("noise_multiplier must be a number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"noise_multiplier must be finite and above 0, not {value}")


def _require_text(name: str, value: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text that is not blank")


@dataclass(frozen=True)
class SubsampledGaussian:
    """`steps` Gaussian sums, each over a fresh Poisson sample of the records.

    Args:
        noise_multiplier: σ, the noise's standard deviation over the largest change that adding or
            removing one record can make (L2).
        sample_rate: q, the probability with which each record enters a step, by itself.
        steps: how many such sums were released.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        """Refuse values that name no mechanism."""
        _require_multiplier(self.noise_multiplier)
        if isinstance(self.sample_rate, bool) or not isinstance(self.sample_rate, int | float):
            raise ValueError("sample_rate must be a number")
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate must lie above 0 and be at most 1: {self.sample_rate}")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, not {self.steps}")


@dataclass(frozen=True)
class GaussianRelease:
    """One noisy release over all records: `what`, with noise `noise_multiplier` × sensitivity."""

    noise_multiplier: float
    what: str

    def __post_init__(self) -> None:
        """Refuse values that name no mechanism."""
        _require_multiplier(self.noise_multiplier)
        _require_text("what", self.what)


@dataclass(frozen=True)
class NonPrivateAccess:
    """Private records were used without noise. No ε covers it."""

    reason: str

    def __post_init__(self) -> None:
        """Refuse an access without a reason."""
        _require_text("reason", self.reason)


Event = SubsampledGaussian | GaussianRelease | NonPrivateAccess

KINDS: dict[str, type[SubsampledGaussian] | type[GaussianRelease] | type[NonPrivateAccess]] = {
    "subsampled_gaussian": SubsampledGaussian,
    "gaussian_release": GaussianRelease,
    "non_private_access": NonPrivateAccess,
}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return an event as plain values with its `kind`.

    >>> event_to_dict(NonPrivateAccess("tuning"))
    {'kind': 'non_private_access', 'reason': 'tuning'}
    """
    for kind, known in KINDS.items():
        if type(event) is known:
            return {"kind": kind, **asdict(event)}
    raise TypeError(f"{type(event).__name__} is not an event")


def event_from_dict(data: dict[str, Any]) -> Event:
    """Rebuild an event from `event_to_dict`'s output.

    Raises:
        ValueError: the kind is unknown, or a field is missing, unknown or out of range.
    """
    if not isinstance(data, dict):
        raise ValueError("an event must be an object with a 'kind'")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"unknown event kind {kind!r}; known: {', '.join(KINDS)}")
    event_type = KINDS[kind]
    expected, given = {f.name for f in fields(event_type)}, set(data) - {"kind"}
    if expected != given:
        wrong = ", ".join(sorted(expected ^ given))
        raise ValueError(f"event {kind}: missing or unknown field: {wrong}")
    return event_type(**{name: data[name] for name in expected})
