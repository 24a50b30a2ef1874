"""Privacy weights: what a public model makes of a text alone, on a public scale."""

import json
import re
from dataclasses import asdict

import pandas as pd
import pytest
import torch

from tests.helpers.commands import run_twinset
from twinset.config import PolicyConfig, PrivacyConfig, RunConfig
from twinset.config.plan import make_plan
from twinset.models.base_model import load_base
from twinset.models.hidden_states import NATS_TOKENS_AT_ONCE, nats_per_token
from twinset.policies.adaptive import Adaptive, AdaptiveOptions
from twinset.privacy.mechanism.units import STATED_WEIGHTS

TEXTS = [[5, 9, 7, 3], [11, 2], list(range(1, 30)), [8] * 200]  # the last is longer than the model


@pytest.fixture(scope="module")
def base(tiny_base):
    return load_base(str(tiny_base))


def test_nats_are_the_mean_loss_of_each_text_alone(base):
    counted = []
    found = nats_per_token(base.model, TEXTS, 0, lambda done, _: counted.append(done))
    assert counted[-1] == len(TEXTS)
    for text, nats in zip(TEXTS, found, strict=True):
        row = torch.tensor([[0, *text]])[:, :128]
        with torch.no_grad():
            loss = base.model(input_ids=row, labels=row).loss
        assert float(nats) == pytest.approx(float(loss), rel=1e-5)


def test_a_text_s_nats_do_not_depend_on_its_neighbours_by_a_single_bit(base):
    alone = nats_per_token(base.model, TEXTS[:1], 0)
    many = [[i % 90 + 1] * (i % 40 + 1) for i in range(3 * NATS_TOKENS_AT_ONCE // 16)]
    beside = nats_per_token(base.model, [*many, TEXTS[0], *many], 0)[len(many)]
    assert torch.equal(alone[0], beside)


def test_a_tenth_of_the_texts_is_beyond_each_end_of_the_scale(
    capsys, tmp_path, tiny_base, base, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    sentences = [f"A sentence, number {i}, {'and so on ' * (i % 9)}." for i in range(50)]
    pd.DataFrame({"words": sentences}).to_csv("public.csv", index=False)
    fit = f"weight-scale public.csv --output scale.json --quiet --base-model {tiny_base}".split()
    assert run_twinset(capsys, *fit, "--text", "words", "--precision", "float32").code == 0
    scale = Adaptive.weight_scale(AdaptiveOptions(weight_scale="scale.json"), base)
    ids = base.tokenizer([f" {s}" for s in sentences], add_special_tokens=False)["input_ids"]
    end = base.tokenizer.eos_token_id
    nats = nats_per_token(base.model, [[*row, end][:256] for row in ids], end)
    weights = scale.weights(nats)
    assert sum(weights == 0) in range(4, 8) and sum(weights == 1) in range(4, 8)
    nearest = [min(STATED_WEIGHTS, key=lambda stated: abs(stated - w)) for w in weights.tolist()]
    assert scale.shares == pytest.approx([nearest.count(w) / 50 for w in STATED_WEIGHTS])
    assert scale.origin == "50 texts of public.csv"
    assert re.fullmatch("local folder, files [0-9a-f]{64}", scale.base_model)
    assert str(tiny_base) not in json.dumps(asdict(scale))
    again = run_twinset(capsys, *fit, "--text", "words")
    assert again.code == 2 and "exists" in again.err


# -- the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "highest"), [(4.0, None), (4.0, 20.0)])
def test_both_budgets_are_met_by_the_plan_s_own_events(epsilon, highest):
    config = RunConfig(PrivacyConfig(epsilon), PolicyConfig("adaptive", epsilon_max=highest))
    plan = make_plan(10_000, config)
    most = 2 * epsilon if highest is None else highest
    assert 0.995 * most < plan.epsilon <= most
    assert 0.99 * epsilon < plan.epsilon_after(plan.steps, weight=1.0) <= epsilon
    uniform = make_plan(10_000, RunConfig(PrivacyConfig(epsilon)))
    assert plan.noise_multiplier <= uniform.noise_multiplier
    assert plan.highest == most
