"""--group-size: what is guaranteed for several records together, from the ledger alone."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.commands import COLUMNS, OWNED, QUICK, run_twinset
from tests.helpers.handover import FULL_BATCH, NO_PRIVACY, hand_over, ledger
from tests.privacy.test_guarantee import FLAGGED, OWNED_RECORDS, SPENT, WEIGHED
from tests.release.test_verify import forge, refusal
from twinset.privacy.accounting.accountant import group_epsilon, says_something, up_decimals
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.verify import verify

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


def test_of_adaptive_noise_it_is_the_bound_of_the_loosest():
    sentence = guarantee(replace(WEIGHED, group_size=2)).sentence
    assert up_decimals(group_epsilon(SPENT.events, SPENT.delta, 2)) in sentence


def test_a_bound_that_says_nothing_is_no_guarantee(monkeypatch):
    spent = group_epsilon(FULL_BATCH, 1e-5, 10)
    assert not says_something(spent, 1e-5)
    sentence = guarantee(ledger(FULL_BATCH, group_size=10)).sentence
    assert "No guarantee for 10 records together: the epsilon that follows" in sentence
    assert f"{up_decimals(spent)}, says nothing at delta 1e-05." in sentence
    assert "the same holds" not in sentence
    for without in (ledger(NO_PRIVACY, group_size=2), ledger(group_size=2, records=10**6)):
        sentence = guarantee(without).sentence  # one record has none, so no group has
        assert sentence.startswith("No privacy guarantee") and "records at once" not in sentence
    monkeypatch.setattr("twinset.privacy.statement.guarantee.group_epsilon", lambda *_: math.inf)
    assert "No guarantee for 2 records" in guarantee(ledger(group_size=2)).sentence


def test_a_group_of_owners_is_not_stated():
    assert guarantee(OWNED_RECORDS).epsilon is not None
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
def test_verify_computes_it_anew_and_refuses_another_size_or_epsilon_divided_by_m(tmp_path, forged):
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


def test_a_run_says_it_of_the_size_that_was_asked_for(tmp_path, monkeypatch, tiny_base, capsys):
    monkeypatch.chdir(tmp_path)
    OWNED.to_csv("t.csv", index=False)
    given = ("t.csv", *COLUMNS, "--base-model", tiny_base, *QUICK[:-1], "--run", "r")
    asked = ("--epsilon", "4", "--group-size", "2", "--delta", "1e-9")
    made = run_twinset(capsys, "generate", *given, *asked)
    assert made.code == 0, made.err
    assert "2 records together     ε = " in made.err
    spent = Ledger.load(Path("r/model/ledger.json"))
    assert spent.group_size == 2
    expected = up_decimals(group_epsilon(spent.events, spent.delta, 2))
    said = "For adding or removing any 2 records at once, or fewer, the same holds with epsilon "
    said += f"{expected} and delta 1e-09."
    assert said in made.out
    assert said in json.loads(Path("r/share/privacy.json").read_text())["guarantee"]["sentence"]
    assert run_twinset(capsys, "verify", "r").code == 0
