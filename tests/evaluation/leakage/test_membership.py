"""Membership inference: finds what an over-trained model knows, and nothing where nothing is."""

import math
import random
import shutil
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from evaluation.leakage import roc
from evaluation.leakage.membership import (
    find_base,
    model_attacks,
    nearest_by_ngrams,
    row_losses,
    text_attacks,
)
from evaluation.leakage.roc import (
    MARGIN,
    Attack,
    attack_scores,
    measure_shift,
    separation,
    without_shared,
)
from tests.helpers.evaluated import token_nats
from tests.helpers.handover import open_ledger
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import Silent
from twinset.sampling.twin_model import TwinModel
from twinset.table.records import Records
from twinset.table.schema import Attribute, Schema
from twinset.table.templates import load_template
from twinset.table.tokenization import tokenise

SCHEMA = Schema("text", "str", (Attribute("mood", "str", ("bad", "good")),), ("text", "mood"))
WORDS = "film book plot pan story dull great cheap works broke loved review minute days".split()
RATES = tuple(roc.RATES)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(roc, "RESAMPLES", 200)


def made_up(rows: int, seed: int, words: list[str] = WORDS) -> Records:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(words, k=rng.randint(6, 12))) for _ in range(rows)]
    return Records(texts, [(rng.choice(("bad", "good")),) for _ in range(rows)], SCHEMA)


MEMBERS, OTHERS = made_up(60, 1), made_up(60, 2)


def twin_of(base) -> TwinModel:
    ledger = open_ledger(
        delta=1e-5,
        target_epsilon=None,
        records=60,
        sample_rate=0.1,
        max_grad_norm=1.0,
        randomness=Randomness.for_tests(0),
        policy="uniform",
    )
    template, counts = load_template("Write a {mood} review:", SCHEMA), {("bad",): 30.0}
    return TwinModel(base.model, base.tokenizer, SCHEMA, template, counts, 64, ledger, base.origin)


def tokens_of(twin, records, longest=64):
    return tokenise(records, twin.template, twin.tokenizer, 128, longest)


@pytest.fixture(scope="module")
def fresh(tiny_base):
    return load_base(str(tiny_base))


@pytest.fixture(scope="module")
def overfitted(tiny_base) -> TwinModel:
    """A twin's model that knows its members by heart, as far as two layers can."""
    base = load_base(str(tiny_base))
    twin = twin_of(base)
    rows = tokens_of(twin, MEMBERS).sequences(range(len(MEMBERS)), 0, (0, 0))
    targets = rows.input_ids.masked_fill(~rows.loss_mask, -100)
    optimizer = torch.optim.Adam(base.model.parameters(), 1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        base.model(rows.input_ids, labels=targets).loss.backward()
        optimizer.step()
    return twin


# -- the model -------------------------------------------------------------------------------------


def test_all_attacks_find_the_members_of_an_overfitted_model(overfitted, fresh):
    attacks, notes = model_attacks(overfitted, fresh, MEMBERS, OTHERS)
    assert [a.name for a in attacks] == ["loss", "zlib ratio", "Min-20 %", "calibrated loss"]
    assert notes == []
    for attack in attacks:
        area, at_one_percent, _ = attack_scores(attack, seed=0)
        assert area.low > 0.75, attack.name
        assert at_one_percent.value > 0.1, attack.name


def test_no_attack_finds_the_members_of_an_untrained_model(fresh):
    attacks, _ = model_attacks(twin_of(fresh), None, MEMBERS, OTHERS)
    for attack in attacks:
        area, *_ = attack_scores(attack, seed=0)
        assert area.low < 0.5 < area.high, attack.name
    attacks, _ = model_attacks(twin_of(fresh), fresh, MEMBERS, OTHERS)
    assert attack_scores(attacks[-1], seed=0)[0].value == 0.5  # the model is the base model


def test_no_attack_finds_rows_of_which_none_was_trained_on(overfitted, fresh):
    attacks, _ = model_attacks(overfitted, fresh, made_up(400, 3), made_up(400, 4))
    for attack in attacks:
        assert abs(attack_scores(attack, seed=0)[0].value - 0.5) < 0.06, attack.name


@pytest.mark.parametrize("longest", [64, 6])
def test_losses_are_those_of_one_row_after_the_other(fresh, longest):
    twin = twin_of(fresh)
    tokens, calls = tokens_of(twin, made_up(15, 4), longest), []
    found = row_losses(fresh.model, tokens, lambda done, total: calls.append((done, total)))
    for row, (text, label) in enumerate(zip(tokens.texts, tokens.labels, strict=True)):
        nats = token_nats(fresh.model, tokens.prompts[label], text)
        hardest = sorted(nats.tolist())[-max(1, len(text) // 5) :]
        assert found.total[row] == pytest.approx(nats.sum().item(), rel=1e-5)
        assert found.mean[row] == pytest.approx(nats.mean().item(), rel=1e-5)
        assert found.hardest[row] == pytest.approx(np.mean(hardest), rel=1e-5)
    assert calls[-1] == (15, 15)


def test_attacks_are_what_their_papers_say(overfitted, fresh):
    attacks, _ = model_attacks(overfitted, fresh, MEMBERS, OTHERS)
    loss, ratio, hardest, calibrated = attacks
    tokens = tokens_of(overfitted, MEMBERS)
    after, before = row_losses(overfitted.model, tokens), row_losses(fresh.model, tokens)
    sizes = [len(zlib.compress(f" {text}".encode())) for text in MEMBERS.texts]
    for attack, expected in (
        (loss, -after.mean),
        (ratio, -after.total / sizes),
        (hardest, -after.hardest),
        (calibrated, before.mean - after.mean),
    ):
        assert attack.members == pytest.approx(expected, rel=1e-4), attack.name
    assert (after.hardest > after.mean).all()


def test_calibration_is_left_out_with_a_note_where_it_cannot_be(overfitted, fresh):
    attacks, notes = model_attacks(overfitted, None, MEMBERS, OTHERS)
    assert "calibrated loss" not in [a.name for a in attacks]
    assert notes == ["calibrated loss: left out, for the base model is not at hand"]
    tokenizer = type(fresh.tokenizer)(tokenizer_object=fresh.tokenizer.backend_tokenizer)
    tokenizer.add_tokens(["another"])
    other = replace(fresh, tokenizer=tokenizer)
    _, notes = model_attacks(overfitted, other, MEMBERS, OTHERS)
    assert notes == ["calibrated loss: left out, for the base model has another vocabulary"]


def test_a_base_is_found_by_name_and_known_by_its_weights(tiny_base, tmp_path):
    base = load_base(str(tiny_base))
    assert find_base(str(tiny_base), base.origin).origin == base.origin
    assert find_base(str(tmp_path), base.origin) is None
    shutil.copytree(tiny_base, tmp_path / "other")
    with torch.no_grad():
        base.model.transformer.wpe.weight.add_(1)
    base.model.save_pretrained(tmp_path / "other")
    assert find_base(str(tmp_path / "other"), base.origin) is None


def test_rows_that_the_model_was_not_made_for_are_refused_without_their_text(fresh):
    rated = replace(SCHEMA, attributes=(Attribute("stars", "int64", (1, 2)),))
    with pytest.raises(InputError, match="the non-members: .* mood"):
        model_attacks(twin_of(fresh), None, MEMBERS, replace(OTHERS, schema=rated))
    odd = replace(MEMBERS, labels=[("so-so",)] * 60)
    with pytest.raises(InputError, match="the members have label values") as error:
        model_attacks(twin_of(fresh), None, odd, OTHERS)
    assert MEMBERS.texts[0] not in str(error.value)


def test_a_diverged_model_is_judged_still(tiny_base):
    base = load_base(str(tiny_base))
    with torch.no_grad():
        for weight in base.model.parameters():
            weight.fill_(math.nan)
    attacks, _ = model_attacks(twin_of(base), None, MEMBERS, OTHERS)
    assert attack_scores(attacks[0], seed=0)[0].value == 0.5


# -- the released rows -----------------------------------------------------------------------------


def bag(texts):
    """Unit vectors of word counts: an encoder that needs no download."""
    counts = np.array([[text.split().count(w) for w in WORDS] for text in texts], float)
    return counts / np.linalg.norm(counts, axis=1, keepdims=True).clip(1e-9)


def test_a_twin_that_repeats_its_members_gives_them_away():
    repeated = [" ".join(text.split()[:-1]) for text in MEMBERS.texts] + made_up(60, 9).texts
    for attack in text_attacks(repeated, MEMBERS.texts, OTHERS.texts, bag):
        assert attack.sees == "released rows"
        assert attack_scores(attack, seed=0)[0].low > 0.75, attack.name


def test_a_twin_that_does_not_gives_nothing_away():
    attacks = text_attacks(made_up(120, 9).texts, MEMBERS.texts, OTHERS.texts, bag)
    assert len(attacks) == 2
    for attack in attacks:
        area, *_ = attack_scores(attack, seed=0)
        assert area.low < 0.5 < area.high, attack.name


def test_blocks_change_nothing(monkeypatch):
    whole = text_attacks(made_up(40, 9).texts, MEMBERS.texts, OTHERS.texts, bag)
    monkeypatch.setattr("evaluation.leakage.membership.CELLS_AT_ONCE", 200)
    calls = []

    class Listening(Silent):
        def count(self, what, done, total):
            calls.append((what, done, total))

    blocks = text_attacks(made_up(40, 9).texts, MEMBERS.texts, OTHERS.texts, bag, Listening())
    for one, other in zip(whole, blocks, strict=True):
        assert other.members == pytest.approx(one.members)
    assert calls[0] == ("rows compared by words", 5, 120)
    assert calls[-1] == ("rows compared by meaning", 120, 120)


@pytest.mark.parametrize(
    ("row", "similarity"),
    [
        ("The pan broke after two days", 1.0),
        ("the PAN broke, after two days!", 1.0),
        ("the pan broke after three days", 0.5),  # 2 of 4 triples, and 2 of 4
        ("days two after broke pan the", 0.0),
        ("Fine", 1.0),  # a text of fewer than three words is one n-gram
        ("Fine film", 0.0),
        ("!?", 0.0),
    ],
)
def test_similarity_of_words(row, similarity):
    twin = ["Fine.", "The pan broke after two days", "!!"]
    assert nearest_by_ngrams([row], twin)[0] == pytest.approx(similarity, abs=1e-6)


# -- how an attack is judged -----------------------------------------------------------------------


def normal(shift, members=80, others=120, seed=0, digits=8):
    rng = np.random.default_rng(seed)
    draws = rng.normal(shift, 1, members), rng.normal(0, 1, others)
    return Attack("loss", "model", *(np.round(draw, digits) for draw in draws))


@pytest.mark.parametrize("digits", [8, 0])  # rounded: many ties
def test_auroc_is_scikit_learns(digits):
    attack = normal(0.7, digits=digits)
    labels = [1] * 80 + [0] * 120
    found = attack_scores(attack, seed=0)[0]
    both = np.concatenate([attack.members, attack.non_members])
    assert found.value == pytest.approx(roc_auc_score(labels, both))
    assert (found.n, found.goal, found.where) == (200, "minimise", "private rows")


@pytest.mark.parametrize("others", [99, 100, 250, 1000, 2000])
@pytest.mark.parametrize("digits", [8, 1])
def test_tpr_is_the_best_that_keeps_the_rate(others, digits):
    attack = normal(1.5, others=others, digits=digits)
    labels = [1] * 80 + [0] * others
    both = np.concatenate([attack.members, attack.non_members])
    fpr, tpr, _ = roc_curve(labels, both, drop_intermediate=False)
    for score, rate in zip(attack_scores(attack, seed=0)[1:], roc.RATES.values(), strict=True):
        assert score.value == pytest.approx(tpr[fpr <= rate + 1e-12].max())
        assert score.low <= score.value <= score.high
        assert score.n == 80


@pytest.mark.parametrize(
    ("others", "missing"), [(99, RATES), (100, RATES[1:]), (999, RATES[1:]), (1000, ())]
)
def test_too_few_non_members_for_a_rate_are_said_once(others, missing):
    attacks = [normal(1.0, others=others), replace(normal(0.0, others=others), name="zlib ratio")]
    notes = separation(attacks, seed=0).notes
    assert [note.partition(":")[0] for note in notes] == list(missing)
    assert all(f"{others} non-members are too few" in note for note in notes)


def test_nothing_and_everything_found_have_wide_intervals_too():
    none = Attack("loss", "model", np.zeros(20), np.ones(20))
    everything = Attack("loss", "model", np.ones(20), np.zeros(20))
    area, at_one_percent, _ = attack_scores(none, seed=0)
    assert (area.value, at_one_percent.value) == (0.0, 0.0)
    assert area.high > 0.05 and at_one_percent.high > 0.1
    area, at_one_percent, _ = attack_scores(everything, seed=0)
    assert (area.value, at_one_percent.value) == (1.0, 1.0)
    assert area.low < 0.95 and at_one_percent.low < 0.9
    ties = attack_scores(Attack("loss", "model", np.ones(20), np.ones(20)), seed=0)
    assert (ties[0].value, ties[1].value) == (0.5, 0.0)


@pytest.mark.parametrize("size", [15, 100])
def test_the_interval_of_auroc_holds_the_truth(size):
    truth = 0.8555  # P(N(1.5, 1) > N(0, 1)) = Φ(1.5 / √2)
    held = 0
    for seed in range(100):
        area = attack_scores(normal(1.5, size, size, seed), seed)[0]
        held += area.low <= truth <= area.high
    assert held >= 89  # 0.1 % of true 95 % intervals would hold it in fewer of 100


def test_intervals_depend_on_the_seed_alone():
    attack = normal(0.5)
    assert attack_scores(attack, 3) == attack_scores(attack, 3)
    assert attack_scores(attack, 3) != attack_scores(attack, 4)


def test_a_separation_is_placed_and_drawn():
    found = separation([normal(1.0, others=5000)], seed=0, place={"run": "uniform"})
    assert [m.score.name for m in found.measured] == ["AUROC", *RATES]
    assert {m.question for m in found.measured} == {"leakage"}
    assert dict(found.measured[0].place) == {"run": "uniform", "attack": "loss", "sees": "model"}
    assert found.curve.log == "xy"
    points = found.curve.series["loss"]
    assert 20 < len(points) <= roc.POINTS
    assert points == sorted(points) and points[-1] == (1.0, 1.0)
    assert all(0 < x <= 1 and 0 < y <= 1 for x, y in points)
    rate = found.measured[1].score.value
    assert max(y for x, y in points if x <= 0.01) == pytest.approx(rate, abs=0.02)


@pytest.mark.parametrize("bad", [np.array([math.nan]), np.array([])])
def test_scores_that_cannot_be_ranked_are_refused(bad):
    with pytest.raises(ValueError, match="loss"):
        Attack("loss", "model", bad, np.ones(3))


# -- members and non-members that differ without any model -----------------------------------------


def test_tables_of_one_distribution_are_not_told_apart():
    found, notes = measure_shift(made_up(200, 1).texts, made_up(200, 2).texts, seed=0)
    assert found.score.low < 0.5 < found.score.high
    assert notes == () and found.place["sees"] == "neither model nor released rows"


def test_tables_of_two_distributions_make_membership_meaningless():
    members = made_up(200, 1, [*WORDS, "noon", "dusk"]).texts
    found, (note,) = measure_shift(members, made_up(200, 2).texts, seed=0)
    assert found.score.low > 0.5 + MARGIN
    assert "means nothing" in note
    assert not any(word in note for word in ("noon", "dusk"))


def test_a_text_that_members_repeat_is_no_difference():
    """The negative control: looked up in another fold, it would be one."""
    members = made_up(50, 1).texts * 4
    found, notes = measure_shift(members, made_up(50, 2).texts, seed=0)
    assert found.score.n == 100
    assert found.score.low < 0.5 and notes == ()


def test_too_few_rows_for_a_classifier_are_said():
    found, (note,) = measure_shift(made_up(4, 1).texts, made_up(50, 2).texts, seed=0)
    assert found is None and "not tested" in note


def test_texts_on_both_sides_are_left_out_on_both():
    members = replace(MEMBERS, texts=["Good film!", "good film", *MEMBERS.texts[2:]])
    others = replace(OTHERS, texts=["GOOD FILM", *OTHERS.texts[1:]])
    left, right, (note,) = without_shared(members, others)
    assert (left.texts, left.labels) == (MEMBERS.texts[2:], MEMBERS.labels[2:])
    assert (right.texts, right.labels) == (OTHERS.texts[1:], OTHERS.labels[1:])
    assert note.startswith("2 of 60 members and 1 of 60 non-members")
    assert "good" not in note.lower()
    assert without_shared(MEMBERS, OTHERS) == (MEMBERS, OTHERS, ())


def test_the_same_table_twice_is_refused():
    with pytest.raises(InputError, match="not trained on"):
        without_shared(MEMBERS, MEMBERS)
