"""Which scores belong side by side, what their places are called, and what they are held against.

The words are those that the measuring modules use. A measure that is not known here is shown too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.findings import Measured, Score
from evaluation.leakage.roc import AUROC, RATES

CLAIM = "claimed epsilon"
NEARER = "nearer to train than to held-out"
COMMONEST = "the commonest label"
GUESSING = {AUROC: 0.5, **RATES, NEARER: 0.5}  # what is found without any leak
# What may differ between scores side by side: the first of these that a score's place has.
_COMPARED = ("rows", "against", "attack", "copies", "policy")
_NEEDS_NO_NAME = ("label", "classifier", "attack", "policy", "rows", "value", "kind")


@dataclass(frozen=True)
class Group:
    """Scores of one name and place but for one word, by that word.

    Args:
        name: of the scores.
        place: what they have in common.
        members: by the word in which they differ; "" where they have none to differ in.
    """

    name: str
    place: Mapping[str, str]
    members: dict[str, Measured]

    @property
    def scores(self) -> dict[str, Score]:
        """The scores by the word in which they differ."""
        return {word: m.score for word, m in self.members.items()}

    @property
    def title(self) -> str:
        """Name and place in words."""
        return ", ".join(filter(None, (self.name, words(self.place))))

    @property
    def is_drawn(self) -> bool:
        """Whether there is something to compare with."""
        return len(self.members) > 1 or self.name in GUESSING


def groups(measured: Iterable[Measured]) -> list[Group]:
    """Put those side by side whose places differ in one word only."""
    found: dict[tuple[object, ...], Group] = {}
    for m in measured:
        compared = next((word for word in _COMPARED if word in m.place), "")
        rest = {k: v for k, v in m.place.items() if k != compared}
        key = (m.score.name, compared, *sorted(rest.items()))
        group = found.setdefault(key, Group(m.score.name, rest, {}))
        group.members[m.place.get(compared, "")] = m
    return list(found.values())


def words(place: Mapping[str, str]) -> str:
    """Return a place in words.

    >>> words({"label": "sentiment", "classifier": "tfidf", "sees": "model"})
    'sentiment, tfidf, seeing model'
    """
    names = {"sees": "seeing"}
    return ", ".join(
        v if k in _NEEDS_NO_NAME else f"{names.get(k, k)} {v}" for k, v in place.items()
    )


def repetitions(m: Measured) -> float | None:
    """Return how often a secret was planted; None where a place does not say."""
    try:
        return float(m.place["copies"])
    except (KeyError, ValueError):
        return None


def is_exposure(m: Measured) -> bool:
    """Tell the scores that are drawn against repetitions."""
    return m.score.name == "exposure" and repetitions(m) is not None


def claimed(measured: Sequence[Measured], bound: Measured) -> float | None:
    """Return the ε that a lower bound stands beside; None where nothing is claimed."""
    place = bound.place.items()
    claims = (m.score.value for m in measured if m.score.name == CLAIM and m.place.items() <= place)
    claim = next(claims, math.nan)
    return claim if math.isfinite(claim) else None
