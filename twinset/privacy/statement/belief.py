"""What (ε, δ) means for one who would know whether somebody is in the table: odds in plain words.

Knows two numbers and a unit; what holds is for `guarantee` to say.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from twinset.privacy.statement.guarantee import Guarantee
from twinset.privacy.statement.ledger import FLAGGED_UNIT, OWNER_UNIT, UNIT

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
