"""The verdicts: each rule with what keeps it, what breaks it, and what was not measured."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evaluation.fidelity.measures import SECOND
from evaluation.findings import Measured, Score, proportion
from evaluation.leakage.copies import HELDOUT, SAMPLE, TRAIN
from evaluation.release import PRIVATE_CLASSIFIER, TWIN_SMALL
from evaluation.report.page import build_report
from evaluation.report.verdicts import (
    REFUTED,
    Verdict,
    judge_fidelity,
    judge_hand_over,
    judge_leakage,
    judge_use,
)
from tests.helpers import reported
from tests.helpers.pages import answers
from tests.helpers.reported import bare
from twinset.privacy.statement.guarantee import Guarantee
from twinset.privacy.statement.theorems import FLAGGED_UNIT


def score(name, low, high, goal="minimise"):
    return Score(name, (low + high) / 2, low, high, goal, 0.0, 1.0, 100)


def rows(question, name, goal="maximise", **ends):
    where = {"twin": "twin", "base": "no private data", "real": "real", "second": SECOND}
    where |= {"dp": PRIVATE_CLASSIFIER, "cut": TWIN_SMALL}
    where |= {"train": TRAIN, "sample": SAMPLE, "heldout": HELDOUT}
    return [
        Measured(question, score(name, *each, goal), {"rows": where[key]})
        for key, each in ends.items()
    ]


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        ([], "Not measured"),
        (rows("utility", "accuracy", twin=(0.6, 0.7)), "Not measured"),
        (rows("utility", "accuracy", twin=(0.6, 0.7), base=(0.4, 0.5)), "Yes"),
        (rows("utility", "accuracy", twin=(0.6, 0.7), base=(0.5, 0.65)), "No"),
        (rows("utility", "accuracy", twin=(0.4, 0.5), base=(0.6, 0.7)), "No"),
        (rows("utility", "accuracy", twin=(0.4, math.inf), base=(0.1, 0.2)), "Not measured"),
    ],
)
def test_useful(measured, answer):
    assert judge_use(measured).answer == answer


@pytest.mark.parametrize(("hits", "answer"), [(180, "Yes"), (110, "No")])
@pytest.mark.parametrize("base", [None, 90])
def test_use_is_more_than_the_commonest_label_gives(hits, answer, base):
    """One rule at a run's end, where only guessing is known, and in the report."""
    found = {"twin": hits, "real": 190, "the commonest label": 100, "no private data": base}
    measured = [
        Measured(
            "utility",
            proportion("accuracy", n, 200),
            {
                "rows": name,
                "label": "mood",
                "classifier": "tfidf" if name != "the commonest label" else "none",
            },
        )
        for name, n in found.items()
        if n is not None
    ]
    assert judge_use(measured).answer == answer


def test_useful_in_part_says_where_not_first():
    good = rows("utility", "accuracy", twin=(0.6, 0.7), base=(0.4, 0.5), real=(0.8, 0.9))
    bad = rows("utility", "accuracy", twin=(0.3, 0.4), base=(0.4, 0.5))
    bad = [replace(m, place={**m.place, "label": "mood"}) for m in bad]
    verdict = judge_use([*good, *bad])
    assert (verdict.answer, verdict.tone) == ("In part", "mixed")
    assert verdict.reasons[0].startswith("mood: 0.350") and "not apart" in verdict.reasons[0]
    assert "76% of what real rows give (0.850)" in verdict.reasons[1]


def test_a_private_classifier_of_the_real_rows_is_named_beside_the_twin():
    ends = {"twin": (0.6, 0.7), "base": (0.4, 0.5), "dp": (0.7, 0.8)}
    (reason,) = judge_use(rows("utility", "accuracy", **ends)).reasons
    assert reason.endswith("a DP classifier of real rows gives 0.750")


def test_a_twin_of_more_rows_is_held_against_the_base_by_as_many():
    """More rows teach more, whoever wrote them: that alone is no merit of the private records."""
    ends = {"twin": (0.8, 0.9), "base": (0.5, 0.6), "real": (0.8, 0.9)}
    assert judge_use(rows("utility", "accuracy", **ends)).answer == "Yes"
    verdict = judge_use(rows("utility", "accuracy", **ends, cut=(0.55, 0.65)))
    assert verdict.answer == "No"
    assert verdict.reasons[0] == (
        "accuracy: 0.600 [0.550, 0.650], not apart from no private data 0.550 [0.500, 0.600], both "
        "of as many rows; all of the twin's give 0.850; 100% of what real rows give (0.850)"
    )


@pytest.mark.parametrize(
    ("goal", "twin", "answer"),
    [
        ("match", (0.45, 0.55), "Yes"),
        ("match", (0.1, 0.2), "No"),
        ("match", (0.8, 0.9), "No"),
        ("maximise", (0.8, 0.9), "Yes"),
        ("maximise", (0.1, 0.2), "No"),
        ("minimise", (0.1, 0.2), "Yes"),
        ("minimise", (0.8, 0.9), "No"),
    ],
)
def test_faithful(goal, twin, answer):
    assert (
        judge_fidelity(rows("fidelity", "m", goal, twin=twin, second=(0.5, 0.6))).answer == answer
    )
    assert judge_fidelity(rows("fidelity", "m", goal, twin=twin)).answer == "Not measured"


def fidelity(**ends):
    """Measures of fidelity by name, of the twin; a second real sample has 0.9 or, of MAUVE, 1."""
    second = {"MAUVE": (0.9, 1.0)}
    return [
        m
        for name, twin in ends.items()
        for m in rows(
            "fidelity",
            name.replace("_", " "),
            "maximise",
            twin=twin,
            second=second.get(name, (0.85, 0.95)),
        )
    ]


LIKE, NEAR, FAR = (0.9, 0.95), (0.5, 0.6), (0.04, 0.06)


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        (fidelity(MAUVE=LIKE, recall_of_embeddings=LIKE), "Yes"),
        (fidelity(MAUVE=LIKE, recall_of_embeddings=LIKE, other=FAR), "Yes"),
        (fidelity(MAUVE=LIKE, recall_of_embeddings=FAR), "In part"),
        (fidelity(MAUVE=NEAR, recall_of_embeddings=LIKE), "In part"),
        (fidelity(MAUVE=NEAR, recall_of_embeddings=NEAR), "No"),
        (fidelity(MAUVE=FAR, recall_of_embeddings=LIKE, mean_length=LIKE), "No"),
        (fidelity(recall_of_embeddings=FAR, MAUVE=LIKE), "In part"),  # MAUVE goes first
        (fidelity(MAUVE=FAR, **{f"measure {n}": LIKE for n in range(16)}), "No"),
    ],
)
def test_the_measures_that_matter_decide_whether_it_is_faithful(measured, answer):
    verdict = judge_fidelity(measured)
    assert verdict.answer == answer
    if measured[0].score.name == "MAUVE":
        assert verdict.line.startswith("MAUVE ") and verdict.reasons[0].startswith("MAUVE: ")


def claim(epsilon, unit="record"):
    return Guarantee(epsilon, None if epsilon is None else 1e-5, unit, "", "", (), ())


@pytest.mark.parametrize(
    ("stated", "leak", "answer"),
    [
        (None, "good", "No"),
        (claim(None), "good", "No"),
        (claim(1.0), "bad", "Not yet"),
        (claim(1.0), "refuted", "No"),
        (claim(1.0), "good", "Yes"),
        (claim(1.0), "unknown", "Yes"),
        (claim(8.0), "good", "With care"),
        (claim(8.0), "unknown", "Not yet"),
        (claim(8.0), "bad", "Not yet"),
        (claim(1.0, FLAGGED_UNIT), "good", "Not as it is"),
    ],
)
@pytest.mark.parametrize("use", ["good", "bad", "unknown"])
def test_whether_it_may_be_handed_over(stated, leak, answer, use):
    tone = "bad" if leak == "refuted" else leak
    leaks = Verdict("?", REFUTED if leak == "refuted" else "a", "an attack found it", tone)
    said = judge_hand_over(stated, Verdict("?", "a", "of use", use), leaks)
    assert said.answer == answer
    assert ("no use of it was seen" in said.line) == (use == "bad" and said.tone != "bad")
    holds = stated is not None and stated.epsilon is not None
    assert ("an attack found it" in said.line) == (holds and tone == "bad")


def beside(goal, train, heldout):
    return rows("leakage", "shared", goal, train=train, heldout=heldout)


def attack(low, high, name="AUROC", sees="model", **more):
    return Measured("leakage", score(name, low, high), {"attack": "loss", "sees": sees, **more})


def bound(value, claim, policy="uniform"):
    found = Score("lower bound of ε", value, value, math.inf, "minimise", 0.0, math.inf, 99)
    claimed = Score("claimed epsilon", claim, claim, claim, "minimise", 0.0, math.inf, 1)
    place = {"policy": policy}
    return [
        Measured("leakage", found, {"attack": "one run", "sees": "model"} | place),
        Measured("leakage", claimed, place),
    ]


BLIND = "neither model nor released rows"


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        ([], "Not measured"),
        ([attack(0.45, 0.55)], "No leak found"),
        ([attack(0.51, 0.6)], "Signs of a leak"),
        ([attack(0.3, 0.4)], "No leak found"),
        ([attack(0.51, 0.6), *[attack(0.45, 0.55)] * 10], "No sure sign"),
        ([attack(0.56, 0.65), *[attack(0.45, 0.55)] * 10], "Signs of a leak"),
        ([attack(0.005, 0.02, "TPR at 1 % FPR")], "No leak found"),
        ([attack(0.02, 0.05, "TPR at 1 % FPR")], "Signs of a leak"),
        ([attack(0.6, 0.7, sees=BLIND)], "Not measured"),
        ([attack(0.9, 0.99, policy="none")], "Not measured"),
        (
            rows("leakage", "runs", "minimise", train=(0.1, 0.2), heldout=(0.0, 0.05)),
            "Signs of a leak",
        ),
        (
            rows("leakage", "runs", "minimise", train=(0.1, 0.2), heldout=(0.1, 0.3)),
            "No leak found",
        ),
        (
            rows("leakage", "ratio", "match", train=(0.1, 0.2), heldout=(0.5, 0.6)),
            "Signs of a leak",
        ),
        (rows("leakage", "ratio", "match", train=(0.5, 0.6), heldout=(0.1, 0.2)), "No leak found"),
        (bound(3.0, 8.0), "Not measured"),
        (bound(9.0, 8.0), "The claim is refuted"),
        (bound(9.0, math.inf), "Not measured"),
        (bound(9.0, math.nan), "Not measured"),
        ([attack(0.45, 0.55), *bound(9.0, 8.0)], "The claim is refuted"),
        ([*bound(9.0, math.inf, "none"), *bound(1.0, 8.0)], "Not measured"),
    ],
)
def test_leaking(measured, answer):
    assert judge_leakage(measured).answer == answer


def test_attacks_on_too_few_rows_clear_nothing():
    few = [attack(0.0, 1.0), attack(0.1, 0.9, name="TPR")]
    few = [replace(m, score=replace(m.score, n=4)) for m in few]
    assert (judge_leakage(few).answer, judge_leakage(few).tone) == (
        "Too few rows to say",
        "unknown",
    )
    found = [replace(m, score=replace(m.score, low=0.95, value=0.97, n=4)) for m in few]
    assert judge_leakage(found).tone != "unknown"  # what was found is found


def ranked_at_random(rng, members, others, more=0):
    """An attack that knows nothing, or a few members more: its share at 1 % FPR, and its AUROC."""
    order = rng.permutation([True] * members + [False] * others)
    found = int(order[: np.flatnonzero(~order)[int(0.01 * others)]].sum()) + more
    place = {"attack": "loss", "sees": "model"}
    area = Score("AUROC", 0.5, 0.45, 0.55, "minimise", 0.0, 1.0, members + others)
    rate = proportion("TPR at 1 % FPR", found, members, "minimise")
    return [Measured("leakage", rate, place), Measured("leakage", area, place)]


@pytest.mark.parametrize("others", [41, 200])
def test_few_others_are_no_leak_and_the_control_would_be(others):
    """Intervals count members alone: beside few others they call chance a leak."""
    rng = np.random.default_rng(0)
    drawn = [ranked_at_random(rng, 200, others) for _ in range(400)]
    clear = [judge_leakage(measured).tone for measured in drawn].count("good")
    assert clear > 400 * 0.95
    assert [judge_leakage(measured[:1]).tone for measured in drawn].count("good") < 400 * 0.9
    assert judge_leakage(ranked_at_random(rng, 200, others, more=60)).tone == "bad"


def test_equal_tables_are_compared_where_there_are_some():
    whole, part = (0.3, 0.4), (0.1, 0.2)
    more = rows("leakage", "runs", "minimise", train=whole, sample=part, heldout=(0.1, 0.2))
    assert judge_leakage(more).answer == "No leak found"


def test_attacks_that_need_no_model_are_named_first():
    verdict = judge_leakage([attack(0.45, 0.55), attack(0.8, 0.9, sees=BLIND)])
    assert verdict.answer == "No leak found"
    assert "without model and twin" in verdict.reasons[0]


def test_an_overtrained_run_is_distinguished_from_a_private_one(tmp_path):
    loud = attack(0.85, 0.95), *beside("minimise", (0.5, 0.6), (0.0, 0.1))
    html = build_report(bare(tmp_path, reported.audit(measured=loud)))
    assert answers(html)[2] == "Signs of a leak"
    quiet = reported.run_in(tmp_path, reported.audit(), name="quiet")
    assert answers(build_report(quiet))[2] == "No leak found"
