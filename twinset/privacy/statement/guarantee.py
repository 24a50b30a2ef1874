"""The one place that says what a ledger guarantees. It fails closed.

ε is computed again from the events. Nothing the ledger claims about ε is believed. Whatever no
entry of `theorems` covers makes the guarantee "none". `wording` has the words of a guarantee, and
`belief_sentence` says what (ε, δ) means for one who would know whether somebody is in the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from twinset.privacy.accounting.accountant import epsilon, group_epsilon
from twinset.privacy.accounting.events import (
    Event,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.units import STATED_WEIGHTS
from twinset.privacy.statement import wording
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import (
    FLAGGED_UNIT,
    OWNER_UNIT,
    SAMPLER,
    THEOREMS,
    UNIFORM,
    UNIT,
    Protected,
    Theorem,
)
from twinset.privacy.statement.wording import TWIN, Released

Curve = list[tuple[float, float]]  # privacy weight ρ, ε(ρ)


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

    @property
    def paragraphs(self) -> list[str]:
        """The sentence for people, in paragraphs."""
        return wording.paragraphs(self.sentence)

    @property
    def is_of_whole_records(self) -> bool:
        """Whether something is guaranteed, and of all that a record says, not of spans alone."""
        return protects_whole_records(self.epsilon, self.unit)


def protects_whole_records(epsilon: float | None, unit: str) -> bool:
    """Return whether a guarantee with this ε and unit is one of all that a record says."""
    return epsilon is not None and unit != FLAGGED_UNIT


def is_covered(policy: str, form: str) -> bool:
    """Return whether a theorem covers a noise policy in this form."""
    theorem = THEOREMS.get((policy, form))
    return theorem is not None and len(theorem.events) > 0


def guarantee(ledger: Ledger, released: Released = TWIN) -> Guarantee:
    """Say what a ledger guarantees of what was released.

    Guarantee: (ε, δ)-differential privacy for adding or removing one record (or all records of one
    owner, where the ledger says that these were sampled and clipped as one), by the composition of
    Poisson-subsampled Gaussian sums and Gaussian releases; of selective noise the same for using or
    leaving out one record's unmasked text, all masked texts being known. "None" wherever an
    assumption of that theorem is not stated by the ledger, ε is not finite, or δ is not below 1/N:
    then a mechanism that publishes some records word for word would pass too. From a δ of 0.01/N on
    the sentence warns of it, whether or not the ledger does (`wording.delta_caveats`). Where the
    ledger names a size of groups, the sentence has (ε_m, δ) for adding or removing up to m records
    at once (`group_privacy.group_epsilon`), or says that there is no guarantee for them.
    """
    spent = epsilon(_with_noise(ledger), ledger.delta)
    if reasons := _reasons(ledger, spent):
        return _none(wording.none(reasons, ledger, released), ledger)
    curve = _curve(ledger)
    return Guarantee(
        epsilon=spent,
        delta=ledger.delta,
        unit=ledger.unit,
        neighbouring=ledger.neighbouring,
        sentence=_sentence(ledger, spent, curve, released),
        covers=wording.covers(ledger, released),
        excludes=wording.excludes(ledger, released),
        by_weight=tuple(
            (weight, float(wording.up_decimals(eps)), share)
            for (weight, eps), share in zip(curve, _shares(ledger), strict=True)
        ),
    )


def _none(sentence: str, ledger: Ledger) -> Guarantee:
    return Guarantee(
        epsilon=None,
        delta=None,
        unit=ledger.unit,
        neighbouring=ledger.neighbouring,
        sentence=sentence,
        covers=(),
        excludes=ledger.caveats,
    )


def _sentence(ledger: Ledger, spent: float, curve: Curve, released: Released) -> str:
    group = wording.for_group(ledger, _group_epsilon(ledger))
    if ledger.unit == FLAGGED_UNIT:
        return wording.for_flagged_spans(ledger, spent, _detectors(ledger), group)
    if curve:
        return wording.by_weight(ledger, spent, curve, group)
    return wording.for_records(ledger, spent, group, released)


def _group_epsilon(ledger: Ledger) -> float | None:
    """Return ε of `group_size` records together at the ledger's δ; None: not asked for."""
    if ledger.group_size is None:
        return None
    return group_epsilon(_with_noise(ledger), ledger.delta, ledger.group_size)


def _curve(ledger: Ledger) -> Curve:
    """Return (ρ, ε(ρ)) for the stated weights; nothing where records have none."""
    if ledger.weight_scale is None:
        return []
    return [(w, epsilon(ledger.events, ledger.delta, w)) for w in STATED_WEIGHTS]


def _shares(ledger: Ledger) -> tuple[float, ...]:
    """Return the share of public reference texts nearest to each stated weight."""
    return ledger.weight_scale.shares if ledger.weight_scale else ()


def _with_noise(ledger: Ledger) -> list[Event]:
    """Return the events but for masked accesses, where masked texts are taken as known."""
    masked_are_known = _theorem(ledger).masks_texts and ledger.unit == FLAGGED_UNIT
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
    covered = is_covered(ledger.policy, ledger.policy_form)
    theorem = _theorem(ledger)
    protected, strange = _protected(ledger), _unexplained(ledger)
    return [
        (bool(ledger.events), "the ledger records no release, so it does not describe the twin"),
        (ledger.randomness_is_private, f"the noise can be reproduced ({ledger.randomness})"),
        (ledger.unit == protected.unit, f"the unit '{ledger.unit}' is not known here"),
        (
            ledger.neighbouring == protected.neighbouring,
            f"the neighbouring relation '{ledger.neighbouring}' is not known here",
        ),
        (
            ledger.sampler == SAMPLER,
            f"batches were not drawn by Poisson sampling ('{ledger.sampler}')",
        ),
        (
            ledger.clipping == protected.clipping,
            f"it is not stated that the whole {protected.unit} was clipped ('{ledger.clipping}')",
        ),
        (covered, f"no theorem here covers the noise policy '{policy}'"),
        (not strange, f"the noise policy '{policy}' does not explain all events"),
        (
            theorem.weighs_records == (ledger.weight_scale is not None),
            "it is not stated how privacy weights follow from public constants"
            if theorem.weighs_records
            else f"the noise policy '{policy}' knows no privacy weights",
        ),
        (
            not theorem.masks_texts or len(_detectors(ledger)) > 0,
            "it is not stated what was masked in the phase without noise",
        ),
        (
            ledger.group_size is None or ledger.unit != OWNER_UNIT,
            "a group of records is named where all records of an owner are one unit already",
        ),
        (ledger.records_public, "the number of records is not taken as public, but is used"),
        (
            all(rate == ledger.sample_rate for rate in _sample_rates(ledger.events)),
            "the events and the ledger state different sample rates",
        ),
        (math.isfinite(spent), "the events add up to no finite epsilon"),
        (ledger.delta * ledger.records < 1, wording.large_delta(ledger)),
    ]


def _theorem(ledger: Ledger) -> Theorem:
    """Return the entry of the ledger's policy; where it has none, that of uniform noise."""
    return THEOREMS.get((ledger.policy, ledger.policy_form), UNIFORM)


def _protected(ledger: Ledger) -> Protected:
    """Return the unit, relation and clipping that the policy's theorem is about."""
    theorem = _theorem(ledger)
    return next((p for p in theorem.protects if p.unit == ledger.unit), theorem.protects[0])


def _unexplained(ledger: Ledger) -> list[Event]:
    """Return the events that the policy's theorem does not name."""
    kinds = _theorem(ledger).events or UNIFORM.events
    known = (*kinds, NonPrivateAccess)  # the latter is a reason by itself
    return [event for event in ledger.events if not isinstance(event, known)]


def _sample_rates(events: Sequence[Event]) -> list[float]:
    kinds = (SubsampledGaussian, IndividualGaussian)
    return [event.sample_rate for event in events if isinstance(event, kinds)]


LITTLE = 0.99  # from this belief on, the bound alone rules out next to nothing
_WORDS = {
    UNIT: ("a record", "that it was in the table"),
    OWNER_UNIT: ("somebody’s records", "that they were in the table"),
    FLAGGED_UNIT: ("a record", "that what the detector flagged in it was used"),
}


def most_belief(epsilon: float, delta: float) -> float:
    """Return how sure an even guess can become: (e^ε + δ) / (1 + e^ε), a share from ½ to 1.

    It is the largest chance of being right about one record's presence, both being equally likely
    before and all else known, that any test of an (ε, δ)-private output has; and so the largest
    mean of the belief in the truth. With δ = 0 no single output raises it further either; with δ
    above 0 a rare one may: hence "on average" in the sentence.

    Source: Kairouz, Oh, Viswanath 2015, "The Composition Theorem for Differential Privacy": the
    least total of errors is 2 (1 − δ) / (1 + e^ε).

    >>> most_belief(0.0, 0.0), round(most_belief(1.0, 0.0), 4), most_belief(800.0, 1e-6)
    (0.5, 0.7311, 1.0)
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700.0)))


def says_little(claim: Guarantee) -> bool:
    """Return whether the bound leaves room for near certainty; true of no guarantee as well."""
    if claim.epsilon is None or claim.delta is None:
        return True
    return most_belief(claim.epsilon, claim.delta) >= LITTLE


def belief_sentence(claim: Guarantee) -> str:
    """Say in one or two plain sentences what a guarantee keeps from one who knows all else."""
    if claim.epsilon is None or claim.delta is None:
        return "Nothing is guaranteed: what the rows or the model give away has no bound."
    what, that = _WORDS[claim.unit]
    sure = percent_up(most_belief(claim.epsilon, claim.delta))
    bound = (
        f"Someone who knows everything else about {what} can raise their belief {that} from 50 % "
        f"to at most {sure} on average, whatever is done with the twin."
    )
    little = (
        " That rules out little: at so large an ε, what the attacks of an audit find matters more."
    )
    return bound + (little if says_little(claim) else "")


def percent_up(share: float) -> str:
    """Return a share in percent, rounded up: with more digits where it is nearly all.

    >>> percent_up(0.7311), percent_up(0.99967), percent_up(1 - 1e-9), percent_up(0.5)
    ('73.2 %', '99.97 %', 'near certainty', '50 %')
    """
    step = Decimal("0.1") if share < LITTLE else Decimal("0.01")
    shown = (100 * Decimal(share)).quantize(step, ROUND_CEILING)
    return "near certainty" if shown == 100 else f"{shown.normalize():f} %"
