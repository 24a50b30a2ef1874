"""Membership inference: finds what an over-trained model knows, and nothing where nothing is."""

import math
import random
import zlib
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import beta, binom
from sklearn.metrics import roc_auc_score, roc_curve

from evaluation.leakage import roc
from evaluation.leakage.membership import (
    column_attacks,
    model_attacks,
    perplexity,
    row_losses,
    text_attacks,
)
from evaluation.leakage.roc import (
    MARGIN,
    Attack,
    attack_scores,
    draw_sides,
    epsilon_lower_bound,
    find_riskiest,
    measure_shift,
    one_run_audit,
)
from evaluation.release import take_records
from tests.helpers.evaluated import SCHEMA, records_of, token_nats, twin_of
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.table.kinds import ColumnRules
from twinset.table.records import records_from_frame
from twinset.table.schema import Attribute
from twinset.table.tokenization import tokenise

WORDS = "film book plot pan story dull great cheap works broke loved review minute days".split()
M = 200  # canaries


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(roc, "RESAMPLES", 200)


def made_up(rows: int, seed: int, words: list[str] = WORDS):
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(words, k=rng.randint(6, 12))) for _ in range(rows)]
    return records_of(texts, ("bad", "good"))


MEMBERS, OTHERS = made_up(60, 1), made_up(60, 2)


def tokens_of(twin, records, longest=64):
    return tokenise(records, twin.template, twin.tokenizer, 128, longest)


@pytest.fixture(scope="module")
def fresh(tiny_base):
    return load_base(str(tiny_base))


@pytest.fixture(scope="module")
def overfitted(tiny_base):
    """A twin's model that knows its members by heart, as far as two layers can."""
    base = load_base(str(tiny_base))
    twin = twin_of(base)
    rows = tokens_of(twin, MEMBERS).sequences(range(len(MEMBERS)), 0, (0, 0))
    targets = rows.input_ids.masked_fill(~rows.loss_mask, -100)
    optimizer = torch.optim.Adam(base.model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        base.model(rows.input_ids, labels=targets).loss.backward()
        optimizer.step()
    return twin


def areas(attacks):
    return {attack.name: attack_scores(attack, seed=0)[0] for attack in attacks}


def test_all_attacks_find_the_members_of_an_overfitted_model_and_are_those_of_papers(
    overfitted, fresh
):
    attacks, notes = model_attacks(overfitted, fresh, MEMBERS, OTHERS)
    assert notes == []
    assert all(area.low > 0.6 for area in areas(attacks).values())
    tokens = tokens_of(overfitted, MEMBERS)
    after, before = row_losses(overfitted.model, tokens), row_losses(fresh.model, tokens)
    sizes = [len(zlib.compress(f" {text}".encode())) for text in MEMBERS.texts]
    expected = {
        "loss": -after.mean,
        "zlib ratio": -after.total / sizes,
        "Min-20 %": -after.hardest,
        "calibrated loss": before.mean - after.mean,
    }
    for attack, scores in zip(attacks, expected.items(), strict=True):
        assert (attack.name, attack.members) == (scores[0], pytest.approx(scores[1], rel=1e-4))


def test_no_attack_finds_members_where_none_was_trained_on(overfitted, fresh):
    untrained, _ = model_attacks(twin_of(fresh), fresh, MEMBERS, OTHERS)
    found = areas(untrained)
    assert found.pop("calibrated loss").value == 0.5  # the model is the base model
    assert all(area.low < 0.5 < area.high for area in found.values())
    attacks, _ = model_attacks(overfitted, fresh, made_up(200, 3), made_up(200, 4))
    assert all(abs(area.value - 0.5) < 0.09 for area in areas(attacks).values())


@pytest.mark.parametrize("longest", [64, 6])
def test_losses_and_perplexity_are_those_of_one_row_after_the_other(fresh, longest):
    tokens = tokens_of(twin_of(fresh), made_up(15, 4), longest)
    found = row_losses(fresh.model, tokens)
    nats = []
    for row, (text, label) in enumerate(zip(tokens.texts, tokens.labels, strict=True)):
        nats.append(token_nats(fresh.model, tokens.prompts[label], text))
        hardest = sorted(nats[-1].tolist())[-max(1, len(text) // 5) :]
        assert found.total[row] == pytest.approx(nats[-1].sum().item(), rel=1e-5)
        assert found.mean[row] == pytest.approx(nats[-1].mean().item(), rel=1e-5)
        assert found.hardest[row] == pytest.approx(np.mean(hardest), rel=1e-5)
    expected = math.exp(float(torch.cat(nats).mean()))
    assert perplexity(fresh.model, tokens) == pytest.approx(expected, rel=1e-5)


def test_rows_that_the_model_was_not_made_for_are_refused_without_their_text(fresh):
    rated = replace(SCHEMA, attributes=(Attribute("stars", "int64", (1, 2)),))
    with pytest.raises(InputError, match="the non-members: .* mood"):
        model_attacks(twin_of(fresh), None, MEMBERS, replace(OTHERS, schema=rated))
    odd = replace(MEMBERS, labels=[("so-so",)] * 60)
    with pytest.raises(InputError, match="the members have labels") as error:
        model_attacks(twin_of(fresh), None, odd, OTHERS)
    assert MEMBERS.texts[0] not in str(error.value)


def bag(texts):
    """Unit vectors of word counts: an encoder that needs no download."""
    counts = np.array([[text.split().count(w) for w in WORDS] for text in texts], float)
    return counts / np.linalg.norm(counts, axis=1, keepdims=True).clip(1e-9)


def test_a_twin_that_repeats_its_members_gives_them_away_and_another_does_not():
    fresh = made_up(120, 9).texts
    repeated = [" ".join(text.split()[:-1]) for text in MEMBERS.texts] + fresh[:60]
    attacks = text_attacks(repeated, MEMBERS.texts, OTHERS.texts, bag)
    assert [attack.sees for attack in attacks] == ["released rows"] * 2
    assert all(area.low > 0.75 for area in areas(attacks).values())
    whole = text_attacks(fresh, MEMBERS.texts, OTHERS.texts, bag)
    assert all(area.low < 0.5 < area.high for area in areas(whole).values())


def normal(shift, members=80, others=120, seed=0, digits=8):
    rng = np.random.default_rng(seed)
    draws = rng.normal(shift, 1, members), rng.normal(0, 1, others)
    return Attack("loss", "model", *(np.round(draw, digits) for draw in draws))


def test_scores_are_those_of_scikit_learn(others=250):
    attack = normal(1.5, others=others, digits=1)  # many ties
    labels = [1] * 80 + [0] * others
    both = np.concatenate([attack.members, attack.non_members])
    area, *rates = attack_scores(attack, seed=0)
    assert area.value == pytest.approx(roc_auc_score(labels, both))
    fpr, tpr, _ = roc_curve(labels, both, drop_intermediate=False)
    for score, rate in zip(rates, roc.RATES.values(), strict=True):
        assert score.value == pytest.approx(tpr[fpr <= rate + 1e-12].max())
        assert score.low <= score.value <= score.high and score.n == 80


def test_the_interval_of_auroc_holds_the_truth_and_depends_on_the_seed_alone():
    size, truth = 15, 0.8555  # P(N(1.5, 1) > N(0, 1)) = Φ(1.5 / √2)
    found = [attack_scores(normal(1.5, size, size, seed), seed)[0] for seed in range(50)]
    # 0.1 % of true 95 % intervals would hold it in fewer of 50
    assert sum(area.low <= truth <= area.high for area in found) >= 42
    attack = normal(0.5)
    assert attack_scores(attack, 3) == attack_scores(attack, 3) != attack_scores(attack, 4)


def test_shift_is_found_only_between_two_distributions():
    found, notes = measure_shift(made_up(200, 1).texts, made_up(200, 2).texts, seed=0)
    assert found.score.low < 0.5 < found.score.high
    assert notes == () and found.place["sees"] == "neither model nor released rows"
    other = made_up(200, 1, [*WORDS, "noon", "dusk"]).texts
    found, (note,) = measure_shift(other, made_up(200, 2).texts, seed=0)
    assert found.score.low > 0.5 + MARGIN
    assert "means nothing" in note and not any(word in note for word in ("noon", "dusk"))
    # The negative control: looked up in another fold, a repeated text would be a difference.
    found, notes = measure_shift(made_up(50, 1).texts * 4, made_up(50, 2).texts, seed=0)
    assert found.score.n == 100 and found.score.low < 0.5 and notes == ()


def test_texts_on_both_sides_are_left_out_on_both():
    members = replace(MEMBERS, texts=["Good film!", "good film", *MEMBERS.texts[2:]])
    others = replace(OTHERS, texts=["GOOD FILM", *OTHERS.texts[1:]])
    sides = draw_sides(members, others, 100, seed=0)
    assert sorted(sides.members.texts) == sorted(MEMBERS.texts[2:])
    assert sorted(sides.non_members.texts) == sorted(OTHERS.texts[1:])
    assert sides.notes[0].startswith("2 of 60 members and 1 of 60 non-members")
    assert "good" not in sides.notes[0].lower()
    with pytest.raises(InputError, match="not trained on"):
        draw_sides(MEMBERS, MEMBERS, 10, seed=0)


def include(m, seed):
    """Coins that repeat; those of an audit must not."""
    return np.random.default_rng(seed).integers(2, size=m).astype(bool)


def randomised_response(epsilon, seed, m=M):
    """ε-private, exactly: each bit is told truly with probability e^ε / (1 + e^ε).

    Sizes say nothing; they let the auditor guess some of the canaries only.
    """
    rng = np.random.default_rng([seed, 1])
    included = include(m, seed)
    truthful = included ^ (rng.random(m) > 1 / (1 + math.exp(-epsilon)))
    return np.where(truthful, 1, -1) * (1 + rng.random(m)), included


def name_and_shame(delta, seed, m=1000):
    """(0, δ)-private: each bit is published with probability δ, else nothing is said of it."""
    rng = np.random.default_rng([seed, 1])
    included = include(m, seed)
    published = rng.random(m) < delta
    return np.where(published, np.where(included, 2, -2), rng.normal(0, 0.1, m)), included


def exceeding(epsilon, seeds, **options):
    runs = (one_run_audit(*randomised_response(epsilon, s), 0.0, **options) for s in range(seeds))
    return sum(run.epsilon > epsilon for run in runs)


def test_the_papers_own_number():
    """Of appendix D. δ costs, and by every canary, not by those guessed alone."""
    bounds = [epsilon_lower_bound(100, 75, many, 1e-4) for many in (1000, 10_000)]
    assert bounds[0] == pytest.approx(0.673, abs=1e-3)
    assert epsilon_lower_bound(100, 75, 1000, 0.0) > bounds[0] + 0.01 > bounds[1] + 0.02


@pytest.mark.parametrize(("r", "v"), [(10, 10), (1000, 700), (100, 55), (10, 0)])
def test_without_delta_it_is_clopper_and_pearsons_bound(r, v):
    least = beta.ppf(0.05, v, r - v + 1) if v else 0.0  # of the chance to be right
    expected = math.log(least / (1 - least)) if least > 0.5 else 0.0  # coins could make fewer
    assert epsilon_lower_bound(r, v, r, 0.0) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_the_bound_exceeds_the_truth_in_a_twentieth_of_all_runs_at_most(epsilon):
    above = exceeding(epsilon, 100, guesses=M // 2)
    assert above <= binom.ppf(0.999, 100, 0.05)
    for only in (False, True):
        many = exceeding(epsilon, 40, highest_only=only)
        assert many <= binom.ppf(0.999, 40, 0.05)  # Bonferroni
    if epsilon == 1:  # it is no looser than it must be: the exact chance is 4.4 %
        assert above >= 1
        found = [one_run_audit(*randomised_response(2.0, s, 2000), 0.0).epsilon for s in range(5)]
        assert 1.6 < np.mean(found) < 2.0


def test_the_best_of_all_numbers_of_guesses_without_correction_would_be_no_bound():
    """The negative control: what Bonferroni is there for."""
    seeds, epsilon, chance = 400, 1.0, 1 / (1 + math.exp(-1.0))
    exceeds = 0
    for seed in range(seeds):
        scores, included = randomised_response(epsilon, seed)
        ranked = included[np.argsort(-scores)]
        halves = np.arange(1, M // 2)
        correct = ranked.cumsum()[halves - 1] + (~ranked)[::-1].cumsum()[halves - 1]
        exceeds += bool((binom.sf(correct - 1, 2 * halves, chance) < 0.05).any())
    assert exceeds > 2 * binom.ppf(0.999, seeds, 0.05)


def test_forgetting_delta_would_be_no_bound():
    """The negative control: a mechanism that keeps (0, δ) and still publishes some bits."""
    delta, seeds = 0.01, 60
    runs = [name_and_shame(delta, seed) for seed in range(seeds)]
    assert all(one_run_audit(*run, delta, guesses=20).epsilon == 0.0 for run in runs)
    assert sum(one_run_audit(*run, 0.0, guesses=20).epsilon > 0.0 for run in runs) > seeds / 3


def test_one_run_audit_detects_a_leaking_mechanism_only():
    included = include(1000, 0)
    assert one_run_audit(included + 0.0, included, 1e-5).epsilon > 4
    silent = [
        one_run_audit(np.random.default_rng(seed).normal(size=M), include(M, seed + 500), 0.0)
        for seed in range(100)
    ]
    assert sum(run.epsilon > 0 for run in silent) <= 13  # 5 are expected at most
    assert one_run_audit(np.zeros(M), include(M, 7), 0.0).epsilon == 0.0


def test_a_twin_that_shows_a_part_of_its_canaries_proves_more_by_them_alone():
    """A tenth of those that are in can be seen. Of those that are out nothing is known."""
    included = include(1000, 0)
    scores = np.where(included & (np.random.default_rng(1).random(1000) < 0.2), 1.0, 0.0)
    both, highest = (
        one_run_audit(scores, included, 1e-5, highest_only=only) for only in (False, True)
    )
    assert highest.epsilon > 2 > both.epsilon
    # The ceiling is what a perfect attack gets.
    perfect = one_run_audit(included + 0.0, included, 1e-5, highest_only=True)
    assert perfect.epsilon == perfect.ceiling == highest.ceiling > highest.epsilon


def test_inclusion_is_a_fair_coin_that_no_seed_repeats():
    draws = np.array([roc.include(50) for _ in range(400)])
    assert abs(draws.mean() - 0.5) < 0.02  # 5.6 standard deviations
    assert np.abs(np.corrcoef(draws.T) - np.eye(50)).max() < 0.3
    assert len({tuple(row) for row in draws.tolist()}) == 400


def patients(rows, seed):
    """Rows whose columns say little of one another."""
    rng = np.random.default_rng(seed)
    columns = {"mood": rng.choice(["bad", "good"], rows), "age": rng.integers(20, 80, rows)}
    columns |= {name: rng.choice([*"abcdefgh"], rows) for name in ("ward", "drug", "town")}
    return pd.DataFrame({"text": [f"text {n} of {seed}" for n in range(rows)], **columns})


def test_columns_find_a_copied_row_and_no_row_of_another_twin():
    sides = [
        records_from_frame(patients(200, seed), "text", ["mood"], keep=ColumnRules())[0]
        for seed in (1, 2)
    ]
    places = [np.random.default_rng(0).permutation(200) for _ in sides]
    sides = [take_records(side, place) for side, place in zip(sides, places, strict=True)]
    copy = patients(200, 1)
    spelled = copy.assign(**{name: copy[name].str.upper() for name in ("ward", "drug", "town")})
    for twin, least, most in ((patients(200, 3), 0.4, 0.6), (copy, 0.9, 1.0), (spelled, 0.9, 1.0)):
        attacks, guessed = column_attacks(twin, *sides)
        areas = {a.name: attack_scores(a, seed=0)[0].value for a in attacks}
        assert least < areas["nearest twin row by columns"] <= most
        assert (areas["cells guessed from the rest"] > 0.65) == (least > 0.8)
        assert [m.place["rows"] for m in guessed] == ["train", "held-out"]
    assert guessed[0].score.low > guessed[1].score.high  # of the copy
    assert column_attacks(twin[["text", "mood"]], *map(records_of, ("a", "b"))) == ([], [])


def test_the_riskiest_tenth_is_no_sign_of_a_leak_beside_few_non_members():
    """By chance, with ties, and with few of one side. Of one attack and of several."""
    rng, found = np.random.default_rng(0), Counter()
    for draw in range(300):
        for many, (n, m) in product((1, 6), ((400, 400), (400, 40), (40, 400))):
            scores = rng.normal(size=(many, n + m)).round(1)  # with ties
            attacks = [Attack("loss", "model", each[:n], each[n:]) for each in scores]
            found[many, n, m] += find_riskiest(attacks, draw)[0].score.low > 0.5
        equal = Attack("loss", "model", np.zeros(400), np.zeros(400))
        found["equal"] += find_riskiest([equal], draw)[0].score.low > 0.5
    assert max(found.values(), default=0) < 0.05 * 300, found


def test_the_riskiest_tenth_finds_what_two_of_six_attacks_see_and_lists_copies_first():
    rng, found = np.random.default_rng(0), Counter()
    cases = (8, 1000), (50, 1000), (50, 111)
    for draw, (copied, others) in product(range(40), cases):
        scores, leaked = rng.normal(size=(6, 1000 + others)), rng.permutation(1000)[:copied]
        scores[:2, leaked] = 9.0  # copies of one row are equally near
        attacks = [Attack("loss", "model", each[:1000], each[1000:]) for each in scores]
        tenth, members, risks = find_riskiest(attacks, draw)
        # Another row may be first in two attacks by chance.
        assert len({*members[:copied].tolist()} - {*leaked.tolist()}) <= 1 and risks[0] == 1.0
        assert (np.diff(risks) <= 0).all()
        found[copied, others] += tenth.score.low > 0.5
    # As the docs say: next to few others, most members are left out of the share.
    assert found[50, 1000] > 0.85 * 40, found
    assert max(found[8, 1000], found[50, 111]) < 0.4 * 40, found
