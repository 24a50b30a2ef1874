"""The rows of paper 004's experiment: each model on each text set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evaluation.papers.rows import Key
from evaluation.papers.sdp.published import (
    ANONYMISED,
    CONTEXTUAL,
    DIALOGUES,
    DPSGD,
    ENTITIES,
    MISSED,
    NO_DP,
    REDACTED,
    SDP,
    SDPSGD,
    TRANSFORMER,
    WIKITEXT,
)

ANONYMISED_MISSED, SDPSGD_MISSED = f"{ANONYMISED}, {MISSED}", f"{SDPSGD}, {MISSED}"
# Section 5.4 has WikiText-2 alone.
LSTMS = {
    WIKITEXT: (NO_DP, DPSGD, SDPSGD, ANONYMISED, ANONYMISED_MISSED, SDPSGD_MISSED),
    DIALOGUES: (NO_DP, DPSGD, SDPSGD),
}
POLICIES = (ENTITIES, CONTEXTUAL)
TRANSFORMER_NO_DP, TRANSFORMER_DPSGD = f"{TRANSFORMER}, no DP", f"{TRANSFORMER}, DPSGD"


def redacted(policy: str) -> str:
    """Return the name of the model that reads texts without what the policy function flags."""
    return f"{TRANSFORMER}, {REDACTED}, {policy}"


def selective(policy: str) -> str:
    """Return the name of the model that goes on from there with DPSGD."""
    return f"{TRANSFORMER}, {SDP}, {policy}"


TRANSFORMERS = (
    TRANSFORMER_NO_DP,
    TRANSFORMER_DPSGD,
    *(model(policy) for policy in POLICIES for model in (redacted, selective)),
)


@dataclass(frozen=True)
class Case:
    """One row: which text set, which model, which seed."""

    text: str
    model: str
    seed: int

    @property
    def key(self) -> Key:
        """What names the row."""
        return (self.text, self.model, self.seed)

    def __str__(self) -> str:
        """Return all of it in words."""
        return f"{self.text}: {self.model}, seed {self.seed}"


def cases(seeds: int) -> Iterator[Case]:
    """Yield all rows there should be; what others begin from comes first."""
    for seed in range(seeds):
        for text, models in LSTMS.items():
            yield from (Case(text, model, seed) for model in models)
        yield from (Case(WIKITEXT, model, seed) for model in TRANSFORMERS)
