"""What a ledger guarantees: from its events alone, said in full, and "none" in every other case.

What ε says in plain words: the exact bound, reached by a mechanism, never passed by another.
"""

import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.helpers.handover import FULL_BATCH, NO_PRIVACY, TRAINING, hand_over, ledger
from tests.release.test_verify import forge, refusal
from twinset.privacy.accounting.accountant import epsilon, group_epsilon, up_decimals
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.statement.guarantee import (
    belief_sentence,
    guarantee,
    most_belief,
    most_found,
    percent_up,
    says_little,
)
from twinset.privacy.statement.theorems import FLAGGED as OF_SPANS
from twinset.privacy.statement.theorems import (
    FLAGGED_UNIT,
    OWNER,
    RECORD,
    THEOREMS,
    UNIFORM,
    Theorem,
    register_theorem,
)
from twinset.release.verify import verify

EVENTS = [GaussianRelease(20.0, "label counts"), SubsampledGaussian(0.8, 0.05, 60)]
SPENT = ledger(EVENTS, records=1000)
SCALE = WeightScale("a model", 2.0, 4.0, "public texts", (0.2,) * 5)
WEIGHED = replace(
    SPENT,
    policy="adaptive",
    events=[EVENTS[0], IndividualGaussian(0.8, 0.05, 60, 0.5)],
    weight_scale=SCALE,
)
FLAGGED = replace(
    SPENT,
    policy="selective",
    unit=OF_SPANS.unit,
    neighbouring=OF_SPANS.neighbouring,
    events=[MaskedAccess("patterns"), *EVENTS],
)
OWNED_RECORDS = replace(SPENT, **asdict(OWNER))


def test_all_of_it_follows_from_the_events_rounded_up():
    given = guarantee(replace(SPENT, caveats=("Texts were cut.",)))
    assert given.epsilon == epsilon(EVENTS, 1e-5) and given.delta == 1e-5
    assert (given.unit, given.neighbouring) == ("record", RECORD.neighbouring)
    assert guarantee(replace(SPENT, target_epsilon=0.1)) == guarantee(SPENT)  # is not believed
    stated = float(re.search(r"\(([\d.]+), 1e-05\)-differentially private", given.sentence)[1])
    assert given.epsilon <= stated < given.epsilon + 0.01
    assert "2.52e-07" in guarantee(replace(SPENT, delta=2.5114e-07)).sentence
    for words in (
        "each record", "use or leave out one record, the number of records being the same",
        "where a given record was used is at most e^", "with m records",
        "the base model and its training data", "the set of label values",
        "the number of records", "rounding of sums", "internal/", "Mind: Texts were cut..",
    ):  # fmt: skip
        assert words in given.sentence
    assert given.covers and "Texts were cut." in given.excludes
    assert any("training data" in line for line in given.excludes)


@pytest.mark.parametrize(
    ("delta", "expected"), [(9.9e-6, None), (1e-5, "0.01 records"), (5e-4, "0.5 records")]
)
def test_a_delta_near_one_in_n_is_stated_whatever_the_ledger_says(delta, expected):
    """From 0.01/N on, N being 1,000; up to there it is a δ like any."""
    given = guarantee(replace(SPENT, delta=delta))
    lines = [line for line in given.excludes if "0.01/N" in line]
    assert given.epsilon is not None and len(lines) == (expected is not None)
    assert all(expected in line and f"Mind: {line}." in given.sentence for line in lines)
    assert ("0.01/N" in given.sentence) == (expected is not None)


def test_adaptive_noise_guarantees_the_loosest_and_states_each_weight():
    given = guarantee(WEIGHED)
    assert given.epsilon == epsilon(EVENTS, 1e-5)  # as if every record had weight 0
    strictest = epsilon([EVENTS[0], SubsampledGaussian(1.6, 0.05, 60)], 1e-5)
    assert [weight for weight, *_ in given.by_weight] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert strictest <= given.by_weight[0][1] < strictest + 0.01
    stated = [eps for _, eps, _ in given.by_weight]
    assert stated == sorted(stated) and stated[-1] - 0.01 < given.epsilon <= stated[-1]
    assert f"1: {stated[0]:.2f}, 0.75: " in given.sentence
    assert "public function" in given.sentence


def test_selective_noise_first_names_unprotected_data():
    given = guarantee(FLAGGED)
    assert given.sentence.startswith("NOT PROTECTED: everything that the detector 'patterns'")
    assert given.epsilon == epsilon(EVENTS, 1e-5) and given.unit == FLAGGED_UNIT
    assert "selective differential privacy" in given.sentence
    assert "Nor is it hidden that a record is in the table" in given.sentence
    assert not any("label counts" in line for line in given.covers)
    assert not re.search(r"\)-differentially private", given.sentence)
    assert given.is_of_whole_records is False and guarantee(SPENT).is_of_whole_records is True


@pytest.mark.parametrize("sigma", [1.0, 6.0])
def test_texts_masked_alike_have_a_guarantee_only_where_it_says_something(sigma):
    """Through the masked text, of which neither is: (2ε, (1 + e^ε) δ)."""
    events = [MaskedAccess("patterns"), GaussianRelease(sigma, "counts")]
    spent = guarantee(replace(FLAGGED, events=events))
    delta = 1e-5 * (1 + math.exp(spent.epsilon))
    if math.exp(2 * spent.epsilon) * delta < 1 and delta < 1 / FLAGGED.records:
        stated = re.search(
            r"alike, epsilon becomes ([\d.]+) and delta ([\de.-]+)\.", spent.sentence
        )
        assert 2 * spent.epsilon <= float(stated[1]) < 2 * spent.epsilon + 0.01
        assert delta <= float(stated[2]) < 1.01 * delta
    assert ("alike, nothing is guaranteed. " in spent.sentence) == (sigma == 1.0)


# name → a ledger, what is changed in it, words of the sentence
UNCOVERED = {
    "non-private access": (SPENT, {"events": [*EVENTS, NonPrivateAccess("tuning")]}, "tuning"),
    "no event": (SPENT, {"events": []}, "no release"),
    "test randomness": (SPENT, {"randomness_is_private": False}, "reproduced"),
    "unit": (SPENT, {"unit": "token"}, "unit 'token'"),
    "neighbouring": (SPENT, {"neighbouring": "replace one record"}, "replace one record"),
    "sampler": (SPENT, {"sampler": "shuffled"}, "shuffled"),
    "clipping": (SPENT, {"clipping": "each sequence"}, "each sequence"),
    "policy": (SPENT, {"policy": "adaptive"}, "adaptive"),
    "form": (SPENT, {"policy_form": "nominal"}, "nominal"),
    "private N": (SPENT, {"records_public": False}, "number of records"),
    "sample rate": (SPENT, {"sample_rate": 0.04}, "sample rates"),
    "delta of 1/N": (SPENT, {"delta": 1e-3}, "WARNING"),
    "a policy that does not mask": (SPENT, {"events": FLAGGED.events}, "explain"),
    "masked access under the unit of records": (FLAGGED, {"unit": "record"}, "unit 'record'"),
    "selective noise of which nothing was masked": (FLAGGED, {"events": EVENTS}, "noise masked"),
    "selective noise and another access": (
        FLAGGED, {"events": [*FLAGGED.events, NonPrivateAccess("stopping early")]}, "stopping"
    ),
    "the unit of flagged spans under uniform noise": (SPENT, {"unit": FLAGGED_UNIT}, "the unit"),
    "individual noise under another policy": (SPENT, {"events": WEIGHED.events}, "explain"),
    "weights that follow from nothing public": (WEIGHED, {"weight_scale": None}, "constants"),
    "weights of a policy that knows none": (SPENT, {"weight_scale": SCALE}, "no privacy weights"),
    "adaptive noise as published": (WEIGHED, {"policy_form": "published"}, "no theorem"),
    **{
        f"a record's {name} for owners": (OWNED_RECORDS, {name: getattr(SPENT, name)}, "")
        for name in ("unit", "neighbouring", "clipping")
    },
}  # fmt: skip


@pytest.mark.parametrize(("ledger", "change", "words"), UNCOVERED.values(), ids=UNCOVERED.keys())
def test_it_fails_closed(ledger, change, words):
    assert guarantee(ledger).epsilon is not None
    given = guarantee(replace(ledger, **change))
    assert (given.epsilon, given.delta, given.by_weight, given.covers) == (None, None, (), ())
    assert given.sentence.startswith("No privacy guarantee: none, because")
    assert words in given.sentence
    assert "differentially private" not in given.sentence


def test_an_epsilon_that_is_not_finite_is_none(monkeypatch):
    monkeypatch.setattr("twinset.privacy.statement.guarantee.epsilon", lambda *_: math.nan)
    assert guarantee(SPENT).epsilon is None


def test_a_policy_that_brings_its_theorem_is_covered_and_no_other_is():
    ledger = replace(SPENT, policy="my own")
    theorem = Theorem(statement="As UNIFORM.", source="UNIFORM", events=UNIFORM.events)
    assert guarantee(ledger).epsilon is None
    register_theorem("my own", "sound", theorem)
    try:
        assert guarantee(ledger).epsilon == guarantee(SPENT).epsilon
        assert guarantee(replace(ledger, policy_form="published")).epsilon is None
        for other in (UNIFORM, replace(theorem, events=(NonPrivateAccess,))):
            with pytest.raises(ValueError, match="my own"):
                register_theorem("my own", "sound", other)
    finally:
        del THEOREMS["my own", "sound"]


# -- of several records together, from the ledger alone --------------------------------------------

MILD = [SubsampledGaussian(2.0, 0.05, 20)]


@pytest.mark.parametrize(
    "spent", [replace(spent, events=[*spent.events[:-2], *MILD]) for spent in (SPENT, FLAGGED)]
)
def test_the_sentence_has_the_bound_of_what_the_ledger_recorded(spent):
    plain, named = guarantee(spent), guarantee(replace(spent, group_size=3))
    expected = up_decimals(group_epsilon(MILD, spent.delta, 3))
    assert "at once" not in plain.sentence
    assert f"or fewer, the same holds with epsilon {expected} and delta 1e-05. " in named.sentence
    said = "using or leaving out the unmasked texts of any 3" in named.sentence
    assert said == (spent.policy == "selective")
    assert replace(named, sentence="") == replace(plain, sentence="")


def test_a_bound_that_says_nothing_is_no_guarantee(monkeypatch):
    spent = group_epsilon(FULL_BATCH, 1e-5, 10)
    assert spent + math.log(1e-5) >= 0
    sentence = guarantee(ledger(FULL_BATCH, group_size=10)).sentence
    assert "No guarantee for 10 records together: the epsilon that follows" in sentence
    assert f"{up_decimals(spent)}, says nothing at delta 1e-05." in sentence
    assert "the same holds" not in sentence
    for without in (ledger(NO_PRIVACY, group_size=2), ledger(group_size=2, records=10**6)):
        sentence = guarantee(without).sentence  # one record has none, so no group has
        assert sentence.startswith("No privacy guarantee") and "records at once" not in sentence
    monkeypatch.setattr("twinset.privacy.statement.guarantee.group_epsilon", lambda *_: math.inf)
    assert "No guarantee for 2 records" in guarantee(ledger(group_size=2)).sentence


def test_a_guarantee_of_owners_says_so_and_states_no_group(tmp_path):
    given = guarantee(OWNED_RECORDS)
    assert given.epsilon is not None and "record is" not in given.sentence
    assert "for each owner" in given.sentence and "all records of a given owner" in given.sentence
    card = hand_over(tmp_path, OWNED_RECORDS).card.read_text("utf-8")
    assert "Private owners: 1000" in card
    given = guarantee(replace(OWNED_RECORDS, group_size=2))
    assert given.epsilon is None and "one unit already" in given.sentence


def divided(text: str, size: int) -> str:
    """The sentence with ε ÷ m for a group, as paper 003 states it."""
    alone = guarantee(ledger()).epsilon
    right = up_decimals(group_epsilon(FULL_BATCH, 1e-5, size))
    changed = text.replace(f"holds with epsilon {right}", f"holds with epsilon {alone / size:.2f}")
    assert changed != text
    return changed


@pytest.mark.parametrize("forged", [2, None, "divided"])
def test_verify_recomputes_group_epsilon_and_refuses_another(tmp_path, forged):
    paths = hand_over(tmp_path, ledger(group_size=3))
    assert "any 3 records at once" in verify(tmp_path).guarantee.sentence
    assert "any 3 records at once" in paths.card.read_text("utf-8")

    def change(data):
        if forged == "divided":
            data["guarantee"]["sentence"] = divided(data["guarantee"]["sentence"], 3)
        else:
            data["ledger"]["group_size"] = forged
            if forged is None:
                del data["ledger"]["group_size"]

    forge(paths, change, *([lambda card: divided(card, 3)] if forged == "divided" else []))
    assert "does not follow" in refusal(tmp_path)


# -- what ε means ----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_the_bound_is_reached_and_not_passed(epsilon, delta):
    """By the mechanism that is (ε, δ)-private and gives away the most (Kairouz et al. 2015)."""
    likely = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    present = np.array([delta, likely, 1 - delta - likely, 0.0])
    reached = np.maximum(present, present[::-1]).sum() / 2  # both being as likely before
    assert reached == pytest.approx(most_belief(epsilon, delta), abs=1e-12)
    assert reached > most_belief(epsilon * 0.9, delta)  # a smaller ε would claim too much
    # An attack accuses some outputs always, one by chance, and no others, the likeliest first.
    places = np.linspace(0, 4, 81)
    found, alarms = (
        np.interp(places, range(5), [0, *each.cumsum()]) for each in (present, present[::-1])
    )
    bounds = [most_found(epsilon, delta, each) for each in alarms]
    assert (found <= np.array(bounds) + 1e-12).all()
    assert found[40] == pytest.approx(bounds[40], abs=1e-12)  # it is reached where both ends meet
    assert found[40] > most_found(epsilon * 0.9, delta, alarms[40])


def test_percent_is_never_rounded_down():
    for share in np.linspace(0.5, 0.9998, 997):
        assert float(percent_up(share).removesuffix(" %")) >= 100 * share - 1e-9


def test_a_large_epsilon_is_said_to_say_little():
    small, none = guarantee(ledger()), guarantee(ledger(NO_PRIVACY))
    assert not says_little(small) and "rules out little" not in belief_sentence(small)
    assert "from 50 % to at most 89.6 % on average" in belief_sentence(small)
    large = guarantee(ledger(TRAINING[1:], delta=1e-5))
    assert says_little(large) == (large.epsilon > 4.6) and says_little(none)
    assert "Nothing is guaranteed" in belief_sentence(none)
