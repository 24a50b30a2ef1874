import math

import numpy as np
import pytest
import torch
from evaluated import reviews

from evaluation.encoderclassifier import EncoderClassifier
from evaluation.fitting import Budget, Recipe
from twinset.errors import InputError

QUICK = Recipe(batch_size=32, epochs=8, learning_rate=3e-3)


@pytest.fixture(scope="module")
def tiny_encoder(tiny_base, tmp_path_factory):
    """Folder of a random two-layer BERT with the tiny base's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=160,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


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
    assert first.epsilon == math.inf


def test_a_budget_is_kept_and_nearly_spent(tiny_encoder):
    budget = Budget(8.0, 1e-3)
    model = fitted(tiny_encoder, budget=budget)
    assert 7.9 < model.epsilon <= 8.0
    (event,) = model._events
    assert (event.sample_rate, event.steps) == (32 / 160, 40)


def test_noise_is_not_seeded(tiny_encoder):
    budget = Budget(8.0, 1e-3)
    first, again = fitted(tiny_encoder, budget=budget), fitted(tiny_encoder, budget=budget)
    assert not torch.equal(weights(first), weights(again))


def test_a_small_budget_drowns_what_is_learnt(tiny_encoder):
    """A negative control: the noise is there, and so large as the budget says."""
    assert accuracy(fitted(tiny_encoder, budget=Budget(0.01, 1e-3))) < 0.75


def test_steps_are_counted(tiny_encoder):
    counted = []
    fitted(tiny_encoder, count=lambda done, total: counted.append((done, total)))
    assert counted == [(step, 40) for step in range(1, 41)]


def test_what_is_no_classifier_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded as a text classifier"):
        fitted(tmp_path)
