"""The words of a guarantee. `guarantee` decides the content.

Stated numbers are rounded up: no stated ε is below the computed one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from twinset.privacy.accounting.accountant import up_decimals, up_digits
from twinset.privacy.accounting.events import LabelSelection
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import FLAGGED_UNIT, OWNER_UNIT, UNIT

SPENT = "the ε that was spent on this table for it stays spent"  # where a run is deleted


@dataclass(frozen=True)
class Released:
    """The subject of a guarantee, in words.

    Args:
        name: name of the released thing.
        subject: of the sentence, with its verb.
        pronoun: for the subject.
        everything: all that is private if nothing is guaranteed.
        covers: what a guarantee is true of.
    """

    name: str
    subject: str
    pronoun: str
    everything: str
    covers: tuple[str, ...]


TWIN = Released(
    name="twin",
    subject="The twin and the model are",
    pronoun="them",
    everything="the twin, the model and everything drawn from them",
    covers=(
        "the twin, whatever is done with it and however many rows are drawn",
        "the model and everything drawn from it",
        "the noisy counts of labels and, where the ledger names them, the label values selected by "
        "such counts, what follows from those of tokens and lengths, the noisy tables of other "
        "columns, and the teacher with all that it predicts",
        "this ledger (with the number of {unit}s taken as public)",
    ),
)
CLASSIFIER = Released(
    name="classifier",
    subject="The classifier is",
    pronoun="it",
    everything="the classifier and everything predicted with it",
    covers=(
        "the classifier's weights, and everything predicted with them",
        "this ledger (with the number of {unit}s taken as public)",
    ),
)
COVERS_FLAGGED = (
    "flagged spans, in the twin, however many rows are drawn",
    "flagged spans, in the model and everything drawn from it",
)
# In a sentence: the data used, the data left out, and who is protected less.
_WORDS = {
    UNIT: (
        "a given record was",
        "it was",
        "A person with several records is covered by the group bound only: with m records",
    ),
    OWNER_UNIT: (
        "all records of a given owner were",
        "they were",
        "Somebody who is several owners is covered by the group bound only: as m owners",
    ),
}
EXCLUDES = (
    "the base model's own training data: what it had already seen is not protected",
    "what is taken as public: {public_inputs}",
    "people {several}, beyond the group bound: m {unit}s have m times the epsilon",
    "facts about the records as a whole: learning these is the purpose of a {name}",
    "the rounding of sums: noise is exact, but no theorem covers how one {unit}'s presence rounds "
    "the others' clipped gradients as they are added up",
    "an attacker who can tell AES-256 from chance: the noise and the batches are its key stream",
    "choices made by looking at private results, such as tuning or keeping the best of many runs",
    "the folder internal/: it holds numbers computed from private records and must not be shared",
)

EXCLUDES_FLAGGED = (
    "everything that no detector flagged, and every label",
    "that a record is in the table, and where in it something was masked",
)

# Beginnings of sentences that get their own paragraph when a guarantee is shown to people.
_PARAGRAPHS = re.compile(
    r"(?<=\.) (?=A person with|Somebody who|Epsilon is smaller|The privacy weight of|For |"
    r"No guarantee for|Flagged spans are|The values of|Taken as public|Not covered|Mind:|Treat )"
)

LARGEST_DELTA_SHARE = 0.01  # of 1/N: from there on a caveat names δ


def one_of(ledger: Ledger) -> str:
    """Return the word for one of the ledger's N units."""
    return "owner" if ledger.unit == OWNER_UNIT else "record"


def paragraphs(sentence: str) -> list[str]:
    """Cut a guarantee into short paragraphs. Joined by spaces they are all of it.

    >>> paragraphs("It is private. Taken as public and not protected: names. Mind: δ. Is it?")
    ['It is private.', 'Taken as public and not protected: names.', 'Mind: δ. Is it?']
    """
    return _PARAGRAPHS.split(sentence)


def delta_caveats(delta: float, records: int, unit: str = "record") -> tuple[str, ...]:
    """Return the caveats of a δ that is not far below 1/N, or nothing if it is.

    A mechanism that publishes each record word for word with probability δ, and does nothing else,
    is (0, δ)-differentially private. It publishes δN of N records on average.
    """
    if delta * records < LARGEST_DELTA_SHARE:
        return ()
    return (
        f"delta = {up_digits(delta)} is not below {LARGEST_DELTA_SHARE:g}/N for N = {records} "
        f"{unit}s. It alone would permit publishing {up_digits(delta * records)} {unit}s word for "
        "word on average. A far smaller delta is better",
    )


def what_holds(
    ledger: Ledger,
    spent: float,
    curve: Sequence[tuple[float, float]],
    detectors: Sequence[str],
    of_group: float | None,
    released: Released,
) -> str:
    """Put the guarantee into words: for whole records, for all of an owner, or for flagged spans.

    Args:
        ledger: names unit, relation and δ.
        spent: ε of every unit.
        curve: the stated privacy weights, each with its ε. Empty if there are no weights.
        detectors: what masked the texts of a first phase. Unprotected data is named first.
        of_group: ε of m records together, m being the ledger's group size. None: not requested.
        released: the subject.
    """
    eps, delta = up_decimals(spent), up_digits(ledger.delta)
    power = f"e^{eps}"
    if 1 <= float(eps) <= 20:  # a number that a reader can picture
        power += f" (about {math.ceil(math.exp(float(eps))):,})"
    if ledger.unit == FLAGGED_UNIT:
        names = " and ".join(f"'{name}'" for name in detectors)
        # One text in the place of another: (2ε, (1 + e^ε) δ). That says something where e^2ε times
        # that δ is below 1, and that δ below 1/N, as for one text. Logarithms overflow nowhere.
        log_delta = math.log(ledger.delta) + spent + math.log1p(math.exp(-spent))
        alike = "nothing is guaranteed. "
        if 2 * spent + log_delta < 0 and math.log(max(1, ledger.records)) + log_delta < 0:
            both = f"epsilon becomes {up_decimals(2 * spent)}"
            alike = f"{both} and delta {up_digits(math.exp(log_delta))}. "
        claim = (
            f"NOT PROTECTED: everything that the detector {names} did not flag, and every label. "
            "The model was trained on it without noise and may repeat it word for word. Nor is it "
            "hidden that a record is in the table, and where in it something was masked. Flagged "
            f"spans are protected by ({eps}, {delta})-selective differential privacy, for "
            f"{ledger.unit}, under the relation '{ledger.neighbouring}': the probability of any "
            f"outcome where the unmasked text of a given record was used is at most {power} times "
            f"its probability where it was not, and the other way round, plus {delta}. For two "
            f"texts that the detector leaves alike, {alike}"
        )
    else:
        present, absent, several = _WORDS[ledger.unit]
        claim = (
            f"{released.subject} ({eps}, {delta})-differentially private for each "
            f"{ledger.unit}, under the relation '{ledger.neighbouring}': whatever anyone does with "
            f"{released.pronoun}, the probability of any outcome where {present} used is at most "
            f"{power} times its probability where {absent} not, and the other way round, plus "
            f"{delta}. {several}, epsilon becomes m times {eps} and delta becomes {delta} times "
            f"(e^(m times {eps}) - 1) / (e^{eps} - 1). "
        )
    caveats = (*ledger.caveats, *delta_caveats(ledger.delta, ledger.records, one_of(ledger)))
    if of_group is not None:
        size, shown, change = ledger.group_size, up_decimals(of_group), "using or leaving out"
        if ledger.unit == FLAGGED_UNIT:
            change = "using or leaving out the unmasked texts of"
        # From e^ε δ = 1 on, events of probability δ without the group may be certain with it.
        if of_group + math.log(ledger.delta) < 0:
            claim += (
                f"For {change} any {size} records at once, or fewer, the same holds with epsilon "
                f"{shown} and delta {delta}. "
            )
        else:
            claim += (
                f"No guarantee for {size} records together: the epsilon that follows for {change} "
                f"up to {size} at once, {shown}, says nothing at delta {delta}. "
            )
    for event in ledger.events:
        if isinstance(event, LabelSelection):
            several = "s" if event.attributes > 1 else ""
            whose = "records" if event.most == 1 else f"records, {event.most} of each owner at most"
            claim += (
                f"The values of {event.attributes} column{several} were not declared. Those "
                f"are released that {event.threshold} {whose} or more have, by noisy counts. "
            )
    claim += (
        f"Taken as public and not protected: {'; '.join(ledger.public_inputs)}. "
        "Not covered: the base model's own training data, the rounding of sums before noise is "
        "added, and the evaluation in the folder internal/."
        + "".join(f" Mind: {caveat}." for caveat in caveats)
    )
    if (scale := ledger.weight_scale) is not None:
        each = ", ".join(f"{weight:g}: {up_decimals(epsilon)}" for weight, epsilon in curve)
        claim += (
            f" Epsilon is smaller for records of a higher privacy weight ({each}). "
            "The privacy weight of a record is a public function of its own text: 0 where "
            f"the base model ({scale.base_model}) needs {scale.low:.2f} nats a token or less, 1 "
            f"from {scale.high:.2f} on, and linear between: {scale.origin}. A text that sounds "
            "ordinary may still hold a secret."
        )
    return claim
