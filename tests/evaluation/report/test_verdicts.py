"""The verdicts: each rule with what keeps it, what breaks it, and what was not measured."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from evaluation.fidelity.measures import SECOND
from evaluation.findings import Measured, Score, proportion
from evaluation.leakage.copies import HELDOUT, REPEATED, RUN_REPEATED, SAMPLE, TRAIN
from evaluation.leakage.names import NAME, PHONE, REPLAYED
from evaluation.leakage.noise import NOISE
from evaluation.release import FEW_ROWS, PRIVATE_CLASSIFIER, TWIN_SMALL
from evaluation.report.verdicts import (
    COPIED,
    COUNTED,
    MEANINGS,
    REFUTED,
    TOO_FEW,
    Verdict,
    judge,
    judge_hand_over,
)
from twinset.errors import InputError, VerificationError
from twinset.privacy.statement.guarantee import Guarantee
from twinset.privacy.statement.theorems import FLAGGED_UNIT

WHERE = {"twin": "twin", "base": "no private data", "real": "real", "second": SECOND}
WHERE |= {"dp": PRIVATE_CLASSIFIER, "cut": TWIN_SMALL, "guess": "the commonest label"}
WHERE |= {"train": TRAIN, "sample": SAMPLE, "heldout": HELDOUT}
BLIND = "neither model nor released rows"
LIKE, FAR = (0.9, 0.95), (0.04, 0.06)
HIGH, HALF = (0.8, 0.9), (0.4, 0.6)


def score(name, low, high, value=None, goal="minimise"):
    value = (low + high) / 2 if value is None else value
    return Score(name, value, low, high, goal, 0.0, 1.0, 100)


def rows(question, name, goal="maximise", **ends):
    return [
        Measured(question, score(name, *each, goal=goal), {"rows": WHERE[key]})
        for key, each in ends.items()
    ]


def accuracy(**ends):
    return rows("utility", "accuracy", **ends)


def few(measured):
    """The same scores of too few rows."""
    return [replace(m, score=replace(m.score, n=FEW_ROWS - 1)) for m in measured]


@pytest.mark.parametrize(
    ("measured", "answer", "said"),
    [
        ([], "Not measured", "there is no accuracy"),
        (accuracy(twin=HIGH), "Not measured", "there is no accuracy"),  # 0 comparisons
        (accuracy(twin=HIGH, base=HALF), "Yes", "the only classifier that the twin"),
        # At a run's end guessing alone is known, and an evaluation may yet find a "No".
        (accuracy(twin=HIGH, guess=HALF), "More than guessing", "also compares"),
        (accuracy(twin=HIGH, guess=HALF, base=(0.85, 0.9)), "No", "is not clearly"),
        (accuracy(twin=(0.5, 0.6), guess=HALF), "No", "is not clearly more accurate"),
        (accuracy(twin=(0.1, 0.2), guess=HALF), "No", ", and 1 clearly less"),
        # More rows teach more, whoever wrote them: a twin is held against the base by as many.
        (accuracy(twin=HIGH, base=HALF, real=HIGH), "Yes", "That is 100% or more"),
        (accuracy(twin=HIGH, base=HALF, real=HIGH, cut=(0.55, 0.65)), "No", "is not"),
    ],
)
def test_useful(measured, answer, said):
    verdict = judge("utility", measured)
    assert verdict.answer == answer and said in verdict.line and " 0 of" not in verdict.line
    concluded = answer != "Not measured"
    assert judge("utility", few(measured)).answer == (TOO_FEW if concluded else answer)


def test_a_verdict_counts_what_went_well():
    """Two of three labels: "In part", and neither 0 of 0 nor 0 of 1."""
    labels = [accuracy(twin=(low, low + 0.1), base=(0.4, 0.5)) for low in (0.6, 0.7, 0.3)]
    measured = [
        replace(m, place=m.place | {"label": f"{i}"}) for i, ms in enumerate(labels) for m in ms
    ]
    found = {n: judge("utility", measured[:n]) for n in (4, 6)}
    assert [found[n].answer for n in (4, 6)] == ["Yes", "In part"]
    assert found[4].line.startswith("all 2 classifiers that the twin taught are clearly more")
    assert found[6].line.startswith("2 of 3 classifiers that the twin taught are clearly more")
    assert judge("utility", measured[4:] + few(measured[:2])).tone == "mixed"


@pytest.mark.parametrize(
    ("goal", "twin", "answer"),
    [
        ("match", (0.45, 0.55), "Yes"),
        ("match", (0.1, 0.2), "No"),
        ("maximise", (0.1, 0.2), "No"),
        ("minimise", (0.8, 0.9), "No"),
    ],
)
def test_faithful(goal, twin, answer):
    compared = rows("fidelity", "m", goal, twin=twin, second=(0.5, 0.6))
    assert judge("fidelity", compared).answer == answer
    assert judge("fidelity", compared[:1]).answer == "Not measured"


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ({"MAUVE": LIKE, "recall of embeddings": LIKE}, "Yes"),
        ({"MAUVE": LIKE, "recall of embeddings": FAR}, "In part"),
        ({"MAUVE": FAR, "recall of embeddings": LIKE}, "No"),
    ],
)
def test_the_measures_that_matter_decide_whether_it_is_faithful(found, answer):
    named = (rows("fidelity", name, twin=twin, second=LIKE) for name, twin in found.items())
    verdict = judge("fidelity", [measured for each in named for measured in each])
    assert verdict.answer == answer and verdict.line.startswith("MAUVE ")


def claim(epsilon, unit="record"):
    return Guarantee(epsilon, None if epsilon is None else 1e-5, unit, "", "", (), ())


# each answer on leakage with its tone, the mildest first
LEAKS = {"No leak found": "good", "Not measured": "unknown", TOO_FEW: "unknown"}
LEAKS |= {"No sure sign": "mixed", COPIED: "mixed", "Signs of a leak": "bad", REFUTED: "bad"}
HANDED = ("Yes", "With care", "Not as it is", "Not yet", "No")  # the mildest first
FAILURES = {
    VerificationError("twin.csv: was altered"): "do not agree with the ledger: twin.csv: was",
    InputError("README.md: is missing."): "could not be checked: README.md: is missing",
}
OF_USE = Verdict("?", "a", "of use", "good")


def hand_over(stated, leak, failure=None):
    leaks = Verdict("?", leak, "an attack found it", LEAKS[leak])
    return judge_hand_over(stated, OF_USE, leaks, failure)


@pytest.mark.parametrize(
    ("stated", "answers"),
    [
        (None, ("No",) * 7),
        (claim(None), ("No",) * 7),
        (claim(1.0), ("Yes",) * 4 + ("Not yet", "Not yet", "No")),
        (claim(8.0), ("With care", "Not yet", "Not yet", "With care", "Not yet", "Not yet", "No")),
        (claim(8.0, FLAGGED_UNIT), ("Not as it is",) * 4 + ("Not yet", "Not yet", "No")),
    ],
)
def test_whether_it_may_be_handed_over(stated, answers):
    for leak, answer in zip(LEAKS, answers, strict=True):
        said = hand_over(stated, leak)
        assert said.answer == answer
        is_told = answer != "Not as it is" and stated is not None and stated.epsilon is not None
        assert ("an attack found it" in said.line) == is_told
        for failure, how in FAILURES.items():
            wrong = hand_over(stated, leak, failure)
            assert (wrong.answer, wrong.tone) == ("No", "bad")
            assert stated is None or f"the files {how}" in wrong.line


def test_the_rule_that_is_printed_is_the_one_that_decides():
    claims = [None, *map(claim, (None, 1.0, 8.0)), claim(1.0, FLAGGED_UNIT)]
    met = [hand_over(*case) for case in product(claims, LEAKS, (None, *FAILURES))]
    for said in met:
        mine = [s for s in said.rule.split(". ") if s.startswith(f"{said.answer}, where ")]
        assert said.rule == met[0].rule and any(said.reasons[0] in each for each in mine)
    decided = [case["where"] for case in MEANINGS["handing"].values()]
    assert {said.reasons[0] for said in met} == {*decided}
    assert sorted(decided, key=met[0].rule.index) == decided  # in the order in which they decide


def attack(low, high, name="AUROC", sees="model", **more):
    return Measured("leakage", score(name, low, high), {"attack": "loss", "sees": sees} | more)


def two_sides(goal, **ends):
    return rows("leakage", "shared", goal, **ends)


def repeated(used, others, n=800, m=200, name=REPEATED, **place):
    """Rows or values that the twin repeats: `used` of n used ones, and `others` of m others."""
    counted = zip(("train", "held-out"), (used, others), (n, m), strict=True)
    return [
        Measured("leakage", proportion(name, hits, of, "minimise"), {"rows": word} | place)
        for word, hits, of in counted
    ]


def bound(value, claim, policy="uniform"):
    found = Score("lower bound of ε", value, value, math.inf, "minimise", 0.0, math.inf, 99)
    claimed = Score("claimed epsilon", claim, claim, claim, "minimise", 0.0, math.inf, 1)
    place = {"policy": policy}
    return [
        Measured("leakage", found, {"attack": "one run", "sees": "model"} | place),
        Measured("leakage", claimed, place),
    ]


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        ([], "Not measured"),
        ([attack(0.45, 0.55)], "No leak found"),
        ([attack(0.51, 0.6)], "Signs of a leak"),
        ([attack(0.51, 0.6), *[attack(0.45, 0.55)] * 10], "No sure sign"),
        ([attack(0.6, 0.7, sees=BLIND)], "Not measured"),
        (two_sides("minimise", train=(0.1, 0.2), heldout=(0.0, 0.05)), "Signs of a leak"),
        (two_sides("minimise", train=(0.1, 0.2), heldout=(0.1, 0.3)), "No leak found"),
        (two_sides("match", train=(0.1, 0.2), heldout=(0.5, 0.6)), "Signs of a leak"),
        # Equal tables are compared where there are some.
        (two_sides("minimise", train=FAR, sample=(0.0, 0.1), heldout=(0.0, 0.01)), "No leak found"),
        # The longest run has no upper end: it can't be above another, and so is no attack.
        (two_sides("minimise", train=FAR, heldout=(0.0, math.inf)), "Not measured"),
        (bound(3.0, 8.0), "Not measured"),
        (bound(9.0, 8.0), REFUTED),
        (bound(9.0, math.nan), "Not measured"),
    ],
)
def test_leaking(measured, answer):
    assert judge("leakage", measured).answer == answer
    # What is sure in few rows is sure.
    is_clear = answer in ("No leak found", "No sure sign") and measured[0].score.name == "AUROC"
    assert judge("leakage", few(measured)).answer == (TOO_FEW if is_clear else answer)


@pytest.mark.parametrize(
    ("copies", "answer", "is_named"),
    [
        (repeated(0, 0), "No leak found", False),
        (repeated(1, 0, 2000), "No sure sign", True),  # nine in ten rows were used
        (repeated(20, 0), "No sure sign", True),
        (repeated(28, 0), COPIED, True),
        (repeated(28, 1), "No sure sign", True),  # one row that anyone writes
        (repeated(36, 1), COPIED, True),
        (repeated(40, 0), "Signs of a leak", True),
        (repeated(80, 20), "No leak found", False),
        (repeated(122, 18), "No leak found", False),
        (repeated(8, 0, name=RUN_REPEATED), "No leak found", False),
        (repeated(28, 0, name=RUN_REPEATED), COPIED, True),
        (repeated(28, 0, name=REPLAYED, kind=PHONE), COPIED, True),
        (repeated(28, 0, name=REPLAYED, kind=NAME), "No sure sign", False),
        (repeated(80, 0, name="near-duplicates"), "No leak found", False),  # of the twin's rows
    ],
)
def test_copies_are_named_and_chance_decides_what_they_are(copies, answer, is_named):
    clean = [attack(0.45, 0.55, attack=f"{n}") for n in range(20)]
    for more in ([], [attack(0.51, 0.6)]):
        said = judge("leakage", [*clean, *more, *copies])
        mild = "No sure sign" if more and answer == "No leak found" else answer
        assert (said.answer, " used and " in said.line) == (mild, is_named), said
        assert not is_named or "Chance alone" not in said.line
    # Without a sign that chance does not explain, the guarantee decides.
    handed = judge_hand_over(claim(1.0), OF_USE, said).answer
    assert handed == ("Not yet" if answer in (COPIED, "Signs of a leak") else "Yes")
    # Values are compared once, though there are two ways to count them.
    only = [replace(m, place=m.place | {"rows": f"{m.place['rows']} only"}) for m in copies]
    assert judge("leakage", [*clean, *more, *copies, *only]) == said


def test_few_others_are_no_leak_and_the_control_would_be():
    """Intervals count members alone: beside few others they call chance a leak."""
    rng, members, others = np.random.default_rng(0), 200, 41

    def attack_at_random(more=0):
        """Return the share at 1 % FPR of an attack that knows nothing, or a few members more."""
        order = rng.permutation([True] * members + [False] * others)
        found = int(order[: np.flatnonzero(~order)[int(0.01 * others)]].sum()) + more
        place = {"attack": "loss", "sees": "model"}
        area = Score("AUROC", 0.5, 0.45, 0.55, "minimise", 0.0, 1.0, members + others)
        rate = proportion("TPR at 1 % FPR", found, members, "minimise")
        return [Measured("leakage", rate, place), Measured("leakage", area, place)]

    drawn = [attack_at_random() for _ in range(400)]
    assert [judge("leakage", measured).tone for measured in drawn].count("good") > 400 * 0.95
    assert [judge("leakage", measured[:1]).tone for measured in drawn].count("good") < 400 * 0.9
    assert judge("leakage", attack_at_random(more=60)).tone == "bad"


def noise_of(share):
    return Measured("leakage", score(NOISE, share, share + 0.1), {"release": "teacher"})


def test_more_evidence_never_makes_a_verdict_milder():
    """Weak signals and one that is just sure, copies and refuted claims, in any order."""
    pieces = [[attack(0.51, 0.6, attack=f"weak {n}")] for n in range(4)]
    pieces += [[attack(0.528, 0.628)], two_sides("minimise", train=(0.1, 0.2), heldout=(0.0, 0.05))]
    copies = [repeated(8, 0), repeated(20, 0, name=REPLAYED, kind=PHONE)]
    copies += [repeated(30, 0, name=RUN_REPEATED)]
    pieces += [bound(9.0, 8.0), [noise_of(0.5)], *copies]
    clean, rng = [attack(0.45, 0.55, attack=f"{n}") for n in range(20)], np.random.default_rng(0)
    answers, stated = list(LEAKS), [*map(claim, (None, 1.0, 8.0)), claim(8.0, FLAGGED_UNIT)]
    for many, of_rows, _ in product((1, 20), (list, few), range(40)):
        found, before = of_rows(clean[:many]), [0] * 5
        for piece in rng.permutation(len(pieces)).tolist():
            found += pieces[piece] if pieces[piece] in copies else of_rows(pieces[piece])
            said = judge("leakage", found)
            handed = (judge_hand_over(each, OF_USE, said).answer for each in stated)
            ranks = [answers.index(said.answer), *map(HANDED.index, handed)]
            assert all(map(int.__ge__, ranks, before)), (said, before)
            before = ranks
            # Copies are named, and never put down to chance.
            for name in {REPEATED, REPLAYED} & {m.score.name for m in found}:
                assert " used and " in said.line or said.answer == REFUTED
                assert "Chance alone" not in said.line
                assert any(reason.startswith(name) for reason in said.reasons[:12])


def test_many_attacks_that_know_nothing_are_no_sign_of_a_leak():
    """Nor if they are alike. That those which found something are not counted costs little."""
    rng, draws = np.random.default_rng(0), 400
    for shared in (0.0, 0.7, 1.0):
        errors = rng.normal(size=(draws, 1)) * shared**0.5
        errors = errors + rng.normal(size=(draws, 20)) * (1 - shared) ** 0.5
        runs = (0.5 + 0.05 / 1.96 * errors).tolist()
        told = [judge("leakage", [attack(v - 0.05, v + 0.05) for v in run]) for run in runs]
        signs = [said.answer for said in told].count("Signs of a leak")
        assert signs <= binom.ppf(0.999, draws, 0.025)


def test_the_rule_names_each_measure_that_counts():
    assert [name for name in COUNTED if name not in judge("leakage", []).rule] == []
