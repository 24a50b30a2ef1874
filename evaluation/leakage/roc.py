"""How well attacks tell members from non-members, and whether that can mean anything.

AUROC, the TPR at a low FPR, and the curve. Sources: Carlini et al. 2022, "Membership Inference
Attacks From First Principles" (why the low false-positive rates count). Newcombe 2006, "Confidence
intervals for an effect size measure based on the Mann-Whitney statistic. Part 2".

If members and non-members differ without any model or twin, an attack that tells them apart proves
nothing. It may have seen the difference of the two tables (Duan et al. 2024, "Do Membership
Inference Attacks Work on Large Language Models?"). `measure_shift` says whether they differ.

`one_run_audit` bounds ε from below, by telling canaries that a coin put in from those that it left
out. Source: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem
5.2 and corollary 5.4. The bound is valid on these conditions:

- Neighbouring tables differ by one canary: one record added or removed. So a canary is one record,
  planted once, and a unit of the guarantee under test. One that is copied, or that shares an owner
  with another, would be protected by less than was claimed.
- Each canary is in the table with probability 1/2, independently of all others and of all else
  (`include`). The trainer does not choose them.
- The scores are computed from the mechanism's release and from the canaries themselves, never
  from the coins. They may depend on each other in any way.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from twinset.errors import InputError
from twinset.table.records import Records

from ..findings import Z_95, Curve, Measured, Place, Score, proportion
from ..release import normalised, take_records

AUROC = "AUROC"
RATES = {"TPR at 1 % FPR": 0.01, "TPR at 0.1 % FPR": 0.001}
RISKIEST, TENTH = "members among the riskiest tenth", 10
RESAMPLES = 1000  # bootstrap draws of rows
POINTS = 200  # of a curve, at most
MODEL, RELEASED = "model", "released rows"  # what an attack sees
FOLDS = 5
SHIFT_ROWS = 10_000  # of either side, at most: more would not move the interval's verdict
MARGIN = 0.02  # of AUROC above guessing
PLACE = {"attack": "words of the row", "sees": "neither model nor released rows"}
ROUNDING = 1e-9  # 0.01 · 100 shall be 1
BOUND, CLAIM = "lower bound of ε", "claimed epsilon"
CONFIDENCE = 0.95
PRECISION = 1e-6  # of the bisection
FEWEST_GUESSES = 8  # fewer prove little even if all are right


@dataclass(frozen=True)
class Attack:
    """An attack's scores of rows: the higher the score, the more like a member."""

    name: str
    sees: str  # the attack's input: `MODEL` or `RELEASED`
    members: np.ndarray  # (n,) scores of training rows, never NaN
    non_members: np.ndarray  # (m,) of rows that were not


def separation(
    attacks: Sequence[Attack], seed: int, place: Place | None = None
) -> tuple[list[Measured], Curve, list[str]]:
    """Return AUROC and TPRs of attacks, a curve of each, and notes on rates with too few rows.

    `place` says which run was attacked, and `seed` is of the bootstrap.
    """
    from sklearn.metrics import roc_curve

    measured: list[Measured] = []
    notes: list[str] = []
    series: dict[str, list[tuple[float, ...]]] = {}
    for attack in attacks:
        where = {**(place or {}), "attack": attack.name, "sees": attack.sees}
        measured += [Measured("leakage", score, where) for score in attack_scores(attack, seed)]
        total = len(attack.non_members)
        notes += [
            f"{name}: {total} non-members are too few for that rate, which needs "
            f"{math.ceil(1 / rate)}. It is the share of members above all non-members."
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
    return measured, curve, list(dict.fromkeys(notes))


def attack_scores(attack: Attack, seed: int) -> list[Score]:
    """Return AUROC, and the share of members found at each false-positive rate of `RATES`.

    All in 0 to 1. AUROC is 0.5 if the attack guesses and 1 if it finds every member. For a private
    twin its interval should contain 0.5. The threshold of a rate is the lowest at which no larger
    share of non-members is above it. Equal scores are on one side.

    Intervals: 95 % percentiles of `RESAMPLES` bootstrap draws of rows, members and non-members
    apart. If the attack separates all rows or finds none, the bootstrap has no width. So an
    interval always includes Newcombe's (AUROC) or Wilson's (TPR) too. It is about the rows, not
    about training once more.

    >>> attack = Attack("loss", "model", np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    >>> attack_scores(attack, seed=0)[0].value
    0.875
    """
    from scipy.optimize import brentq

    both = np.concatenate([attack.members, attack.non_members])
    distinct, ranks = np.unique(-both, return_inverse=True)  # the highest score first
    n, m = len(attack.members), len(attack.non_members)
    sides, rng = np.split(ranks, [n]), np.random.default_rng(seed)
    allowed = np.floor(np.array(list(RATES.values())) * m + ROUNDING)  # non-members above
    values = []  # (1 + R, 1 + rates): all rows, then the draws
    for draw in range(1 + RESAMPLES):
        # Draws only change how often each score counts, so rows are ranked once.
        drawn = sides if draw == 0 else [s[rng.integers(len(s), size=len(s))] for s in sides]
        mine, others = (np.bincount(side, minlength=len(distinct)) for side in drawn)
        beaten = m - others.cumsum() + others / 2  # a tie counts one half
        above = np.searchsorted(others.cumsum(), allowed, side="right")
        found = np.concatenate([[0], mine.cumsum()])[above] / n
        values.append([float(mine @ beaten) / (n * m), *found])
    area, *rates = map(float, values[0])

    def excess(theta: float) -> float:
        """Return 0 at the ends of Newcombe's interval (his method 5)."""
        shapes = (1 - theta) / (2 - theta) + theta / (1 + theta)
        spread = 1 + ((n + m) / 2 - 1) * shapes
        return float((theta - area) ** 2 - Z_95**2 * theta * (1 - theta) * spread / (n * m))

    least = 1e-9  # at 0 and 1 themselves the variance is 0
    ends = (
        float(brentq(excess, 0.0, area - least)) if area > least else 0.0,
        float(brentq(excess, area + least, 1.0)) if area < 1 - least else 1.0,
    )
    scores = [Score(AUROC, area, *ends, "minimise", 0.0, 1.0, n + m)]
    for name, rate in zip(RATES, rates, strict=True):
        scores.append(proportion(name, round(rate * n), n, "minimise"))
    lows, highs = np.quantile(values[1:], [0.025, 0.975], axis=0)
    return [
        replace(score, low=min(score.low, float(low)), high=max(score.high, float(high)))
        for score, low, high in zip(scores, lows, highs, strict=True)
    ]


def find_riskiest(attacks: Sequence[Attack], seed: int) -> tuple[Measured, np.ndarray, np.ndarray]:
    """Return how many of the riskiest tenth of rows are members, and these members.

    A row's risk is its highest rank in any attack, from 0 to 1, among members and non-members. A
    mean would hide what one attack sees. Of equal risks, the next highest ranks decide. The share
    is counted with equally many of both sides, the first of the larger. Without a leak it is half.

    Args:
        attacks: of the same rows, which were drawn in random order.
        seed: decides between rows of equal ranks.

    Returns:
        The share of members. (k,) the numbers of the members in the riskiest tenth of all rows,
        the riskiest first, and (k,) their risks.

    >>> far, near = np.array([9.0, *range(9)]), np.arange(10) - 0.5
    >>> found, members, risks = find_riskiest([Attack("loss", "model", far, near)], seed=0)
    >>> found.score.value, members.tolist(), risks.tolist()
    (0.5, [0], [1.0])
    """
    from scipy.stats import rankdata

    n, m = len(attacks[0].members), len(attacks[0].non_members)
    # (attacks, n + m) of each row the lowest first. Copies tie, and all of them rank highest.
    ranks = np.sort([rankdata(np.r_[a.members, a.non_members], "max") for a in attacks], axis=0)
    order = np.lexsort((np.random.default_rng(seed).random(n + m), *-ranks))
    members = order[: max(1, (n + m) // TENTH)]
    members = members[members < n]
    equal = order[np.where(order < n, order, order - n) < min(n, m)]
    riskiest = equal[: max(1, len(equal) // TENTH)]
    score = proportion(RISKIEST, int((riskiest < n).sum()), len(riskiest), "minimise")
    place = {"attack": "all of them", "sees": " and ".join(dict.fromkeys(a.sees for a in attacks))}
    return Measured("leakage", score, place), members, ranks[-1, members] / (n + m)


@dataclass(frozen=True)
class Sides:
    """Rows that attacks have to tell apart, and how well that works without any model or twin."""

    members: Records  # that were trained on
    non_members: Records
    measured: tuple[Measured, ...]  # what `measure_shift` found
    notes: tuple[str, ...]  # on rows left out, and on the shift


def draw_sides(members: Records, non_members: Records, most: int, seed: int) -> Sides:
    """Draw at most `most` rows of either side, of those whose text is on one side only.

    A text that is on both sides, by its lower-cased letters and digits, is neither member nor
    non-member. If it were left out among the non-members alone, common texts would be found among
    members only, and an attack would see that. So it is left out on both sides.
    """
    both, notes = (members, non_members), []
    keys = [[normalised(text) for text in side.texts] for side in both]
    if shared := set(keys[0]) & set(keys[1]):
        alone = [np.flatnonzero([key not in shared for key in side]) for side in keys]
        if not all(map(len, alone)):
            raise InputError(
                "all rows are members and non-members. Name rows that were not trained on."
            )
        out = [len(side) - len(rest) for side, rest in zip(both, alone, strict=True)]
        notes.append(
            f"{out[0]} of {len(members)} members and {out[1]} of {len(non_members)} non-members "
            "have a text that is on both sides. They are left out of membership inference."
        )
        members, non_members = map(take_records, both, alone)
    shift, differ = measure_shift(members.texts, non_members.texts, seed)
    rng = np.random.default_rng(seed)
    members, non_members = (
        take_records(side, rng.permutation(len(side))[:most]) for side in (members, non_members)
    )
    measured = () if shift is None else (shift,)
    return Sides(members, non_members, measured, (*notes, *differ))


def measure_shift(
    members: Sequence[str], non_members: Sequence[str], seed: int
) -> tuple[Measured | None, tuple[str, ...]]:
    """Return how well a classifier of words tells members from non-members, and notes.

    It uses TF-IDF and a logistic regression. Every row is judged by a model trained on four fifths
    of the others. Each text counts once, because a repeated one could be looked up. The AUROC
    should be 0.5. If its interval is above that by more than `MARGIN`, a note says what that means.

    The interval over rows is widened for the folds' common training rows (Nadeau and Bengio 2003,
    "Inference for the Generalization Error"). Random halves of 600 reviews have AUROCs that spread
    1.6 times as wide as those of independent rows would.
    There is none if there are too few rows. No text may be on both sides.
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
            "whether members and non-members differ without the twin was not tested, because it "
            f"needs {FOLDS} different texts of each",
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
    note = (
        "members and non-members differ in distribution. Words alone, without model or twin, "
        f"tell them apart with an {AUROC} of {area}. Membership inference means nothing on "
        "these tables. Take non-members drawn at random from the same table as the members."
    )
    return Measured("leakage", area, PLACE), (note,) if area.low > 0.5 + MARGIN else ()


@dataclass(frozen=True)
class OneRun:
    """The lower bound from one run."""

    epsilon: float  # with the stated confidence ε is at least this
    canaries: int  # m, of which each was included with probability 1/2
    guesses: int  # r, for the guesses that prove most
    correct: int  # v, how many of these were right
    tried: tuple[int, ...]  # numbers of guesses that were tried, among which the level was divided
    delta: float  # δ at which ε is bounded
    ceiling: float  # the bound if all guesses had been right: no leak can show more in this audit
    confidence: float = CONFIDENCE


def include(m: int) -> np.ndarray:
    """Draw which canaries go into the table: (m,) bool, each with probability 1/2.

    The coins are the operating system's. A seed would draw the same ones in every audit, and the
    confidence is a statement about these coins.
    """
    return np.array([secrets.randbits(1) for _ in range(m)], dtype=bool)


def one_run_audit(
    scores: np.ndarray,
    included: np.ndarray,
    delta: float,
    guesses: int | Sequence[int] | None = None,
    *,
    highest_only: bool = False,
) -> OneRun:
    """Guess who is included by the scores, and bound ε by how many guesses are right.

    Of r guesses, half say that the highest scores are included, half that the lowest are not. All
    others abstain. Canaries with equal scores are taken in their own order. With `highest_only` all
    r are of the first kind: a twin shows included records, not those left out.

    A single number of guesses, fixed before the scores are known, needs no correction. Of several
    the best is taken, and each is tested at (1 - confidence) / number of them. For the guarantee of
    the bound see `twinset.privacy.statement.theorems`, ONE_RUN_AUDIT.

    Scores (m,) are higher if a canary looks included. `included` (m,) is drawn by `include`.
    Numbers of guesses are chosen without a look at the scores. None halves m again and again.
    """
    scores, included = np.asarray(scores, float), np.asarray(included, bool)
    m = len(scores)
    if guesses is None:
        # m, m/2, m/4 …, as long as they can prove something. About half of all are included.
        halved = range(1, m.bit_length())
        first = [] if highest_only else [m]
        guesses = [*first, *(m >> k for k in halved if m >> k >= FEWEST_GUESSES)] or [m]
    tried = (guesses,) if isinstance(guesses, int) else tuple(dict.fromkeys(guesses))
    each = 1 - (1 - CONFIDENCE) / len(tried)
    order = np.argsort(-scores, kind="stable")
    ranked = included[order]  # by falling score
    lowest = [0 if highest_only else r // 2 for r in tried]  # guesses that one was left out
    correct = [
        int(ranked[: r - low].sum() + (~ranked[m - low :]).sum())
        for r, low in zip(tried, lowest, strict=True)
    ]
    bounds, ceilings = (
        [epsilon_lower_bound(r, v, m, delta, each) for r, v in zip(tried, right, strict=True)]
        for right in (correct, tried)
    )
    best = int(np.argmax(bounds))
    return OneRun(bounds[best], m, tried[best], correct[best], tried, delta, max(ceilings))


def epsilon_lower_bound(
    guesses: int, correct: int, m: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest ε that `correct` right guesses refute, or 0 if they refute none.

    Data that refute (ε, δ) refute every smaller ε at that δ too. The search is a bisection that
    stops on the safe side. Abstentions are no guesses, and m counts all canaries.

    Corollary 5.4: under (ε, δ)-DP, with W ~ Binomial(r, e^ε / (1 + e^ε)), the probability of v
    correct guesses is at most P(W ≥ v) + 2 m δ · max over i = 1 … v of P(v > W ≥ v - i) / i. All m
    canaries count in the second term, also those without a guess.

    >>> round(epsilon_lower_bound(100, 75, 1000, 1e-4), 3)  # as in the paper's appendix D
    0.673
    """

    def refuted(epsilon: float) -> bool:
        chance = float(expit(epsilon))  # with which randomised response tells the truth
        p = float(binom.sf(correct - 1, guesses, chance))
        if delta > 0 and correct > 0:
            below = binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance).cumsum()
            p += 2 * m * delta * float((below / np.arange(1, correct + 1)).max())
        return p < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):  # doubles until the bound is in between
        low, high = high, 2 * high
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
