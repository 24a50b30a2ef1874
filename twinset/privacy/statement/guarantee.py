"""The only place that decides what a ledger guarantees. It fails closed.

ε is computed again from the events. Claims about ε in the ledger are not believed. If no entry of
`theorems` covers something, the guarantee is "none". `wording` puts a guarantee into words.
`belief_sentence` says what (ε, δ) means against a person who asks whether somebody is in the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from twinset.privacy.accounting.accountant import epsilon, group_epsilon, left_of
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
    Theorem,
)
from twinset.privacy.statement.wording import TWIN, Released


@dataclass(frozen=True, repr=False)
class Guarantee:
    """A guarantee in numbers and in words. ε and δ are None if nothing is guaranteed.

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

    def __repr__(self) -> str:
        """Return the numbers in one line. `sentence` says what they mean."""
        if self.epsilon is None or self.delta is None:
            return "<no privacy guarantee>"
        spent, delta = wording.up_decimals(self.epsilon), wording.up_digits(self.delta)
        return f"<ε = {spent}, δ = {delta}, for each {self.unit}>"

    @property
    def is_of_whole_records(self) -> bool:
        """Whether there is a guarantee for all that a record says, not for spans alone."""
        return self.epsilon is not None and self.unit != FLAGGED_UNIT


def is_covered(policy: str, form: str) -> bool:
    """Return whether a theorem covers a noise policy in this form.

    >>> is_covered("uniform", "sound"), is_covered("adaptive", "published"), is_covered("x", "y")
    (True, False, False)
    """
    theorem = THEOREMS.get((policy, form))
    return theorem is not None and len(theorem.events) > 0


def guarantee(ledger: Ledger, released: Released = TWIN) -> Guarantee:
    """Return what a ledger guarantees about the released data.

    Guarantee: (ε, δ)-differential privacy for using or leaving out one record, by the composition
    of Poisson-subsampled Gaussian sums and Gaussian releases. If the ledger says that owners were
    sampled and clipped as one, the same for all records of an owner. For selective noise the same
    for using or leaving out one record's unmasked text, with all masked texts known. It is "none"
    if the ledger does not state an assumption of that theorem, ε is not finite, or δ is not below
    1/N. With such a δ a mechanism that publishes some records word for word would pass too. From a
    δ of 0.01/N on the sentence warns of it, whether or not the ledger does
    (`wording.delta_caveats`). If the ledger names a size of groups, the sentence has (ε_m, δ) for
    using or leaving out up to m records at once (`accountant.group_epsilon`), or says that there is
    no guarantee for them.
    """
    theorem = THEOREMS.get((ledger.policy, ledger.policy_form), UNIFORM)
    masked = [event.detector for event in ledger.events if isinstance(event, MaskedAccess)]
    is_flagged = ledger.unit == FLAGGED_UNIT
    # Masked texts may be taken as known, and then an access to them reveals nothing else.
    masked_are_known = theorem.masks_texts and is_flagged
    events = [e for e in ledger.events if not (masked_are_known and isinstance(e, MaskedAccess))]
    spent = epsilon(events, ledger.delta)
    reasons = [
        *(
            f"private records were used without noise ({event.reason})"
            for event in ledger.events
            if isinstance(event, NonPrivateAccess)
        ),
        *(reason for holds, reason in _assumptions(ledger, theorem, spent) if not holds),
    ]
    if reasons:
        sentence = (
            f"No privacy guarantee: none, because {', and because '.join(reasons)}. "
            f"Treat {released.everything} as private."
            + "".join(f" Mind: {caveat}." for caveat in ledger.caveats)
        )
        unit, neighbouring = ledger.unit, ledger.neighbouring
        return Guarantee(None, None, unit, neighbouring, sentence, (), ledger.caveats)
    of_group = None  # ε of `group_size` records together, at the ledger's δ
    if ledger.group_size is not None:
        of_group = group_epsilon(events, ledger.delta, ledger.group_size)
    scale = ledger.weight_scale
    # ε(ρ) for the stated privacy weights, empty if records have none
    stated = STATED_WEIGHTS if scale else ()
    curve = [(weight, epsilon(ledger.events, ledger.delta, weight)) for weight in stated]
    detectors = list(dict.fromkeys(masked))
    public = "; ".join(ledger.public_inputs)
    words = {"public_inputs": public, "name": released.name, "unit": wording.one_of(ledger)}
    is_owned = ledger.unit == OWNER_UNIT
    words["several"] = "who are several owners" if is_owned else "with several records"
    excludes = [each.format(**words) for each in wording.EXCLUDES]
    covers = wording.COVERS_FLAGGED if is_flagged else released.covers
    return Guarantee(
        epsilon=spent,
        delta=ledger.delta,
        unit=ledger.unit,
        neighbouring=ledger.neighbouring,
        sentence=wording.what_holds(ledger, spent, curve, detectors, of_group, released),
        covers=tuple(each.format(**words) for each in covers),
        excludes=(
            *(wording.EXCLUDES_FLAGGED if is_flagged else ()),
            *excludes,
            *ledger.caveats,
            *wording.delta_caveats(ledger.delta, ledger.records, words["unit"]),
        ),
        by_weight=tuple(
            (weight, float(wording.up_decimals(eps)), share)
            for (weight, eps), share in zip(curve, scale.shares if scale else (), strict=True)
        ),
    )


def _assumptions(ledger: Ledger, theorem: Theorem, spent: float) -> list[tuple[bool, str]]:
    """Return every assumption of the theorem: whether it is stated, and what to say if not."""
    policy = f"{ledger.policy}, {ledger.policy_form} form"
    # the unit, relation and clipping that the theorem is about: the ledger's, if it is among them
    of_unit = [p for p in theorem.protects if p.unit == ledger.unit]
    protected = (of_unit or list(theorem.protects))[0]
    # an access without noise is a reason of its own
    explained = (*(theorem.events or UNIFORM.events), NonPrivateAccess)
    strange = [event for event in ledger.events if not isinstance(event, explained)]
    steps = [e for e in ledger.events if isinstance(e, SubsampledGaussian | IndividualGaussian)]
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
        (
            is_covered(ledger.policy, ledger.policy_form),
            f"no theorem here covers the noise policy '{policy}'",
        ),
        (not strange, f"the noise policy '{policy}' does not explain all events"),
        (
            theorem.weighs_records == (ledger.weight_scale is not None),
            "it is not stated how privacy weights follow from public constants"
            if theorem.weighs_records
            else f"the noise policy '{policy}' knows no privacy weights",
        ),
        (
            not theorem.masks_texts or any(isinstance(e, MaskedAccess) for e in ledger.events),
            "it is not stated what the phase without noise masked",
        ),
        (
            ledger.group_size is None or ledger.unit != OWNER_UNIT,
            "a group of records is named where all records of an owner are one unit already",
        ),
        (ledger.records_public, "the number of records is not taken as public, but is used"),
        (
            all(step.sample_rate == ledger.sample_rate for step in steps),
            "the events and the ledger state different sample rates",
        ),
        (math.isfinite(spent), "the events add up to no finite epsilon"),
        (
            ledger.delta * ledger.records < 1,
            f"WARNING: delta = {wording.up_digits(ledger.delta)} is not below 1/N for N = "
            f"{ledger.records} records, and such a delta would permit publishing some records word "
            "for word, so choose a far smaller delta",
        ),
    ]


@dataclass(frozen=True)
class Total:
    """What several runs on one table guarantee together. ε and δ are None if it is nothing.

    Args:
        epsilon: ε of every unit.
        delta: δ.
        reason: why nothing is guaranteed.
    """

    epsilon: float | None
    delta: float | None
    reason: str = ""


def total(ledgers: Sequence[Ledger]) -> Total:
    """Return what all runs guarantee together, by composing the events of all their ledgers.

    Guarantee: see `theorems.SEVERAL_RUNS`. δ of the Gaussian sums is the smallest that any run has
    for them. The δ of all selections of label values are added to it. So the total of one run is
    its own (ε, δ), and no further run makes ε smaller. Nothing is guaranteed if one run has no
    guarantee, the runs protect different units, mask with different detectors, or δ is not below
    1/N.

    >>> total([])
    Total(epsilon=None, delta=None, reason='there is no run')
    """
    if not ledgers:
        return Total(None, None, "there is no run")
    kinds, events = dict[tuple[object, ...], int](), list[Event]()
    for number, ledger in enumerate(ledgers, start=1):
        claim = guarantee(ledger)
        if claim.epsilon is None:
            return Total(None, None, f"run {number} of {len(ledgers)} has no guarantee")
        masked = {event for event in ledger.events if isinstance(event, MaskedAccess)}
        kinds.setdefault((claim.unit, claim.neighbouring, frozenset(masked)), number)
        events += [event for event in ledger.events if event not in masked]
    if len(kinds) > 1:
        units = " and ".join(f"{kind[0]} (run {number})" for kind, number in kinds.items())
        return Total(None, None, f"its runs protect different units: {units}")
    of_sums = min(left_of(ledger.delta, ledger.events) for ledger in ledgers)
    delta = of_sums - left_of(0.0, events)
    if not delta * max(ledger.records for ledger in ledgers) < 1:
        return Total(None, None, "the δ of its runs together is not below 1/N")
    return Total(epsilon(events, delta), delta)


LITTLE = 0.99  # from this belief on, the bound alone rules out next to nothing
_WORDS = {  # who is protected, and what stays hidden
    UNIT: ("a record", "that it was used"),
    OWNER_UNIT: ("somebody’s records", "that they were used"),
    FLAGGED_UNIT: ("a record", "that what the detector flagged in it was used"),
}


def most_belief(epsilon: float, delta: float) -> float:
    """Return how sure an even guess can become: (e^ε + δ) / (1 + e^ε), a share from ½ to 1.

    This is the largest chance that any test of an (ε, δ)-private output is right about one record's
    presence, if both cases are equally likely before and all else is known. So it is also the
    largest mean of the belief in the truth. With δ = 0 no single output raises it further. With δ
    above 0 a rare one may, so the sentence says "on average".

    Source: Kairouz, Oh, Viswanath 2015, "The Composition Theorem for Differential Privacy": the
    least total of errors is 2 (1 − δ) / (1 + e^ε).

    >>> most_belief(0.0, 0.0), round(most_belief(1.0, 0.0), 4), most_belief(800.0, 1e-6)
    (0.5, 0.7311, 1.0)
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700.0)))


def most_found(epsilon: float, delta: float, false_alarms: float) -> float:
    """Return the largest share of members that any attack finds at a share of false alarms.

    An attack accuses records of having been used, from an (ε, δ)-private output. It accuses a share
    f of those that were not. Then it finds at most min(e^ε f + δ, 1 − e^−ε (1 − δ − f)) of those
    that were, whatever it knows of all other records. An accused record's odds of having been used
    rise by at most this share over f.

    Source: Kairouz, Oh, Viswanath 2015, as above, whose region of errors it is.

    >>> most_found(0.0, 0.0, 0.01), round(most_found(1.0, 0.0, 0.01), 4), most_found(9e9, 0.0, 0.0)
    (0.01, 0.0272, 0.0)
    """
    power = math.exp(min(epsilon, 700.0))
    return min(power * false_alarms + delta, 1.0 - max(0.0, 1.0 - delta - false_alarms) / power)


def says_little(claim: Guarantee) -> bool:
    """Return whether the bound allows near certainty. True without a guarantee, too.

    From ε of about 4.6 on, an attacker may become nearly certain.
    """
    if claim.epsilon is None or claim.delta is None:
        return True
    return most_belief(claim.epsilon, claim.delta) >= LITTLE


def belief_sentence(claim: Guarantee) -> str:
    """Say in one or two plain sentences what a guarantee hides from a person who knows all else.

    It is for the pages of a share. Without a guarantee it says that nothing is guaranteed.

    Args:
        claim: the result of `guarantee`.
    """
    if claim.epsilon is None or claim.delta is None:
        return "Nothing is guaranteed. What the rows or the model give away has no bound."
    what, that = _WORDS[claim.unit]
    sure = percent_up(most_belief(claim.epsilon, claim.delta))
    bound = (
        f"Someone who knows everything else about {what} can raise their belief {that} from 50 % "
        f"to at most {sure} on average, whatever is done with the twin."
    )
    little = " That rules out little. An audit may show more, but only a smaller ε protects more."
    return bound + (little if says_little(claim) else "")


def percent_up(share: float) -> str:
    """Return a share in percent, rounded up, with more digits close to 100 %.

    >>> percent_up(0.7311), percent_up(0.99967), percent_up(1 - 1e-9), percent_up(0.5)
    ('73.2 %', '99.97 %', 'near certainty', '50 %')
    """
    step = Decimal("0.1") if share < LITTLE else Decimal("0.01")
    shown = (100 * Decimal(share)).quantize(step, ROUND_CEILING)
    return "near certainty" if shown == 100 else f"{shown.normalize():f} %"
