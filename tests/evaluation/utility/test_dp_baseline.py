import numpy as np
import pytest
import torch

from evaluation.utility.classifiers import SentenceEncoder
from evaluation.utility.dp_classifiers import Budget, LinearOverTable, PrivateRegression, Recipe
from tests.helpers.evaluated import reviews, without_downloads
from twinset.privacy.clipping import ClassifierClipping, LabelledRows


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch):
    without_downloads(monkeypatch)


def fitted(budget, rows=600, **options):
    train = reviews(rows, seed=0)
    model = PrivateRegression(SentenceEncoder(), budget, **options)
    return model.fit(train["text"].tolist(), train["product"].tolist())


def accuracy(model):
    test = reviews(80, seed=1)
    return np.mean(model.predict(test["text"].tolist()) == test["product"].to_numpy())


def test_it_learns_within_its_budget():
    model = fitted(Budget(8.0, 1e-5))
    assert accuracy(model) > 0.9
    assert 7.9 < model.epsilon <= 8.0


def test_a_small_budget_drowns_what_is_learned():
    """A negative control: the noise is there, and so large as the budget says."""
    found = [accuracy(fitted(Budget(0.01, 1e-5))) for _ in range(5)]
    assert np.mean(found) < 0.8


def test_noise_is_not_seeded():
    first, again = (fitted(Budget(8.0, 1e-5))._layer.weight for _ in range(2))
    assert not torch.equal(first, again)


def test_batches_can_be_a_part_of_the_rows():
    recipe = Recipe(batch_size=100, epochs=4, learning_rate=0.5)
    counted = []
    model = fitted(Budget(8.0, 1e-5), recipe=recipe, count=lambda *done: counted.append(done))
    assert counted[-1] == (24, 24)
    (event,) = model.ledger.events
    assert event.sample_rate == 100 / 600


def test_the_clipped_sum_is_that_of_the_formula():
    """Row by row: (softmax - one-hot) times (vector, 1), cut down to norm C."""
    rng = np.random.default_rng(0)
    vectors, classes = rng.normal(size=(20, 5)).astype(np.float32), rng.integers(3, size=20)
    layer = LinearOverTable(torch.from_numpy(vectors), 3)
    torch.nn.init.normal_(layer.linear.weight, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(20)[:, None]
    clipping = ClassifierClipping(layer, 0.7)
    clipping.zero()
    clipping.add(LabelledRows(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor(classes)))
    weight, bias = layer.linear.weight.detach().numpy(), layer.linear.bias.detach().numpy()
    wanted = np.zeros((3, 6))
    for vector, label in zip(vectors, classes, strict=True):
        odds = np.exp(weight @ vector + bias)
        gradient = np.outer(odds / odds.sum() - np.eye(3)[label], [*vector, 1.0])
        wanted += gradient * min(1.0, 0.7 / np.linalg.norm(gradient))
    found = np.column_stack([s.numpy() for s in clipping.sums])
    clipping.close()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
