"""The one place that says, in words, what a ledger guarantees. It fails closed.

ε is computed anew from the events; nothing the ledger claims about ε is believed. Whatever is not
covered by a theorem that this module names makes the guarantee "none".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

from twinset.privacy import ledger as stance
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import NonPrivateAccess, SubsampledGaussian
from twinset.privacy.ledger import Ledger

# Policies (name, form) whose noise the events describe in full.
_COVERED_POLICIES = {("uniform", "sound"), ("uniform", "published"), ("importance", "sound")}

_COVERS = (
    "the twin, whatever is done with it and however many rows are drawn",
    "the fine-tuned model and everything drawn from it",
    "the noisy label counts, and this ledger (with the number of records taken as public)",
)
_EXCLUDES = (
    "the base model's own training data: what it had already seen is not protected",
    "what is taken as public: {public_inputs}",
    "people with several records, beyond the group bound stated above",
    "facts about the records as a whole: learning these is the purpose of a twin",
    "attacks on floating-point arithmetic: the theorem is about real numbers",
    "an attacker who can tell AES-256 from chance: the noise and the batches are its key stream",
    "choices made by looking at private results, such as tuning or keeping the best of many runs",
    "the folder internal/: it holds numbers computed from private records and must not be shared",
)


@dataclass(frozen=True)
class Guarantee:
    """What holds, in numbers and in words. ε and δ are None where nothing is guaranteed."""

    epsilon: float | None
    delta: float | None
    unit: str
    neighbouring: str
    sentence: str
    covers: tuple[str, ...]
    excludes: tuple[str, ...]


def guarantee(ledger: Ledger) -> Guarantee:
    """Say what a ledger guarantees.

    Guarantee: (ε, δ)-differential privacy for adding or removing one record, by the composition of
    Poisson-subsampled Gaussian sums and Gaussian releases. "None" wherever an assumption of that
    theorem is not stated by the ledger, ε is not finite, or δ is not below 1/N: then a mechanism
    that publishes some records word for word would pass too.
    """
    spent = epsilon(ledger.events, ledger.delta)
    reasons = _reasons(ledger, spent)
    given = not reasons
    excludes = tuple(e.format(public_inputs="; ".join(ledger.public_inputs)) for e in _EXCLUDES)
    return Guarantee(
        epsilon=spent if given else None,
        delta=ledger.delta if given else None,
        unit=ledger.unit,
        neighbouring=ledger.neighbouring,
        sentence=_sentence(ledger, spent) if given else _none(ledger, reasons),
        covers=_COVERS if given else (),
        excludes=(*excludes, *ledger.caveats) if given else ledger.caveats,
    )


def _reasons(ledger: Ledger, spent: float) -> list[str]:
    """Return why there is no guarantee, worst first; nothing where there is one."""
    return [
        *(
            f"private records were used without noise ({event.reason})"
            for event in ledger.events
            if isinstance(event, NonPrivateAccess)
        ),
        *(reason for holds, reason in _assumptions(ledger, spent) if not holds),
    ]


def _assumptions(ledger: Ledger, spent: float) -> list[tuple[bool, str]]:
    """Return every assumption of the theorem: whether the ledger states it, and what if not."""
    policy = f"{ledger.policy}, {ledger.policy_form} form"
    return [
        (bool(ledger.events), "the ledger records no release, so it does not describe the twin"),
        (ledger.randomness_is_private, f"the noise can be reproduced ({ledger.randomness})"),
        (ledger.unit == stance.UNIT, f"the unit '{ledger.unit}' is not known here"),
        (
            ledger.neighbouring == stance.NEIGHBOURING,
            f"the neighbouring relation '{ledger.neighbouring}' is not known here",
        ),
        (
            ledger.sampler == stance.SAMPLER,
            f"batches were not drawn by Poisson sampling ('{ledger.sampler}')",
        ),
        (
            ledger.clipping == stance.CLIPPING,
            f"it is not stated that the whole record was clipped ('{ledger.clipping}')",
        ),
        (
            (ledger.policy, ledger.policy_form) in _COVERED_POLICIES,
            f"no theorem here covers the noise policy '{policy}'",
        ),
        (ledger.records_public, "the number of records is not taken as public, but is used"),
        (
            all(e.sample_rate == ledger.sample_rate for e in _subsampled(ledger)),
            "the events and the ledger state different sample rates",
        ),
        (math.isfinite(spent), "the events add up to no finite epsilon"),
        (ledger.delta * ledger.records < 1, _large_delta(ledger)),
    ]


def _subsampled(ledger: Ledger) -> list[SubsampledGaussian]:
    return [event for event in ledger.events if isinstance(event, SubsampledGaussian)]


def _large_delta(ledger: Ledger) -> str:
    return (
        f"WARNING: delta = {_up_digits(ledger.delta)} is not below 1/N for N = {ledger.records} "
        "records, and such a delta would permit publishing some records word for word; "
        "choose a far smaller delta"
    )


def _none(ledger: Ledger, reasons: list[str]) -> str:
    return (
        f"No privacy guarantee: none, because {'; and because '.join(reasons)}. "
        "Treat the twin, the model and everything drawn from them as private."
    )


def _sentence(ledger: Ledger, spent: float) -> str:
    eps, delta = _up_decimals(spent), _up_digits(ledger.delta)
    return (
        f"The twin and the model are ({eps}, {delta})-differentially private for each "
        f"{ledger.unit}, under the relation '{ledger.neighbouring}': whatever anyone does with "
        "them, the probability of any outcome with a given record in the table is at most "
        f"e^{eps}{_factor(eps)} times its probability without that record, and the other way "
        f"round, plus {delta}. "
        "A person with several records is covered by the group bound only: with m records, epsilon "
        f"becomes m times {eps} and delta becomes {delta} times "
        f"(e^(m times {eps}) - 1) / (e^{eps} - 1). "
        f"Taken as public and not protected: {'; '.join(ledger.public_inputs)}. "
        "Not covered: the base model's own training data, attacks on floating-point arithmetic, "
        "and the evaluation in the folder internal/."
        + "".join(f" Mind: {caveat}." for caveat in ledger.caveats)
    )


def _factor(eps: str) -> str:
    """Spell out e^ε where it is a number a reader can picture."""
    value = float(eps)
    return f" (about {math.ceil(math.exp(value)):,})" if 1 <= value <= 20 else ""


def _up_decimals(value: float) -> str:
    """Round up to two decimals: a stated ε is never below the computed one.

    >>> _up_decimals(7.9964), _up_decimals(0.001)
    ('8.00', '0.01')
    """
    return str(Decimal(value).quantize(Decimal("0.01"), ROUND_CEILING))


def _up_digits(value: float) -> str:
    """Round up to three significant digits.

    >>> _up_digits(1e-5), _up_digits(2.5114e-07)
    ('1e-05', '2.52e-07')
    """
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(value))):.3g}"
