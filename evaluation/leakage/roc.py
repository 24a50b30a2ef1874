"""How well an attack tells members from non-members: AUROC, TPR at a low FPR, and the curve.

Sources: Carlini et al. 2022, "Membership Inference Attacks From First Principles" (why the low
false-positive rates count); Newcombe 2006, "Confidence intervals for an effect size measure based
on the Mann-Whitney statistic. Part 2". Knows nothing of where scores come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from evaluation.findings import Z_95, Curve, Measured, Place, Score, proportion

AUROC = "AUROC"
RATES = {"TPR at 1 % FPR": 0.01, "TPR at 0.1 % FPR": 0.001}
RESAMPLES = 1000  # bootstrap draws of rows
POINTS = 200  # of a curve, at most


@dataclass(frozen=True)
class Attack:
    """What an attack makes of rows: the higher the score, the more like a member.

    Args:
        name: the attack's.
        sees: what it looks at: "model" or "released rows".
        members: (n,) scores of rows that were trained on; none is NaN.
        non_members: (m,) of rows that were not.
    """

    name: str
    sees: str
    members: np.ndarray
    non_members: np.ndarray

    def __post_init__(self) -> None:
        """Refuse what cannot be ranked."""
        if not (len(self.members) and len(self.non_members)):
            raise ValueError(f"{self.name}: members and non-members are needed")
        if np.isnan(self.members).any() or np.isnan(self.non_members).any():
            raise ValueError(f"{self.name}: a score is no number")

    @property
    def place(self) -> Place:
        """Where its scores stand among those of other attacks."""
        return {"attack": self.name, "sees": self.sees}


@dataclass(frozen=True)
class Separation:
    """How well some attacks do.

    Args:
        measured: by attack, AUROC and the TPRs.
        curve: one line an attack.
        notes: which rate too few non-members were there for.
    """

    measured: tuple[Measured, ...]
    curve: Curve
    notes: tuple[str, ...]


def separation(attacks: Sequence[Attack], seed: int, place: Place | None = None) -> Separation:
    """Judge attacks.

    Args:
        attacks: their scores.
        seed: of the bootstrap.
        place: joined to every attack's own: which run was attacked.
    """
    found = [
        Measured("leakage", score, {**(place or {}), **attack.place})
        for attack in attacks
        for score in scores(attack, seed)
    ]
    notes = dict.fromkeys(note for attack in attacks for note in _too_few(attack))
    return Separation(tuple(found), roc_curve(attacks), tuple(notes))


def scores(attack: Attack, seed: int) -> list[Score]:
    """Return AUROC, and the share of members found at each false-positive rate of `RATES`.

    The threshold of a rate is the lowest at which no larger share of non-members is above it; equal
    scores are on one side. Intervals: 95 % percentiles of `RESAMPLES` bootstrap draws of rows,
    members and non-members apart. A bootstrap of rows that the attack separates wholly, or of which
    it finds none, has no width; so an interval always holds Newcombe's (AUROC) or Wilson's (TPR)
    too. It speaks of the rows, not of training once more.

    >>> attack = Attack("loss", "model", np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    >>> scores(attack, seed=0)[0].value
    0.875
    """
    ranking = _Ranking(attack)
    value, *rates = ranking.separation()
    rng = np.random.default_rng(seed)
    draws = np.array([ranking.separation(rng) for _ in range(RESAMPLES)])  # (R, 1 + rates)
    lows, highs = np.quantile(draws, [0.025, 0.975], axis=0)
    n, m = len(attack.members), len(attack.non_members)
    low, high = _newcombe(value, n, m)
    area = Score(AUROC, value, low, high, "minimise", 0.0, 1.0, n + m)
    found = [
        proportion(name, round(p * n), n, "minimise") for name, p in zip(RATES, rates, strict=True)
    ]
    return [
        replace(score, low=min(score.low, float(low)), high=max(score.high, float(high)))
        for score, low, high in zip([area, *found], lows, highs, strict=True)
    ]


def roc_curve(attacks: Sequence[Attack]) -> Curve:
    """Return the curve for logarithmic axes: what is 0 has no place there and is left out."""
    most = max(len(attack.non_members) for attack in attacks)
    series = {attack.name: _Ranking(attack).points() for attack in attacks}
    series["guessing"] = [(p, p) for p in np.geomspace(1 / most, 1, 20).tolist()]
    return Curve(
        "leakage",
        "Members found by attack",
        "non-members taken for members (share)",
        "members found (share)",
        series,
        log="xy",
    )


class _Ranking:
    """Distinct scores from the highest down, and where among them each row stands."""

    def __init__(self, attack: Attack) -> None:
        both = np.concatenate([attack.members, attack.non_members])
        distinct, places = np.unique(-both, return_inverse=True)
        self._size = len(distinct)
        self._members, self._non_members = np.split(places, [len(attack.members)])

    def separation(self, rng: np.random.Generator | None = None) -> list[float]:
        """Return AUROC and the TPRs: of all rows, or of a draw with replacement."""
        members, non_members = (
            self._counts(self._members, rng),
            self._counts(self._non_members, rng),
        )
        beaten = len(self._non_members) - non_members.cumsum() + non_members / 2  # ties half
        area = float((members * beaten).sum()) / (len(self._members) * len(self._non_members))
        allowed = _allowed(np.array(list(RATES.values())), len(self._non_members))
        return [area, *_tpr(members, non_members, allowed).tolist()]

    def points(self) -> list[tuple[float, ...]]:
        """Return (FPR, TPR), both above 0, evenly spread over the logarithm of the FPR."""
        total = len(self._non_members)
        allowed = np.unique(_allowed(np.geomspace(1 / total, 1, POINTS), total))
        found = _tpr(self._counts(self._members), self._counts(self._non_members), allowed)
        points = zip((allowed / total).tolist(), found.tolist(), strict=True)
        return [(x, y) for x, y in points if y > 0]

    def _counts(self, places: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(distinct scores,) rows of each score."""
        drawn = places if rng is None else places[rng.integers(len(places), size=len(places))]
        return np.bincount(drawn, minlength=self._size)


def _tpr(members: np.ndarray, non_members: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Share of members above the lowest threshold that leaves `allowed` non-members above it."""
    found = np.concatenate([[0], members.cumsum()])
    return np.asarray(
        found[np.searchsorted(non_members.cumsum(), allowed, side="right")] / found[-1]
    )


def _allowed(rates: np.ndarray, total: int) -> np.ndarray:
    return np.floor(rates * total + 1e-9).astype(int)  # 0.01 · 100 shall be 1


def _too_few(attack: Attack) -> list[str]:
    total = len(attack.non_members)
    return [
        f"{name}: {total} non-members are too few for that rate, {math.ceil(1 / rate)} are needed; "
        "it is the share of members above all non-members"
        for name, rate in RATES.items()
        if total < 1 / rate
    ]


def _newcombe(area: float, n: int, m: int) -> tuple[float, float]:
    """Return Newcombe's interval of AUROC (his method 5), which has a width at 0 and 1 too.

    >>> low, high = _newcombe(1.0, 10, 10)
    >>> round(low, 2), high
    (0.8, 1.0)
    """
    mean = (n + m) / 2 - 1

    def excess(theta: float) -> float:
        spread = 1 + mean * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return float((theta - area) ** 2 - Z_95**2 * theta * (1 - theta) * spread / (n * m))

    least = 1e-9  # at 0 and 1 themselves the variance is 0
    low = brentq(excess, 0.0, area - least) if area > least else 0.0
    high = brentq(excess, area + least, 1.0) if area < 1 - least else 1.0
    return float(low), float(high)
