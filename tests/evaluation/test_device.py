"""Encoders, private classifiers and attacks on models, on a device that is pretended."""

import numpy as np
import pytest

from evaluation.leakage import names
from evaluation.leakage.canaries import candidate_losses
from evaluation.leakage.membership import row_losses
from evaluation.leakage.names import mean_reciprocal_rank
from evaluation.utility import classifiers
from evaluation.utility.classifiers import (
    Budget,
    EncoderClassifier,
    PrivateRegression,
    Recipe,
    SentenceEncoder,
)
from tests.helpers.evaluated import records_of, reviews, twin_of
from tests.helpers.pretended import Mixed, Pretended, pretended_gpu
from twinset.models.base_model import load_base
from twinset.progress import Silent
from twinset.table.tokenization import tokenise

TEXTS = ["A great film, moving and fine.", "Dull.", "The plot was dull, and long."]
BUDGET = Budget(8.0, 1e-3)


@pytest.fixture
def embedder(tiny_encoder, monkeypatch):
    monkeypatch.setattr(classifiers, "asset_path", lambda name, say: tiny_encoder)
    return SentenceEncoder


def test_a_classifier_learns_and_predicts_there(tiny_encoder, monkeypatch):
    rows = reviews(16, seed=0)
    recipe = Recipe(batch_size=8, epochs=1, learning_rate=1e-3)
    with pretended_gpu(monkeypatch):
        model = EncoderClassifier(str(tiny_encoder), recipe=recipe, budget=BUDGET)
        model.fit(rows["text"].tolist(), rows["product"].tolist())
        assert all(isinstance(p, Pretended) for p in model._model.parameters())
        assert len(model.predict(rows["text"].tolist())) == 16


def test_embeddings_are_those_of_the_processor_and_serve_a_private_regression(
    embedder, monkeypatch
):
    expected = embedder().encode(TEXTS)
    with pretended_gpu(monkeypatch) as reads:
        encoder = embedder()
        assert np.allclose(encoder.encode(TEXTS), expected, atol=1e-5)
        assert reads["copies"] == 1
        here = embedder(device="cpu")
        assert np.allclose(here.encode(TEXTS), expected) and reads["copies"] == 1
        model = PrivateRegression(encoder.encode, BUDGET, Recipe(np.inf, 2, 0.1))
        assert len(model.fit(TEXTS, ["a", "b", "b"]).predict(TEXTS)) == 3


def attack(base) -> list[np.ndarray]:
    """Return what each attack makes of a model: losses of rows and canaries, ranks of names."""
    twin, records = twin_of(base), records_of(TEXTS, ("bad", "good"))
    losses = row_losses(twin.model, tokenise(records, twin.template, twin.tokenizer, 128, 64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "names_in", lambda texts: ([(0, 4)] for _ in texts))
        (rank,) = mean_reciprocal_rank(twin, records, "train", seed=0, progress=Silent())
    canaries = candidate_losses(base.model, base.tokenizer, [1, 5], [f"PIN {i}" for i in range(20)])
    return [losses.total, losses.hardest, canaries, np.array([rank.score.value])]


def test_attacks_find_there_what_they_find_on_the_processor(tiny_base, monkeypatch):
    expected = attack(load_base(str(tiny_base)))
    with pretended_gpu(monkeypatch):
        found = attack(load_base(str(tiny_base), device="cuda"))
    for mine, theirs in zip(found, expected, strict=True):
        assert np.allclose(mine, theirs, rtol=1e-4)


def test_a_forgotten_device_is_caught(tiny_base, monkeypatch):
    """The control: tokens that stay on the processor."""
    plain = names.torch.tensor
    with pretended_gpu(monkeypatch):
        base = load_base(str(tiny_base), device="cuda")
        monkeypatch.setattr(
            names.torch, "tensor", lambda data, device=None, **more: plain(data, **more)
        )
        with pytest.raises(Mixed):
            attack(base)
