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

from evaluation.findings import Z_95, Curve, Measured, Place, Score, proportion
from evaluation.release import normalised, take_records
from twinset.errors import InputError
from twinset.table.records import Records

AUROC = "AUROC"
RATES = {"TPR at 1 % FPR": 0.01, "TPR at 0.1 % FPR": 0.001}
RESAMPLES = 1000  # bootstrap draws of rows
POINTS = 200  # of a curve, at most
MODEL, RELEASED = "model", "released rows"  # what an attack sees
FOLDS = 5
SHIFT_ROWS = 10_000  # of either side, at most: more would not move the interval's verdict
MARGIN = 0.02  # of AUROC above guessing
PLACE = {"attack": "words of the row", "sees": "neither model nor released rows"}


@dataclass(frozen=True)
class Attack:
    """What an attack makes of rows: the higher the score, the more like a member.

    Args:
        name: the attack's.
        sees: what it looks at: `MODEL` or `RELEASED`.
        members: (n,) scores of rows that were trained on. None is NaN.
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
    def ranks(self) -> tuple[np.ndarray, np.ndarray, int]:
        """(n,) and (m,) places among the distinct scores, highest first, and how many these are."""
        both = np.concatenate([self.members, self.non_members])
        distinct, places = np.unique(-both, return_inverse=True)
        members, non_members = np.split(places, [len(self.members)])
        return members, non_members, len(distinct)


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
        Measured("leakage", score, {**(place or {}), "attack": attack.name, "sees": attack.sees})
        for attack in attacks
        for score in attack_scores(attack, seed)
    ]
    notes = [
        f"{name}: {total} non-members are too few for that rate, {math.ceil(1 / rate)} are "
        "needed; it is the share of members above all non-members"
        for total in (len(attack.non_members) for attack in attacks)
        for name, rate in RATES.items()
        if total < 1 / rate
    ]
    return Separation(tuple(found), roc_curve(attacks), tuple(dict.fromkeys(notes)))


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
    members, non_members, size = attack.ranks
    n, m = len(members), len(non_members)
    allowed = _allowed_errors(np.array(list(RATES.values())), m)
    rng = np.random.default_rng(seed)
    values = []  # (1 + R, 1 + rates): all rows, then the draws
    for draw in range(1 + RESAMPLES):
        # Draws only change how often each score counts, so the ranks are computed once.
        rows = [
            np.bincount(each if draw == 0 else each[rng.integers(k, size=k)], minlength=size)
            for each, k in ((members, n), (non_members, m))
        ]
        beaten = m - rows[1].cumsum() + rows[1] / 2  # a tie counts one half
        values.append(
            [float(rows[0] @ beaten) / (n * m), *_true_positive_rates(rows[0], rows[1], allowed)]
        )
    lows, highs = np.quantile(values[1:], [0.025, 0.975], axis=0)
    area, *rates = map(float, values[0])
    found = [Score(AUROC, area, *newcombe_interval(area, n, m), "minimise", 0.0, 1.0, n + m)]
    found += [
        proportion(name, round(p * n), n, "minimise") for name, p in zip(RATES, rates, strict=True)
    ]
    return [
        replace(score, low=min(score.low, float(low)), high=max(score.high, float(high)))
        for score, low, high in zip(found, lows, highs, strict=True)
    ]


def roc_curve(attacks: Sequence[Attack]) -> Curve:
    """Return the curve for logarithmic axes. What is 0 has no place there and is left out."""
    most = max(len(attack.non_members) for attack in attacks)
    series: dict[str, list[tuple[float, ...]]] = {}
    for attack in attacks:
        members, non_members, size = attack.ranks
        total = len(non_members)
        # evenly spread over the logarithm of the FPR
        allowed = np.unique(_allowed_errors(np.geomspace(1 / total, 1, POINTS), total))
        rows = [np.bincount(each, minlength=size) for each in (members, non_members)]
        rates = _true_positive_rates(rows[0], rows[1], allowed)
        points = zip((allowed / total).tolist(), rates.tolist(), strict=True)
        series[attack.name] = [(x, y) for x, y in points if y > 0]
    series["guessing"] = [(p, p) for p in np.geomspace(1 / most, 1, 20).tolist()]
    x, y = "non-members taken for members (share)", "members found (share)"
    return Curve("leakage", "Members found by attack", x, y, series, log="xy")


def _allowed_errors(rates: np.ndarray, total: int) -> np.ndarray:
    return np.floor(rates * total + 1e-9).astype(int)  # 0.01 · 100 shall be 1


def _true_positive_rates(
    members: np.ndarray, non_members: np.ndarray, allowed: np.ndarray
) -> np.ndarray:
    """Share of members above the lowest threshold that leaves `allowed` non-members above it.

    Args:
        members: (distinct scores,) how many members have each, highest first.
        non_members: the same of non-members.
        allowed: (k,) numbers of non-members.
    """
    found = np.concatenate([[0], members.cumsum()])
    places = np.searchsorted(non_members.cumsum(), allowed, side="right")
    return np.asarray(found[places] / found[-1])


def newcombe_interval(area: float, n: int, m: int) -> tuple[float, float]:
    """Return Newcombe's interval of AUROC (his method 5), which has a width at 0 and 1 too.

    >>> low, high = newcombe_interval(1.0, 10, 10)
    >>> round(low, 2), high
    (0.8, 1.0)
    """
    from scipy.optimize import brentq

    mean = (n + m) / 2 - 1

    def excess(theta: float) -> float:
        spread = 1 + mean * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return float((theta - area) ** 2 - Z_95**2 * theta * (1 - theta) * spread / (n * m))

    least = 1e-9  # at 0 and 1 themselves the variance is 0
    low = brentq(excess, 0.0, area - least) if area > least else 0.0
    high = brentq(excess, area + least, 1.0) if area < 1 - least else 1.0
    return float(low), float(high)


# -- members and non-members that differ without any model -------------------------------------


@dataclass(frozen=True)
class Sides:
    """Rows that attacks have to tell apart, and what tells them apart without any model or twin.

    Args:
        members: rows that were trained on.
        non_members: rows that were not.
        measured: what `measure_shift` found.
        notes: on rows left out, and on the shift.
    """

    members: Records
    non_members: Records
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]


def draw_sides(members: Records, non_members: Records, most: int, seed: int) -> Sides:
    """Draw at most `most` rows of either side, of those whose text is on one side only.

    Raises:
        InputError: nothing is left of one.
    """
    members, non_members, shared = without_shared(members, non_members)
    shifted, differ = measure_shift(members.texts, non_members.texts, seed)
    rng = np.random.default_rng(seed)
    known, unknown = (
        take_records(rows, rng.permutation(len(rows))[:most]) for rows in (members, non_members)
    )
    return Sides(known, unknown, () if shifted is None else (shifted,), (*shared, *differ))


def without_shared(
    members: Records, non_members: Records
) -> tuple[Records, Records, tuple[str, ...]]:
    """Leave out, on both sides, rows whose text is on both: lower-cased letters and digits.

    These are neither member nor non-member. Were they left out among the non-members alone, what
    many people write would be found among members only, and an attack would see that.

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

    Args:
        members: texts.
        non_members: texts. None is among the members.
        seed: of folds, of the rows drawn where there are more than `SHIFT_ROWS`, and of the
            bootstrap.

    Returns:
        The AUROC, None where there are too few rows; and notes.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    rng = np.random.default_rng(seed)
    sides = []
    for texts in (members, non_members):
        distinct = list({normalised(text): text for text in texts}.values())
        sides.append([distinct[i] for i in rng.permutation(len(distinct))[:SHIFT_ROWS]])
    known, others = sides
    if min(len(known), len(others)) < FOLDS:
        return None, (
            f"whether members and non-members differ without the twin was not tested: {FOLDS} "
            "different texts of each are needed",
        )
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]")
    classifier = make_pipeline(words, LogisticRegression(class_weight="balanced", max_iter=1000))
    labels = np.arange(len(known) + len(others)) < len(known)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    found = cross_val_predict(
        classifier, known + others, labels, cv=folds, method="decision_function"
    )  # (N,) out of fold, higher for members
    values = np.split(np.asarray(found, float), [len(known)])
    area = attack_scores(Attack(PLACE["attack"], PLACE["sees"], *values), seed)[0]
    factor = math.sqrt(1 + FOLDS / (FOLDS - 1))
    low = area.value - factor * (area.value - area.low)
    high = area.value + factor * (area.high - area.value)
    area = replace(area, low=max(0.0, low), high=min(1.0, high))
    if area.low <= 0.5 + MARGIN:
        return Measured("leakage", area, PLACE), ()
    note = (
        "members and non-members differ in distribution: words alone, without model or twin, tell "
        f"them apart with an {AUROC} of {area}. Membership inference means nothing on these "
        "tables; take non-members drawn at random from the same table as the members"
    )
    return Measured("leakage", area, PLACE), (note,)
