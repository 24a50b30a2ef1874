"""Whether members and non-members can be told apart without any model or twin.

Where they can, an attack that tells them apart proves nothing: it may have seen the difference of
the two tables (Duan et al. 2024, "Do Membership Inference Attacks Work on Large Language Models?").
Texts that are on both sides are neither member nor non-member, and are taken out first. The
interval follows Nadeau and Bengio 2003, "Inference for the Generalization Error".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluation.findings import Measured, Score
from evaluation.leakage.roc import AUROC, Attack, scores
from evaluation.private_table import normalised
from evaluation.release import take_records
from twinset.errors import InputError
from twinset.table.records import Records

FOLDS = 5
ROWS = 10_000  # of either side, at most: more would not move the interval's verdict
MARGIN = 0.02  # of AUROC above guessing
PLACE = {"attack": "words of the row", "sees": "neither model nor released rows"}


@dataclass(frozen=True)
class Sides:
    """Rows that attacks have to tell apart, and what tells them apart without any model or twin.

    Args:
        members: rows that were trained on.
        non_members: rows that were not.
        measured: what `shift` found.
        notes: on rows left out, and on the shift.
    """

    members: Records
    non_members: Records
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]


def sides(members: Records, non_members: Records, most: int, seed: int) -> Sides:
    """Draw at most so many rows of either side, of those whose text is on one side only.

    Raises:
        InputError: nothing is left of one.
    """
    members, non_members, shared = without_shared(members, non_members)
    shifted, differ = shift(members.texts, non_members.texts, seed)
    rng = np.random.default_rng(seed)
    known, unknown = (
        take_records(rows, rng.permutation(len(rows))[:most]) for rows in (members, non_members)
    )
    return Sides(known, unknown, () if shifted is None else (shifted,), (*shared, *differ))


def without_shared(
    members: Records, non_members: Records
) -> tuple[Records, Records, tuple[str, ...]]:
    """Leave out, on both sides, rows whose text is on both: lower-cased letters and digits.

    Were they left out among the non-members alone, what many people write would be found among
    members only, and an attack would see that.

    Returns:
        What is left of both, and notes.

    Raises:
        InputError: nothing is left of one.
    """
    both = (members, non_members)
    texts = [[normalised(text) for text in side.texts] for side in both]
    shared = set(texts[0]) & set(texts[1])
    if not shared:
        return members, non_members, ()
    kept = [
        take_records(side, np.flatnonzero([key not in shared for key in keys]))
        for side, keys in zip(both, texts, strict=True)
    ]
    if not all(map(len, kept)):
        raise InputError(
            "every row is a member and a non-member; name rows that the twin was not trained on"
        )
    out = [len(side) - len(rest) for side, rest in zip(both, kept, strict=True)]
    note = (
        f"{out[0]} of {len(members)} members and {out[1]} of {len(non_members)} non-members have "
        "a text that is on both sides; they are left out of membership inference"
    )
    return kept[0], kept[1], (note,)


def shift(
    members: Sequence[str], non_members: Sequence[str], seed: int
) -> tuple[Measured | None, tuple[str, ...]]:
    """Return how well a classifier of words tells members from non-members, and notes.

    TF-IDF and a logistic regression; every row is judged by one that was trained on four fifths of
    the others. Each text counts once, as a repeated one could be looked up. Where the interval lies
    above guessing by more than `MARGIN`, a note says what that means.

    Args:
        members: texts.
        non_members: texts; none is among the members.
        seed: of folds, of the rows drawn where there are more than `ROWS`, and of the bootstrap.

    Returns:
        The AUROC, None where there are too few rows; and notes.
    """
    rng = np.random.default_rng(seed)
    known, others = (_sample(texts, rng) for texts in (members, non_members))
    if min(len(known), len(others)) < FOLDS:
        return None, (
            f"whether members and non-members differ without the twin was not tested: {FOLDS} "
            "different texts of each are needed",
        )
    values = _judged(known + others, len(known), seed)
    attack = Attack(PLACE["attack"], PLACE["sees"], *np.split(values, [len(known)]))
    area = _widened(scores(attack, seed)[0])
    if area.low <= 0.5 + MARGIN:
        return Measured("leakage", area, PLACE), ()
    note = (
        "members and non-members differ in distribution: words alone, without model or twin, tell "
        f"them apart with an {AUROC} of {area}. Membership inference means nothing on these "
        "tables; take non-members drawn at random from the same table as the members"
    )
    return Measured("leakage", area, PLACE), (note,)


def _widened(area: Score) -> Score:
    """Widen an interval over rows for the folds' common training rows, by Nadeau and Bengio's rule.

    Random halves of 600 reviews have AUROCs that spread 1.6 times as wide as those of independent
    rows would.
    """
    factor = math.sqrt(1 + FOLDS / (FOLDS - 1))
    low = area.value - factor * (area.value - area.low)
    high = area.value + factor * (area.high - area.value)
    return replace(area, low=max(0.0, low), high=min(1.0, high))


def _judged(texts: list[str], members: int, seed: int) -> np.ndarray:
    """(N,) out-of-fold scores, higher for members."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    labels = np.arange(len(texts)) < members
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    found = cross_val_predict(_classifier(), texts, labels, cv=folds, method="decision_function")
    return np.asarray(found, float)


def _classifier() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]")
    return make_pipeline(words, LogisticRegression(class_weight="balanced", max_iter=1000))


def _sample(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    distinct = list({normalised(text): text for text in texts}.values())
    return [distinct[i] for i in rng.permutation(len(distinct))[:ROWS]]
