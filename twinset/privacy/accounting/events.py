"""Every use of the private records, as frozen data. Accountants interpret it, not this module.

A type that is not in `KINDS` is not an event. Reading or accounting for one raises an error.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

# What double precision can account for. Beyond it squares overflow, and a ledger that somebody else
# wrote could keep its reader computing for ever.
SMALLEST, LARGEST = 1e-6, 1e100  # noise multipliers
MOST_STEPS = 2**53

# One-time releases of a run, as named in its `GaussianRelease`.
LABEL_COUNTS, TOKEN_MARGINALS, TEACHER = "label counts", "token marginals", "teacher"
COLUMNS = "other columns"


# The range of an event's numbers, ends included. Whole ends mean whole numbers.
_ABOVE_0 = 5e-324  # the smallest float there is
_RANGES: dict[str, tuple[float, float, str]] = {
    "noise_multiplier": (
        SMALLEST, LARGEST, f"finite and above 0, from {SMALLEST:g} to {LARGEST:g}"
    ),
    "sample_rate": (_ABOVE_0, 1.0, "above 0 and at most 1"),
    "least_share": (SMALLEST, 1.0, f"at least {SMALLEST:g} and at most 1"),
    **dict.fromkeys(
        ("steps", "threshold", "attributes", "most"),
        (1, MOST_STEPS, "a whole number of at least 1"),
    ),
}  # fmt: skip


class _Checked:
    """Base of all events: numbers must be in range, and texts not blank."""

    def __post_init__(self) -> None:
        """Refuse values that describe no mechanism."""
        for name, value in vars(self).items():
            if name not in _RANGES:
                if not isinstance(value, str) or not value.strip():
                    raise ValueError(f"{name} must be a text that is not blank")
                continue
            least, most, said = _RANGES[name]
            kind = int if isinstance(most, int) else int | float
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ValueError(f"{name} must be a {'whole ' if kind is int else ''}number")
            if not least <= value <= most:
                raise ValueError(f"{name} must be {said}, not {value}")


@dataclass(frozen=True)
class SubsampledGaussian(_Checked):
    """`steps` Gaussian sums, each over a fresh Poisson sample of the records.

    Args:
        noise_multiplier: σ, the noise's standard deviation over the largest change that adding or
            removing one record can make (L2).
        sample_rate: q, the probability with which each record independently enters a step.
        steps: number of such sums that were released.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int


@dataclass(frozen=True)
class IndividualGaussian(_Checked):
    """`SubsampledGaussian`, in which records of a higher privacy weight move the sum by less.

    The privacy weight ρ in [0, 1] is a fixed public function of the record alone. A record of
    weight ρ moves each sum by at most c(ρ) = 1 - ρ (1 - `least_share`) times the largest change
    of any record. So its own noise multiplier is σ / c(ρ).

    Args:
        noise_multiplier: σ over the largest change, that of records of weight 0.
        sample_rate: q, the same for all records.
        steps: number of such sums that were released.
        least_share: c(1), above 0 and at most 1.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    least_share: float

    def __post_init__(self) -> None:
        """Refuse values that describe no mechanism for some weight."""
        super().__post_init__()
        self.at(1.0)

    def at(self, weight: float) -> SubsampledGaussian:
        """Return the same release as seen by a record of this privacy weight.

        >>> IndividualGaussian(1.5, 0.1, 5, 0.5).at(0.5).noise_multiplier
        2.0
        """
        if not 0 <= weight <= 1:
            raise ValueError(f"a privacy weight lies between 0 and 1: {weight}")
        multiplier = self.noise_multiplier / (1.0 - weight * (1.0 - self.least_share))
        return SubsampledGaussian(multiplier, self.sample_rate, self.steps)


@dataclass(frozen=True)
class MaskedAccess(_Checked):
    """Private records were used without noise, but with everything masked that `detector` flags.

    No ε covers it. If masked texts are taken as known, it reveals nothing else.
    """

    detector: str


@dataclass(frozen=True)
class GaussianRelease(_Checked):
    """One noisy release over all records: `what`, with noise `noise_multiplier` × sensitivity."""

    noise_multiplier: float
    what: str


@dataclass(frozen=True)
class LabelSelection(_Checked):
    """Label values were taken from the table if their noisy counts reach a threshold.

    This costs ε and δ. ε is for a Gaussian release of the counts of all values that records have. δ
    is for the probability of releasing a value that only the records of one unit have, see `delta`.

    Args:
        noise_multiplier: σ, the noise's standard deviation over m√A, the largest change (L2).
        threshold: τ, the least noisy count of a value that is released.
        attributes: A, label columns whose values are selected.
        most: m, records of a unit that are counted.
    """

    noise_multiplier: float
    threshold: int
    attributes: int
    most: int

    @property
    def sensitivity(self) -> float:
        """The largest change (L2) of all counts together by one unit, m√A."""
        return self.most * self.attributes**0.5

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each count."""
        return self.noise_multiplier * self.sensitivity

    def delta(self, units: int = 1) -> float:
        """Return the δ that it costs to `units` units together, rounded up.

        Together they have at most Am values that no other unit has, where m counts the records of
        all of them. The noisy count of such a value is at most m + noise. p is at most the sum of
        the probabilities that such a count, rounded, reaches τ. The cost is p / (1 - p).

        >>> round(LabelSelection(2.0, 12, 1, 1).delta(), 9)
        7.6e-08
        """
        most = units * self.most
        away = (self.threshold - 0.5 - most) / self.deviation
        p = self.attributes * most * math.erfc(away / math.sqrt(2)) / 2
        return p / (1 - p) * (1 + 1e-9) if p < 0.5 else 1.0


@dataclass(frozen=True)
class NonPrivateAccess(_Checked):
    """Private records were used without noise. No ε covers it."""

    reason: str


Event = (
    SubsampledGaussian
    | IndividualGaussian
    | GaussianRelease
    | LabelSelection
    | MaskedAccess
    | NonPrivateAccess
)

RELEASES = GaussianRelease | LabelSelection  # over all records, once

KINDS: dict[str, type[Event]] = {
    "subsampled_gaussian": SubsampledGaussian,
    "individual_gaussian": IndividualGaussian,
    "gaussian_release": GaussianRelease,
    "label_selection": LabelSelection,
    "masked_access": MaskedAccess,
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
        raise ValueError(f"unknown event kind {kind!r}. Known: {', '.join(KINDS)}.")
    event_type = KINDS[kind]
    expected, given = {f.name for f in fields(event_type)}, set(data) - {"kind"}
    if expected != given:
        wrong = ", ".join(sorted(expected ^ given))
        raise ValueError(f"event {kind}: missing or unknown field: {wrong}")
    return event_type(**{name: data[name] for name in expected})
