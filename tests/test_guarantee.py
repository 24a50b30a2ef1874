import math
import re
from dataclasses import replace

import pytest

from twinset.privacy.accountant import epsilon
from twinset.privacy.events import GaussianRelease, NonPrivateAccess, SubsampledGaussian
from twinset.privacy.guarantee import guarantee
from twinset.privacy.ledger import Ledger
from twinset.privacy.randomness import Randomness

EVENTS = [GaussianRelease(20.0, "label counts"), SubsampledGaussian(0.8, 0.05, 60)]
SPENT = Ledger(
    delta=1e-5,
    target_epsilon=8.0,
    records=1000,
    sample_rate=0.05,
    max_grad_norm=1.0,
    randomness="the operating system",
    randomness_is_private=True,
    policy="uniform",
    policy_form="sound",
    events=EVENTS,
)


def test_epsilon_is_computed_from_the_events():
    given = guarantee(SPENT)
    assert given.epsilon == epsilon(EVENTS, 1e-5)
    assert given.delta == 1e-5
    assert (given.unit, given.neighbouring) == ("record", "add or remove one record")


def test_what_the_ledger_was_asked_for_does_not_matter():
    assert guarantee(replace(SPENT, target_epsilon=0.1)) == guarantee(SPENT)


def test_the_sentence_states_epsilon_rounded_up():
    given = guarantee(SPENT)
    stated = float(re.search(r"\(([\d.]+), 1e-05\)-differentially private", given.sentence)[1])
    assert given.epsilon <= stated < given.epsilon + 0.01


def test_the_sentence_states_delta_rounded_up():
    assert "2.52e-07" in guarantee(replace(SPENT, delta=2.5114e-07)).sentence


@pytest.mark.parametrize(
    "words",
    [
        "each record",
        "add or remove one record",
        "at most e^",
        "with m records",
        "the base model and its training data",
        "the set of label values",
        "the number of records",
        "floating-point",
        "internal/",
    ],
)
def test_the_sentence_names_what_it_covers_and_what_not(words):
    assert words in guarantee(SPENT).sentence


def test_covers_and_excludes_are_listed():
    given = guarantee(replace(SPENT, caveats=("Texts were cut.",)))
    assert given.covers and "Texts were cut." in given.excludes
    assert any("training data" in line for line in given.excludes)


CASES = {
    "non-private access": ({"events": [*EVENTS, NonPrivateAccess("tuning")]}, "tuning"),
    "no event": ({"events": []}, "no release"),
    "test randomness": ({"randomness_is_private": False}, "reproduced"),
    "unit": ({"unit": "token"}, "unit 'token'"),
    "neighbouring": ({"neighbouring": "replace one record"}, "replace one record"),
    "sampler": ({"sampler": "shuffled"}, "shuffled"),
    "clipping": ({"clipping": "each sequence"}, "each sequence"),
    "policy": ({"policy": "adaptive"}, "adaptive"),
    "form": ({"policy_form": "nominal"}, "nominal"),
    "private N": ({"records_public": False}, "number of records"),
    "sample rate": ({"sample_rate": 0.04}, "sample rates"),
    "delta of 1/N": ({"delta": 1e-3}, "WARNING"),
    "delta above 1/N": ({"delta": 0.02}, "WARNING"),
}


@pytest.mark.parametrize(("change", "words"), CASES.values(), ids=CASES.keys())
def test_it_fails_closed(change, words):
    given = guarantee(replace(SPENT, **change))
    assert given.epsilon is None and given.delta is None and given.covers == ()
    assert given.sentence.startswith("No privacy guarantee: none, because")
    assert words in given.sentence
    assert "differentially private" not in given.sentence


def test_an_epsilon_that_is_not_finite_is_none(monkeypatch):
    monkeypatch.setattr("twinset.privacy.guarantee.epsilon", lambda *_: math.nan)
    assert guarantee(SPENT).epsilon is None


def test_several_reasons_are_all_named():
    change = {"sampler": "shuffled", "randomness_is_private": False}
    sentence = guarantee(replace(SPENT, **change)).sentence
    assert "shuffled" in sentence and "reproduced" in sentence


def test_a_ledger_read_back_gives_the_same_guarantee(tmp_path):
    SPENT.save(tmp_path / "privacy.json")
    assert guarantee(Ledger.load(tmp_path / "privacy.json")) == guarantee(SPENT)


def test_an_opened_ledger_is_covered_once_it_has_spent():
    ledger = Ledger.open(
        delta=1e-5,
        target_epsilon=8.0,
        records=1000,
        sample_rate=0.05,
        max_grad_norm=1.0,
        randomness=Randomness.from_os(),
        policy="uniform",
    )
    assert guarantee(ledger).epsilon is None
    for event in EVENTS:
        ledger.record(event)
    assert guarantee(ledger).epsilon == guarantee(SPENT).epsilon
