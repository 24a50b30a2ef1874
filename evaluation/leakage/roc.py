"""How well attacks tell members from non-members, and whether that can mean anything.

AUROC, the TPR at a low FPR, and the curve. Sources: Carlini et al. 2022, "Membership Inference
Attacks From First Principles" (why the low false-positive rates count); Newcombe 2006, "Confidence
intervals for an effect size measure based on the Mann-Whitney statistic. Part 2".

Where members and non-members differ without any model or twin, an attack that tells them apart
proves nothing: it may have seen the difference of the two tables (Duan et al. 2024, "Do Membership
Inference Attacks Work on Large Language Models?"). `measure_shift` says whether they do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from twinset.errors import InputError
from twinset.table.records import Records

from ..findings import Z_95, Curve, Measured, Place, Score, proportion
from ..release import normalised, take_records

AUROC = "AUROC"
RATES = {"TPR at 1 % FPR": 0.01, "TPR at 0.1 % FPR": 0.001}
RESAMPLES = 1000  # bootstrap draws of rows
POINTS = 200  # of a curve, at most
MODEL, RELEASED = "model", "released rows"  # what an attack sees
FOLDS = 5
SHIFT_ROWS = 10_000  # of either side, at most: more would not move the interval's verdict
MARGIN = 0.02  # of AUROC above guessing
PLACE = {"attack": "words of the row", "sees": "neither model nor released rows"}
ROUNDING = 1e-9  # 0.01 · 100 shall be 1


@dataclass(frozen=True)
class Attack:
    """What an attack makes of rows: the higher the score, the more like a member."""

    name: str
    sees: str  # what it looks at: `MODEL` or `RELEASED`
    members: np.ndarray  # (n,) scores of rows that were trained on. None is NaN.
    non_members: np.ndarray  # (m,) of rows that were not

    def __post_init__(self) -> None:
        """Refuse what cannot be ranked."""
        if not (len(self.members) and len(self.non_members)):
            raise ValueError(f"{self.name}: members and non-members are needed")
        if np.isnan(self.members).any() or np.isnan(self.non_members).any():
            raise ValueError(f"{self.name}: a score is no number")


@dataclass(frozen=True)
class Separation:
    """How well some attacks do."""

    measured: tuple[Measured, ...]  # by attack, AUROC and the TPRs
    curve: Curve  # one line an attack
    notes: tuple[str, ...]  # which rate too few non-members were there for


def separation(attacks: Sequence[Attack], seed: int, place: Place | None = None) -> Separation:
    """Judge attacks. `place` says which run was attacked, and `seed` is of the bootstrap."""
    from sklearn.metrics import roc_curve

    measured: list[Measured] = []
    notes: list[str] = []
    series: dict[str, list[tuple[float, ...]]] = {}
    for attack in attacks:
        where = {**(place or {}), "attack": attack.name, "sees": attack.sees}
        measured += [Measured("leakage", score, where) for score in attack_scores(attack, seed)]
        total = len(attack.non_members)
        notes += [
            f"{name}: {total} non-members are too few for that rate, {math.ceil(1 / rate)} are "
            "needed; it is the share of members above all non-members"
            for name, rate in RATES.items()
            if total < 1 / rate
        ]
        both = np.concatenate([attack.members, attack.non_members])
        is_member = np.arange(len(both)) < len(attack.members)
        fpr, tpr, _ = roc_curve(is_member, both, drop_intermediate=False)
        # Points are spread evenly over the logarithm of the FPR. Logarithmic axes have no 0.
        grid = np.geomspace(1 / total, 1, POINTS) + ROUNDING
        shown = np.unique(np.searchsorted(fpr, grid, side="right") - 1)
        points = zip(fpr[shown].tolist(), tpr[shown].tolist(), strict=True)
        series[attack.name] = [(x, y) for x, y in points if x > 0 and y > 0]
    least = 1 / max(len(attack.non_members) for attack in attacks)
    series["guessing"] = [(p, p) for p in np.geomspace(least, 1, 20).tolist()]
    x, y = "non-members taken for members (share)", "members found (share)"
    curve = Curve("leakage", "Members found by attack", x, y, series, log="xy")
    return Separation(tuple(measured), curve, tuple(dict.fromkeys(notes)))


def attack_scores(attack: Attack, seed: int) -> list[Score]:
    """Return AUROC, and the share of members found at each false-positive rate of `RATES`.

    All in 0 to 1. AUROC is 0.5 where the attack guesses and 1 where it finds every member. Of a
    private twin its interval should hold 0.5. The threshold of a rate is the lowest at which no
    larger share of non-members is above it. Equal scores are on one side.

    Intervals: 95 % percentiles of `RESAMPLES` bootstrap draws of rows, members and non-members
    apart. A bootstrap of rows that the attack separates wholly, or of which it finds none, has no
    width. So an interval always holds Newcombe's (AUROC) or Wilson's (TPR) too. It speaks of the
    rows, not of training once more.

    >>> attack = Attack("loss", "model", np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    >>> attack_scores(attack, seed=0)[0].value
    0.875
    """
    both = np.concatenate([attack.members, attack.non_members])
    distinct, ranks = np.unique(-both, return_inverse=True)  # the highest score first
    n, m = len(attack.members), len(attack.non_members)
    sides, rng = np.split(ranks, [n]), np.random.default_rng(seed)
    allowed = np.floor(np.array(list(RATES.values())) * m + ROUNDING)  # non-members above
    values = []  # (1 + R, 1 + rates): all rows, then the draws
    for draw in range(1 + RESAMPLES):
        # Draws only change how often each score counts, so rows are ranked once.
        mine, others = (
            np.bincount(
                side if draw == 0 else side[rng.integers(len(side), size=len(side))],
                minlength=len(distinct),
            )
            for side in sides
        )
        beaten = m - others.cumsum() + others / 2  # a tie counts one half
        above = np.searchsorted(others.cumsum(), allowed, side="right")
        found = np.concatenate([[0], mine.cumsum()])[above] / n
        values.append([float(mine @ beaten) / (n * m), *found])
    area, *rates = map(float, values[0])
    scores = [Score(AUROC, area, *newcombe_interval(area, n, m), "minimise", 0.0, 1.0, n + m)]
    for name, rate in zip(RATES, rates, strict=True):
        scores.append(proportion(name, round(rate * n), n, "minimise"))
    lows, highs = np.quantile(values[1:], [0.025, 0.975], axis=0)
    return [
        replace(score, low=min(score.low, float(low)), high=max(score.high, float(high)))
        for score, low, high in zip(scores, lows, highs, strict=True)
    ]


def newcombe_interval(area: float, n: int, m: int) -> tuple[float, float]:
    """Return Newcombe's interval of AUROC (his method 5), which has a width at 0 and 1 too.

    >>> low, high = newcombe_interval(1.0, 10, 10)
    >>> round(low, 2), high
    (0.8, 1.0)
    """
    from scipy.optimize import brentq

    def excess(theta: float) -> float:
        shapes = (1 - theta) / (2 - theta) + theta / (1 + theta)
        spread = 1 + ((n + m) / 2 - 1) * shapes
        return float((theta - area) ** 2 - Z_95**2 * theta * (1 - theta) * spread / (n * m))

    least = 1e-9  # at 0 and 1 themselves the variance is 0
    low = brentq(excess, 0.0, area - least) if area > least else 0.0
    high = brentq(excess, area + least, 1.0) if area < 1 - least else 1.0
    return float(low), float(high)


# -- members and non-members that differ without any model -----------------------------------------


@dataclass(frozen=True)
class Sides:
    """Rows that attacks have to tell apart, and what tells them apart without any model or twin."""

    members: Records  # that were trained on
    non_members: Records
    measured: tuple[Measured, ...]  # what `measure_shift` found
    notes: tuple[str, ...]  # on rows left out, and on the shift


def draw_sides(members: Records, non_members: Records, most: int, seed: int) -> Sides:
    """Draw at most `most` rows of either side, of those whose text is on one side only.

    A text that is on both sides, by its lower-cased letters and digits, is neither member nor
    non-member. Were it left out among the non-members alone, what many people write would be found
    among members only, and an attack would see that. So it is left out on both sides.

    Raises:
        InputError: nothing is left of one.
    """
    both, notes = (members, non_members), []
    keys = [[normalised(text) for text in side.texts] for side in both]
    if shared := set(keys[0]) & set(keys[1]):
        alone = [np.flatnonzero([key not in shared for key in side]) for side in keys]
        if not all(map(len, alone)):
            raise InputError(
                "every row is a member and a non-member; name rows that the twin was not trained on"
            )
        out = [len(side) - len(rest) for side, rest in zip(both, alone, strict=True)]
        notes.append(
            f"{out[0]} of {len(members)} members and {out[1]} of {len(non_members)} non-members "
            "have a text that is on both sides; they are left out of membership inference"
        )
        members, non_members = map(take_records, both, alone)
    shift, differ = measure_shift(members.texts, non_members.texts, seed)
    rng = np.random.default_rng(seed)
    drawn = [
        take_records(side, rng.permutation(len(side))[:most]) for side in (members, non_members)
    ]
    measured = () if shift is None else (shift,)
    return Sides(drawn[0], drawn[1], measured, (*notes, *differ))


def measure_shift(
    members: Sequence[str], non_members: Sequence[str], seed: int
) -> tuple[Measured | None, tuple[str, ...]]:
    """Return how well a classifier of words tells members from non-members, and notes.

    TF-IDF and a logistic regression. Every row is judged by one that was trained on four fifths of
    the others. Each text counts once, since a repeated one could be looked up. The AUROC should be
    0.5. Where its interval lies above that by more than `MARGIN`, a note says what that means.

    The interval over rows is widened for the folds' common training rows (Nadeau and Bengio 2003,
    "Inference for the Generalization Error"). Random halves of 600 reviews have AUROCs that spread
    1.6 times as wide as those of independent rows would.
    There is none where there are too few rows. No text may be on both sides.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    rng, sides = np.random.default_rng(seed), []
    for texts in (members, non_members):
        distinct = list({normalised(text): text for text in texts}.values())
        sides.append([distinct[i] for i in rng.permutation(len(distinct))[:SHIFT_ROWS]])
    if min(map(len, sides)) < FOLDS:
        return None, (
            f"whether members and non-members differ without the twin was not tested: {FOLDS} "
            "different texts of each are needed",
        )
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]")
    classifier = make_pipeline(words, LogisticRegression(class_weight="balanced", max_iter=1000))
    is_member = np.arange(sum(map(len, sides))) < len(sides[0])
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    # (N,) out of fold, higher for members
    found = cross_val_predict(
        classifier, sides[0] + sides[1], is_member, cv=folds, method="decision_function"
    )
    values = np.split(np.asarray(found, float), [len(sides[0])])
    area = attack_scores(Attack(PLACE["attack"], PLACE["sees"], *values), seed)[0]
    factor = math.sqrt(1 + FOLDS / (FOLDS - 1))
    low = area.value - factor * (area.value - area.low)
    high = area.value + factor * (area.high - area.value)
    area = replace(area, low=max(0.0, low), high=min(1.0, high))
    notes: tuple[str, ...] = ()
    if area.low > 0.5 + MARGIN:
        notes = (
            "members and non-members differ in distribution: words alone, without model or twin, "
            f"tell them apart with an {AUROC} of {area}. Membership inference means nothing on "
            "these tables; take non-members drawn at random from the same table as the members",
        )
    return Measured("leakage", area, PLACE), notes
