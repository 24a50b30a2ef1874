import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from evaluation.utility.dp_classifiers import Budget, EncoderClassifier, Recipe
from tests.helpers.evaluated import reviews
from tests.helpers.models import save_tiny_encoder
from twinset.config import PolicyConfig
from twinset.errors import InputError
from twinset.policies import make_policy
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.wording import CLASSIFIER

QUICK = Recipe(batch_size=32, epochs=8, learning_rate=3e-3)


@pytest.fixture(scope="module")
def tiny_encoder(tiny_base, tmp_path_factory):
    """Folder of a random two-layer BERT with the tiny base's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 160}
    return save_tiny_encoder(tokenizer, tmp_path_factory.mktemp("encoder"), **sizes)


def fitted(folder, **options):
    train = reviews(160, seed=0)
    model = EncoderClassifier(str(folder), **({"recipe": QUICK} | options))
    return model.fit(train["text"].tolist(), train["product"].tolist())


def accuracy(model):
    test = reviews(80, seed=1)
    return np.mean(model.predict(test["text"].tolist()) == test["product"].to_numpy())


def weights(model):
    return torch.cat([p.detach().flatten() for p in model._model.parameters()])


def test_it_learns_and_its_seed_repeats_it(tiny_encoder):
    first, again = fitted(tiny_encoder), fitted(tiny_encoder)
    assert accuracy(first) > 0.9
    assert torch.equal(weights(first), weights(again))
    assert (first.ledger, first.guarantee, first.epsilon) == (None, None, math.inf)


def test_a_budget_is_kept_and_nearly_spent(tiny_encoder):
    budget = Budget(8.0, 1e-3)
    model = fitted(tiny_encoder, budget=budget)
    assert 7.9 < model.epsilon <= 8.0
    (event,) = model.ledger.events
    assert (event.sample_rate, event.steps) == (32 / 160, 40)


def test_what_it_guarantees_is_said_of_the_classifier_by_its_ledger(tiny_encoder):
    model = fitted(tiny_encoder, budget=Budget(8.0, 1e-5))
    given = guarantee(model.ledger, CLASSIFIER)
    assert given == model.guarantee and given.epsilon == model.epsilon
    assert given.sentence.startswith("The classifier is (8.00, 1e-05)-differentially private")
    assert "twin" not in given.sentence + " ".join((*given.covers, *given.excludes))
    assert model.ledger.records == 160 and model.ledger.randomness_is_private


def test_a_policy_that_no_theorem_covers_is_guaranteed_nothing(tiny_encoder):
    """A negative control: the ledger has the policy's events, whatever the budget was."""

    def published(setting):
        weights = torch.linspace(0, 1, 160)
        options = PolicyConfig("adaptive", "published")
        return make_policy(replace(setting, options=options, weights=weights))

    model = fitted(tiny_encoder, budget=Budget(8.0, 1e-5), make=published)
    assert model.epsilon == math.inf
    assert model.guarantee.sentence.startswith("No privacy guarantee")


def test_a_ledger_that_noise_can_be_reproduced_from_guarantees_nothing(tiny_encoder):
    ledger = fitted(tiny_encoder, budget=Budget(8.0, 1e-5)).ledger
    known = replace(ledger, randomness_is_private=False)
    assert guarantee(known, CLASSIFIER).epsilon is None


@pytest.mark.parametrize(
    "budget", [None, Budget(8.0, 1e-5)], ids=["without a budget", "with a budget"]
)
def test_a_gradient_is_used_only_after_it_is_recorded(tiny_encoder, monkeypatch, budget):
    recorded, used = [], []
    plain = Ledger.record
    monkeypatch.setattr(Ledger, "record", lambda *both: (recorded.append(both), plain(*both)))
    handle = register_optimizer_step_pre_hook(lambda *_: used.append(len(recorded)))
    try:
        fitted(tiny_encoder, budget=budget, recipe=replace(QUICK, epochs=1))
    finally:
        handle.remove()
    assert used == ([1, 2, 3, 4, 5] if budget else [0] * 5)


def test_noise_is_not_seeded(tiny_encoder):
    budget = Budget(8.0, 1e-3)
    first, again = fitted(tiny_encoder, budget=budget), fitted(tiny_encoder, budget=budget)
    assert not torch.equal(weights(first), weights(again))


def test_a_small_budget_drowns_what_is_learned(tiny_encoder):
    """A negative control: the noise is there, and so large as the budget says."""
    assert accuracy(fitted(tiny_encoder, budget=Budget(0.01, 1e-3))) < 0.75


def test_steps_are_counted(tiny_encoder):
    counted = []
    fitted(tiny_encoder, count=lambda done, total: counted.append((done, total)))
    assert counted == [(step, 40) for step in range(1, 41)]


def test_what_is_no_classifier_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="has no .safetensors weights"):
        fitted(tmp_path)
