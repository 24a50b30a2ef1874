"""Paper 001 on one set: its variants of importance, frozen lower layers, and a whole run."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch

from evaluation.audit.mechanism import MAX_GRAD_NORM, Step, Target
from evaluation.audit.neighbouring_tables import worst_case
from evaluation.papers import anadp, anadp_one_set
from evaluation.papers.anadp import ADAPTERS, NO_DP, PUBLISHED, UNIFORM
from evaluation.papers.anadp_one_set import FORMS, VARIANTS, AnadpOneSet, maker_of
from evaluation.papers.importance_arms import ByGradient, Oracle, Recentred, mean_square
from evaluation.papers.last_layers import keep_last_layers
from evaluation.papers.study_rows import Results
from tests.conftest import _tokenizer
from tests.helpers.models import save_tiny_encoder
from tests.helpers.study_runs import stopped_and_finished
from tests.privacy import test_classifier_clipping as classifiers
from twinset import policies
from twinset.config import PolicyConfig
from twinset.policies import MechanismParams
from twinset.policies.importance import Importance
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.mechanism.randomness import Randomness

SHAPES = [(4, 6), (6,), (5, 3)]


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def policy(kind, sigma=0.8):
    """A policy that has seen three steps."""
    made = kind(MechanismParams(sigma, 2.0, 0.1, Randomness.for_tests(1), PolicyConfig()))
    for step in range(3):
        made.release(tensors(step), [])
        made.update_statistics(tensors(100), tensors(step))
    return made


# --- importance re-centred ------------------------------------------------------------------------


def test_recentred_noise_is_as_long_as_uniform_noise():
    scales, before = policy(Recentred).scales(), policy(Importance).scales()
    sizes = [math.prod(shape) for shape in SHAPES]

    def mean(some):
        pairs = zip(some, sizes, strict=True)
        return sum(mean_square(s) * n for s, n in pairs) / sum(sizes)

    assert mean(scales) == pytest.approx(1.0)
    assert mean(before) != pytest.approx(1.0, rel=0.02)
    ratios = [
        a.times_(torch.ones(shape)) / b.times_(torch.ones(shape))
        for a, b, shape in zip(scales, before, SHAPES, strict=True)
    ]
    assert all(torch.allclose(ratio, ratios[1][0]) for ratio in ratios)  # one number for all


def test_recentred_noise_is_that_of_the_geometry_it_clips_in():
    """At the ε of `Uniform`: two thirds of the noise would be noticed."""
    made = Recentred(MechanismParams(1.5, 2.0, 0.1, Randomness.for_tests(1), PolicyConfig()))
    made.update_statistics([torch.randn(300, 200)], [torch.randn(300, 200)])
    (scale,) = made.scales()
    (noisy,), event = made.release([torch.zeros(300, 200)], [])
    assert float((noisy / scale.times_(torch.ones(300, 200))).std()) == pytest.approx(3.0, rel=0.02)
    assert float(noisy.std()) == pytest.approx(3.0, rel=0.02)
    assert (event.noise_multiplier, event.sample_rate) == (1.5, 0.1)


class Unmoved(Recentred):
    """A fault: noise follows the scales, clipping does not."""

    def scales(self):
        super().scales()
        return []


@pytest.mark.parametrize("kind", [Recentred, Unmoved])
def test_a_unit_shows_as_c_where_clipping_follows_the_noise(monkeypatch, kind):
    monkeypatch.setitem(policies.POLICIES, ("importance", "sound"), kind)
    step = Step(worst_case(), Target(PolicyConfig("importance")))
    difference = step.noiseless((0, 1, 2, 3)) - step.noiseless((0, 1, 2))
    step.engine.close()
    if kind is Unmoved:  # its sum was not divided by the scales that noise is multiplied by
        pairs = zip(step.policy._scales, step.shaped(torch.ones_like(difference)), strict=True)
        difference /= torch.cat([scale.times_(one).flatten() for scale, one in pairs])
    moved = float(difference.norm()) / MAX_GRAD_NORM
    assert moved == pytest.approx(1.0, rel=1e-5) if kind is Recentred else moved > 1.2


# --- other variants -------------------------------------------------------------------------------


def test_by_gradient_weights_that_are_zero_are_told_apart():
    zeros, gradient = [torch.zeros(3, 4)], [torch.arange(1.0, 13.0).reshape(3, 4)]
    found = {}
    for kind in (Importance, ByGradient):
        made = kind(MechanismParams(1.0, 1.0, 0.1, Randomness.for_tests(1), PolicyConfig()))
        made.update_statistics(zeros, gradient)
        found[kind] = made.importance()[0]
    assert bool((found[Importance] == 0).all())
    assert bool((found[ByGradient].flatten().diff() > 0).all())


def test_the_oracle_sees_gradients_without_noise_and_says_that_nothing_is_guaranteed():
    found = [policy(Oracle, sigma).importance() for sigma in (0.8, 50.0)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    made = policy(Oracle)
    total = torch.cat([s.flatten() for s in made.noise_scales()])
    assert float(total.square().mean()) == pytest.approx(1.0)
    assert made.scales() == []  # plain clipping
    assert math.isinf(epsilon([made.event], 1e-5))
    others = [policy(Importance, sigma).importance() for sigma in (0.8, 50.0)]
    assert all(torch.equal(a, b) for a, b in zip(*others, strict=True))  # given the same gradients


@pytest.mark.parametrize("form", FORMS)
def test_each_form_spends_what_it_says(form):
    maker, private = maker_of(form), form != NO_DP
    norm = 1.0 if private else math.inf
    made = maker(MechanismParams(1.2 if private else 0.0, norm, 0.1, Randomness.from_os()))
    stated, least = (epsilon([SubsampledGaussian(s, 0.1, 3)], anadp.DELTA) for s in (1.2, 0.6))
    weights = [torch.linspace(-1, 1, 40).reshape(4, 10)]
    for _ in range(3):
        made.scales()
        noisy, event = made.release([torch.ones(4, 10)], [0])
        made.update_statistics(weights, noisy)
    claims = form == PUBLISHED or "oracle" in form
    assert maker.nominal(anadp.DELTA) == (stated if claims else None)
    free = form == NO_DP or "oracle" in form
    expected = math.inf if free else least if form == PUBLISHED else stated
    assert epsilon([event] * 3, anadp.DELTA) == pytest.approx(expected)


# --- the last layers ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["BertConfig", "RobertaConfig"])
def test_frozen_layers_below_change_nothing(family):
    rows, whole = classifiers.random_rows(6, 1), classifiers.build(family)
    known = {}
    last = keep_last_layers(copy.deepcopy(whole), 1, known)
    inputs = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask}
    expected = whole(**inputs).logits
    for _ in range(2):  # the second time from what is known
        assert torch.allclose(last(**inputs).logits, expected)
    assert len(known) == len({row.numpy().tobytes() for row in rows.input_ids})
    trained = [n for n, p in last.named_parameters() if p.requires_grad]
    assert {".layer.0." in n or "classifier" in n or "pooler" in n for n in trained} == {True}
    assert not any("embeddings" in n for n in trained)


def test_with_no_layer_left_the_head_sees_the_mean_of_the_tokens():
    rows, whole = classifiers.random_rows(6, 1), classifiers.build("BertConfig")
    head = keep_last_layers(copy.deepcopy(whole), 0, {})
    mask = rows.attention_mask
    hidden = whole.base_model(input_ids=rows.input_ids, attention_mask=mask).last_hidden_state
    means = torch.stack([h[m].mean(0) for h, m in zip(hidden, mask, strict=True)])
    expected = whole.classifier(whole.base_model.pooler(means[:, None]))
    assert torch.allclose(head(input_ids=rows.input_ids, attention_mask=mask).logits, expected)


@pytest.mark.parametrize("layers", [0, 1])
def test_clipping_of_the_last_layers_is_exact(layers):
    rows, model = classifiers.random_rows(5, 1), classifiers.build("BertConfig")
    model = anadp.tune(anadp_one_set.prepared(model, layers, {}), ADAPTERS, 3).double()
    with torch.no_grad():  # as after some steps
        for name, p in model.named_parameters():
            if ".up." in name:
                p.normal_(0, 0.3)
    found, right = classifiers.clipped(model, rows, 3), classifiers.expected(model, rows)
    assert classifiers.error(found, right) < classifiers.EXACT


# --- what is found --------------------------------------------------------------------------------


def made_up(tmp_path, accuracy):
    results = Results(tmp_path / "anadp_one_set.json", {})
    for key in AnadpOneSet("tiny").keys(3):
        noise = [["0", "a.down", 0.5], ["0", "a.up", 2.0 + key.seed], ["-", "classifier", 1]]
        row = {"accuracy": accuracy.get(key.form, 0.75) + key.seed / 100, "noise": noise}
        results.rows[tuple(key)] = row
    return results


def test_a_gain_is_seed_by_seed_and_a_share_of_what_noise_costs(tmp_path):
    found = made_up(tmp_path, {NO_DP: 0.9, UNIFORM: 0.7})
    line = anadp_one_set.gain(found, 8.0, ADAPTERS, "oracle")
    assert str(line["accuracy less uniform"]) == "0.050 [0.050, 0.050]"
    assert line["of the gap to no privacy, won back"] == "25%"
    assert line["noise ÷ uniform: in front of it"] == "0.50"
    assert line["noise ÷ uniform: begins at zero"] == f"{(2 * 3 * 4) ** (1 / 3):.2f}"
    free = made_up(tmp_path, dict.fromkeys(FORMS, 0.7))
    line = anadp_one_set.gain(free, 8.0, ADAPTERS, "oracle")
    assert line["of the gap to no privacy, won back"] == "no gap is shown"


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory):
    sizes = {"intermediate_size": 24, "max_position_embeddings": 40}
    return save_tiny_encoder(_tokenizer(), tmp_path_factory.mktemp("encoder"), **sizes)


def sentences(seed):
    rng = np.random.default_rng(seed)
    good = rng.integers(2, size=150)
    words = [("dull grey", "lovely warm")[one] for one in good]
    texts = [f"The film was {word}, no. {rng.integers(99)}" for word in words]
    return pd.DataFrame({"text": texts, "sentiment": good.astype(str)})


@pytest.mark.slow
def test_from_the_command_to_its_files(options_of, tiny_encoder, monkeypatch):
    tables = {f"sst2-{part}": sentences(seed) for seed, part in enumerate(("train", "test"))}
    options = options_of(tables, "--encoder", tiny_encoder)
    done = stopped_and_finished(
        AnadpOneSet, options, monkeypatch, anadp_one_set, "classify", after=3
    )
    assert (done.before, done.calls) == (3, len(FORMS))
    for row in done.found["rows"]:
        form, spent = row["key"][2], row["epsilon"]
        assert row["key"][:2] == [8.0, ADAPTERS] and 0 <= row["accuracy"] <= 1
        assert (spent is None) == (form == NO_DP or "oracle" in form)
        if spent is not None and form != PUBLISHED:
            assert anadp.EPSILON - 0.05 < spent <= anadp.EPSILON
        assert bool(row["noise"]) == (form not in (NO_DP, UNIFORM))
    assert set(VARIANTS) < set(FORMS)
