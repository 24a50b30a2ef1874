"""The one place that says what a ledger guarantees. It fails closed.

ε is computed anew from the events; nothing the ledger claims about ε is believed. Whatever is not
covered by a theorem that this module names makes the guarantee "none". `sentences` has the words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from twinset.privacy import ledger as stance
from twinset.privacy import sentences
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.groups import group_epsilon
from twinset.privacy.ledger import Ledger
from twinset.privacy.weightscale import STATED_WEIGHTS

# Policies (name, form) whose noise these kinds of event describe in full.
_NOISE = (SubsampledGaussian, GaussianRelease)
_COVERED: dict[tuple[str, str], tuple[type[Event], ...]] = {
    ("uniform", "sound"): _NOISE,
    ("uniform", "published"): _NOISE,
    ("importance", "sound"): _NOISE,
    ("importance", "published"): _NOISE,  # the events' σ is that of the least noisy direction
    ("adaptive", "sound"): (IndividualGaussian, GaussianRelease),
    ("selective", "sound"): (*_NOISE, MaskedAccess),
    ("selective", "published"): (*_NOISE, MaskedAccess),
}


@dataclass(frozen=True)
class Guarantee:
    """What holds, in numbers and in words. ε and δ are None where nothing is guaranteed.

    Args:
        epsilon: ε of every unit.
        delta: δ.
        unit: whose presence is protected.
        neighbouring: the change against which it is protected.
        sentence: all of it in words.
        covers: what it is true of.
        excludes: what it is not true of.
        by_weight: adaptive: privacy weight, ε rounded up, share of the public reference texts.
    """

    epsilon: float | None
    delta: float | None
    unit: str
    neighbouring: str
    sentence: str
    covers: tuple[str, ...]
    excludes: tuple[str, ...]
    by_weight: tuple[tuple[float, float, float], ...] = ()


def is_covered(policy: str, form: str) -> bool:
    """Tell whether a theorem here covers a noise policy in this form."""
    return (policy, form) in _COVERED


def guarantee(ledger: Ledger) -> Guarantee:
    """Say what a ledger guarantees.

    Guarantee: (ε, δ)-differential privacy for adding or removing one record (or all records of one
    owner, where the ledger says that these were sampled and clipped as one), by the composition of
    Poisson-subsampled Gaussian sums and Gaussian releases; of selective noise the same for using or
    leaving out one record's unmasked text, all masked texts being known. "None" wherever an
    assumption of that theorem is not stated by the ledger, ε is not finite, or δ is not below 1/N:
    then a mechanism that publishes some records word for word would pass too. Where the ledger
    names a size of groups, the sentence has (ε_m, δ) for adding or removing up to m records at once
    (`groups.group_epsilon`), or says that there is no guarantee for them.
    """
    spent = epsilon(_with_noise(ledger), ledger.delta)
    reasons = _reasons(ledger, spent)
    told = sentences.for_group(ledger, _group_epsilon(ledger)) if not reasons else ""
    given = not reasons
    curve = _curve(ledger) if given and ledger.weight_scale else []
    shares = ledger.weight_scale.shares if ledger.weight_scale else ()
    return Guarantee(
        epsilon=spent if given else None,
        delta=ledger.delta if given else None,
        unit=ledger.unit,
        neighbouring=ledger.neighbouring,
        sentence=_sentence(ledger, spent, curve, told)
        if given
        else sentences.none(reasons, ledger),
        covers=sentences.covers(ledger) if given else (),
        excludes=sentences.excludes(ledger) if given else ledger.caveats,
        by_weight=tuple(
            (weight, float(sentences.up_decimals(eps)), share)
            for (weight, eps), share in zip(curve, shares, strict=False)
        ),
    )


def _sentence(ledger: Ledger, spent: float, curve: list[tuple[float, float]], group: str) -> str:
    if ledger.unit == stance.FLAGGED_UNIT:
        return sentences.for_flagged_spans(ledger, spent, _detectors(ledger), group)
    if curve:
        return sentences.by_weight(ledger, spent, curve, group)
    return sentences.for_records(ledger, spent, group)


def _group_epsilon(ledger: Ledger) -> float | None:
    """Return ε of `group_size` records together at the ledger's δ; None: not asked for."""
    if ledger.group_size is None:
        return None
    return group_epsilon(_with_noise(ledger), ledger.delta, ledger.group_size)


def _curve(ledger: Ledger) -> list[tuple[float, float]]:
    """Return (ρ, ε(ρ)) for the weights that are told."""
    return [(w, epsilon(ledger.events, ledger.delta, w)) for w in STATED_WEIGHTS]


def _with_noise(ledger: Ledger) -> list[Event]:
    """Return the events but for masked accesses, where masked texts are taken as known."""
    masked_are_known = ledger.policy == "selective" and ledger.unit == stance.FLAGGED_UNIT
    return [e for e in ledger.events if not (masked_are_known and isinstance(e, MaskedAccess))]


def _detectors(ledger: Ledger) -> list[str]:
    masked = (event for event in ledger.events if isinstance(event, MaskedAccess))
    return list(dict.fromkeys(event.detector for event in masked))


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
    kinds = _COVERED.get((ledger.policy, ledger.policy_form))
    selective, adaptive = ledger.policy == "selective", ledger.policy == "adaptive"
    unit, neighbouring, clipping = _stance(ledger)
    strange = [
        e for e in ledger.events if not isinstance(e, (*(kinds or _NOISE), NonPrivateAccess))
    ]
    return [
        (bool(ledger.events), "the ledger records no release, so it does not describe the twin"),
        (ledger.randomness_is_private, f"the noise can be reproduced ({ledger.randomness})"),
        (ledger.unit == unit, f"the unit '{ledger.unit}' is not known here"),
        (
            ledger.neighbouring == neighbouring,
            f"the neighbouring relation '{ledger.neighbouring}' is not known here",
        ),
        (
            ledger.sampler == stance.SAMPLER,
            f"batches were not drawn by Poisson sampling ('{ledger.sampler}')",
        ),
        (
            ledger.clipping == clipping,
            f"it is not stated that the whole {unit} was clipped ('{ledger.clipping}')",
        ),
        (kinds is not None, f"no theorem here covers the noise policy '{policy}'"),
        (not strange, f"the noise policy '{policy}' does not explain all events"),
        (
            adaptive == (ledger.weight_scale is not None),
            "it is not stated how privacy weights follow from public constants"
            if adaptive
            else f"the noise policy '{policy}' knows no privacy weights",
        ),
        (
            not selective or len(_detectors(ledger)) > 0,
            "it is not stated what was masked in the phase without noise",
        ),
        (
            ledger.group_size is None or ledger.unit != stance.OWNER_UNIT,
            "a group of records is named where all records of an owner are one unit already",
        ),
        (ledger.records_public, "the number of records is not taken as public, but is used"),
        (
            all(rate == ledger.sample_rate for rate in _sample_rates(ledger.events)),
            "the events and the ledger state different sample rates",
        ),
        (math.isfinite(spent), "the events add up to no finite epsilon"),
        (ledger.delta * ledger.records < 1, sentences.large_delta(ledger)),
    ]


def _stance(ledger: Ledger) -> tuple[str, str, str]:
    """Return the unit, relation and clipping that the theorem for a policy is about."""
    if ledger.policy == "selective":
        return stance.FLAGGED_UNIT, stance.FLAGGED_NEIGHBOURING, stance.CLIPPING
    if ledger.unit == stance.OWNER_UNIT and ledger.policy != "adaptive":  # it weighs records
        return stance.OWNER_UNIT, stance.OWNER_NEIGHBOURING, stance.OWNER_CLIPPING
    return stance.UNIT, stance.NEIGHBOURING, stance.CLIPPING


def _sample_rates(events: Sequence[Event]) -> list[float]:
    kinds = (SubsampledGaussian, IndividualGaussian)
    return [event.sample_rate for event in events if isinstance(event, kinds)]
