"""Canary insertion and membership inference, as section 5.1.1 of Shi et al. 2022 has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evaluation.canaries import Canary
from evaluation.exposure import Exposure, exposure
from evaluation.extrapolation import extrapolated_exposure
from evaluation.leakage.roc import Attack, scores
from evaluation.papers.sdp.corpora import Flagged, Row, encoded
from evaluation.papers.sdp.scoring import scored

SWAPPED, HELD_OUT = "other secrets in their place", "rows that were held out"
_DRAW = 0  # seed of which rows are taken: the same for all models


def canary_exposure(model: Any, tokenizer: Any, canary: Canary, exact: bool, seed: int) -> Exposure:
    """Return how well the model knows the canary's secret."""
    prompt = [int(tokenizer.eos_token_id)]
    if exact:
        return exposure(model.eval(), tokenizer, prompt, canary)
    return extrapolated_exposure(model.eval(), tokenizer, prompt, canary, seed=seed)


@dataclass(frozen=True)
class Sides:
    """Rows for membership inference, as many of each.

    Args:
        members: training rows with secrets.
        swapped: the same with other secrets in their place: the paper's non-members. They can be
            told from members by what secrets look like, whatever was learnt from members.
        heldout: other rows of the same kind, with their own secrets.
    """

    members: Flagged
    swapped: Flagged
    heldout: Flagged

    @classmethod
    def of(
        cls,
        train: Sequence[Row],
        heldout: Sequence[Row],
        most: int,
        tokenizer: Any,
        context: int,
    ) -> Sides:
        """Draw rows, and secrets to swap in."""
        rng = np.random.default_rng(_DRAW)
        members, others = (
            [rows[i] for i in rng.permutation(len(rows)).tolist() if rows[i].spans]
            for rows in (train, heldout)
        )
        many = min(most, len(members), len(others))
        other = _Others(others, rng)
        swapped = [row.swapped(other) for row in members[:many]]
        sides = members[:many], swapped, others[:many]
        return cls(*(encoded(rows, tokenizer, context) for rows in sides))


class _Others:
    """Secrets of other rows; of a kind that has no form of its own, other digits.

    Args:
        rows: whose secrets are taken.
        rng: draws.
    """

    def __init__(self, rows: Sequence[Row], rng: np.random.Generator) -> None:
        self._rng = rng
        self._known = defaultdict[str, list[str]](list)
        for row in rows:
            for start, end, kind in row.spans:
                self._known[kind].append(row.text[start:end])

    def __call__(self, value: str, kind: str) -> str:
        """Return another secret: with each digit another where there is nothing but digits."""
        if value.isdecimal() and value.isascii():
            more = self._rng.integers(1, 10, size=len(value)).tolist()
            return "".join(str((int(d) + m) % 10) for d, m in zip(value, more, strict=True))
        known = [other for other in self._known[kind] if other != value]
        return str(known[int(self._rng.integers(len(known)))]) if known else value


def membership(model: Any, sides: Sides, seed: int) -> dict[str, dict[str, float]]:
    """Return accuracy and AUROC against either kind of non-members.

    The score is the mean loss of a row's private tokens; the half of the rows with the least are
    called members.
    """
    members = -_private_loss(model, sides.members)
    found = {}
    for name, side in ((SWAPPED, sides.swapped), (HELD_OUT, sides.heldout)):
        attack = Attack("loss", "model", members, -_private_loss(model, side))
        area = asdict(scores(attack, seed)[0])
        found[name] = {
            "accuracy": halves(attack),
            **{n: area[n] for n in ("value", "low", "high")},
        }
    return found


def halves(attack: Attack) -> float:
    """Return the share told rightly if the higher half is called members; ties count half.

    >>> halves(Attack("", "", np.array([3.0, 1.0]), np.array([2.0, 0.0])))
    0.5
    """
    both = np.concatenate([attack.members, attack.non_members])
    middle = np.median(both)
    above = (attack.members > middle).sum() + (attack.non_members < middle).sum()
    return float((above + (both == middle).sum() / 2) / len(both))


def _private_loss(model: Any, flagged: Flagged) -> np.ndarray:
    """(rows,) mean nats of private tokens."""
    found = scored(model, flagged)
    nats, tokens = (
        np.bincount(flagged.owners, weights=w) for w in (found.private_nats, found.private_tokens)
    )
    return np.asarray(nats / np.maximum(tokens, 1))
