"""--group-size: what is guaranteed for several records together, from the ledger alone."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from tests.helpers import refusals
from tests.helpers.commands import COLUMNS, OWNED, QUICK, run_twinset
from tests.helpers.handover import FULL_BATCH, NO_PRIVACY, hand_over, ledger
from tests.privacy.test_guarantee import FLAGGED, SPENT, WEIGHED
from tests.release.test_verify import forge, refusal
from twinset import Twinset
from twinset.config.options import run_config
from twinset.config.plan import make_plan
from twinset.files.atomic import write_json
from twinset.privacy.accounting.accountant import group_epsilon, says_something, up_decimals
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import OWNER_CLIPPING, OWNER_NEIGHBOURING, OWNER_UNIT
from twinset.release.verify import verify
from twinset.run.plan import plan_lines

MILD = [SubsampledGaussian(2.0, 0.05, 20)]


def gaussian_delta(mu: float, spent: float) -> float:
    """δ of N(μ, 1) against N(0, 1), by Balle and Wang's theorem 8, with scipy."""
    return float(norm.cdf(mu / 2 - spent / mu) - np.exp(spent) * norm.cdf(-mu / 2 - spent / mu))


@pytest.mark.parametrize("size", [2, 3])
def test_the_sentence_has_the_epsilon_of_a_direct_calculation(size):
    """Whole batches: all steps and the label counts are one Gaussian of m times the shift."""
    mu = size * math.sqrt(1 / 5.0**2 + 20 / 9.0**2)
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > 1e-5 else (low, middle)
    sentence = guarantee(ledger(FULL_BATCH, group_size=size)).sentence
    assert f"any {size} records at once, or fewer, the same holds with epsilon " in sentence
    stated = float(sentence.partition("the same holds with epsilon ")[2].split()[0])
    assert high - 1e-3 <= stated < high + 0.01
    assert f"epsilon {stated:.2f} and delta 1e-05. Taken as public" in sentence


def test_without_a_size_nothing_changes():
    plain = guarantee(ledger())
    named = guarantee(ledger(group_size=2))
    assert "records at once" not in plain.sentence
    assert replace(named, sentence="") == replace(plain, sentence="")
    assert ledger().to_dict().keys() == ledger(group_size=2).to_dict().keys() - {"group_size"}


@pytest.mark.parametrize("spent", [SPENT, FLAGGED])
def test_it_is_the_bound_of_what_the_ledger_recorded(spent):
    events = [*spent.events[:-2], *MILD]
    sentence = guarantee(replace(spent, events=events, group_size=3)).sentence
    expected = up_decimals(group_epsilon(MILD, spent.delta, 3))
    assert f"the same holds with epsilon {expected} and delta 1e-05. " in sentence
    assert ("using or leaving out the unmasked texts of any 3" in sentence) == (spent is FLAGGED)


def test_of_adaptive_noise_it_is_the_bound_of_the_loosest():
    sentence = guarantee(replace(WEIGHED, group_size=2)).sentence
    assert up_decimals(group_epsilon(SPENT.events, SPENT.delta, 2)) in sentence


def test_a_bound_that_says_nothing_is_no_guarantee():
    spent = group_epsilon(FULL_BATCH, 1e-5, 10)
    assert not says_something(spent, 1e-5)
    sentence = guarantee(ledger(FULL_BATCH, group_size=10)).sentence
    assert "No guarantee for 10 records together: the epsilon that follows" in sentence
    assert f"{up_decimals(spent)}, says nothing at delta 1e-05." in sentence
    assert "the same holds" not in sentence


def test_an_infinite_bound_is_no_guarantee(monkeypatch):
    monkeypatch.setattr("twinset.privacy.statement.guarantee.group_epsilon", lambda *_: math.inf)
    assert "No guarantee for 2 records" in guarantee(ledger(group_size=2)).sentence


def test_where_one_record_has_no_guarantee_no_group_has():
    for spent in (ledger(NO_PRIVACY, group_size=2), ledger(group_size=2, records=10**6)):
        sentence = guarantee(spent).sentence
        assert sentence.startswith("No privacy guarantee") and "records at once" not in sentence


def test_a_group_of_owners_is_not_stated():
    by_owner = {"unit": OWNER_UNIT, "neighbouring": OWNER_NEIGHBOURING, "clipping": OWNER_CLIPPING}
    owned = replace(ledger(), **by_owner)
    assert guarantee(owned).epsilon is not None
    given = guarantee(replace(owned, group_size=2))
    assert given.epsilon is None and "one unit already" in given.sentence


@pytest.mark.parametrize("wrong", [1, 0, -2, 2.0, True, "2", []])
def test_a_ledger_with_another_size_is_refused(wrong):
    with pytest.raises(ValueError, match="group_size"):
        Ledger.from_dict(ledger(group_size=2).to_dict() | {"group_size": wrong})


def test_a_ledger_is_read_as_it_was_written(tmp_path):
    for size in (None, 5):
        write_json(tmp_path / "ledger.json", ledger(group_size=size).to_dict())
        assert Ledger.load(tmp_path / "ledger.json").group_size == size
        assert ("group_size" in (tmp_path / "ledger.json").read_text()) == (size is not None)


def divided(text: str, size: int) -> str:
    """The sentence with ε ÷ m for a group, as paper 003 states it."""
    alone = guarantee(ledger()).epsilon
    right = up_decimals(group_epsilon(FULL_BATCH, 1e-5, size))
    changed = text.replace(f"holds with epsilon {right}", f"holds with epsilon {alone / size:.2f}")
    assert changed != text
    return changed


def test_verify_computes_it_anew_and_refuses_epsilon_divided_by_m(tmp_path):
    paths = hand_over(tmp_path, ledger(group_size=3))
    assert "any 3 records at once" in verify(tmp_path).guarantee.sentence
    assert "any 3 records at once" in paths.card.read_text("utf-8")

    def change(data):
        data["guarantee"]["sentence"] = divided(data["guarantee"]["sentence"], 3)

    forge(paths, change, lambda card: divided(card, 3))
    assert "sentence does not follow" in refusal(tmp_path)


@pytest.mark.parametrize("size", [2, 4, None])
def test_verify_refuses_another_size_in_the_ledger(tmp_path, size):
    paths = hand_over(tmp_path, ledger(group_size=3))

    def change(data):
        del data["ledger"]["group_size"]
        if size is not None:
            data["ledger"]["group_size"] = size

    forge(paths, change)
    assert "does not follow" in refusal(tmp_path)


REPEATED = OWNED.assign(review=[OWNED["review"][i % 40] for i in range(60)])


def generate(capsys, base, table, *more, quick=QUICK):
    table.to_csv("t.csv", index=False)
    given = ("t.csv", *COLUMNS, "--base-model", base, *quick, "--run", "r", *more)
    return run_twinset(capsys, "generate", *given)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_says_it_of_the_size_that_was_asked_for(tiny_base, capsys):
    asked = ("--epsilon", "4", "--group-size", "2", "--delta", "1e-9")
    made = generate(capsys, tiny_base, REPEATED, *asked, quick=QUICK[:-1])
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


def test_repeated_texts_are_reported_to_the_owner_alone(tiny_base, capsys):
    """The owner may name a size then."""
    made = generate(capsys, tiny_base, REPEATED, "--epsilon", "4", quick=QUICK[:-1])
    flat = " ".join(made.err.split())
    assert "20 rows repeat the text of an earlier row" in flat and "--group-size M" in flat
    for shared in (*Path("r/share").iterdir(), *Path("r/model").iterdir()):
        assert b"repeat the text" not in shared.read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--group-size", "1"), "must be a whole number from 2"),
        (("--group-size", "2", "--owner", "who"), "leave one of them out"),
        (("--group-size", "2", "--no-privacy"), "does nothing without privacy"),
    ],
)
def test_what_makes_no_sense_is_refused(tiny_base, capsys, more, message):
    refused = generate(capsys, tiny_base, OWNED, *more)
    assert refused.code == 2 and message in refused.err
    assert not Path("r").exists()


def test_python_takes_it_too():
    assert Twinset(group_size=3).config.privacy.group_size == 3
    assert "a whole number from 2" in refusals.refusal(Twinset, group_size=1)


def test_a_plan_warns_of_a_size_that_is_too_large():
    for size, ending in ((2, ""), (60, ": no guarantee")):
        plan = make_plan(10_000, run_config({"epsilon": 2.0, "group_size": size}))
        (line,) = [line for line in plan_lines(plan) if "records together" in line]
        spent = group_epsilon(plan.events, plan.target_delta, size)
        assert line == f"{f'{size} records together':<23}ε = {up_decimals(spent)}{ending}"
