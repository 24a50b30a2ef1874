"""Classifiers, open and private: what they learn, how it is scored, and what it spends."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, f1_score
from torch.optim.optimizer import register_optimizer_step_pre_hook

from evaluation.findings import proportion
from evaluation.utility.classifiers import (
    Budget,
    EncoderClassifier,
    LinearOverTable,
    PrivateRegression,
    Recipe,
    SentenceEncoder,
    make_classifiers,
)
from evaluation.utility.usefulness import classification_scores, score_agreement, targets, train_on
from tests.helpers.evaluated import reviews, without_downloads
from twinset.config import PolicyConfig
from twinset.errors import InputError
from twinset.policies import MechanismParams
from twinset.privacy.clipping import ClassifierClipping, LabelledRows
from twinset.privacy.clipping.engine import SLACK
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.wording import CLASSIFIER

tfidf = make_classifiers(["tfidf"])["tfidf"]
LABELS = ["a", "b", "c"]
QUICK = Recipe(batch_size=32, epochs=8, learning_rate=3e-3)
ONE_EPOCH = replace(QUICK, epochs=1)
BUDGET = Budget(8.0, 1e-5)


def random_predictions(seed, n=300, seeds=1, right=0.7):
    rng = np.random.default_rng(seed)
    true = rng.choice(LABELS, n, p=[0.6, 0.3, 0.1])
    said = [np.where(rng.random(n) < right, true, rng.choice(LABELS, n)) for _ in range(seeds)]
    return true.tolist(), [row.tolist() for row in said]


def test_scores_agree_with_scikit_learn():
    labels, (said,) = random_predictions(0)
    (accuracy, macro), by_label = classification_scores(labels, [said])
    assert accuracy.value == pytest.approx(accuracy_score(labels, said))
    assert macro.value == pytest.approx(f1_score(labels, said, average="macro"))
    expected = f1_score(labels, said, average=None, labels=LABELS)
    assert [s.value for s in by_label.values()] == pytest.approx(list(expected))
    assert [s.n for s in by_label.values()] == [labels.count(label) for label in LABELS]


def test_intervals_cover_the_truth_19_times_in_20_or_more(monkeypatch):
    n, right = 30, 0.925
    monkeypatch.setattr("evaluation.utility.usefulness.RESAMPLES", 200)
    truth = right + (1 - right) / 3
    found = (random_predictions(seed, n=n, right=right) for seed in range(80))
    scores = [classification_scores(*each)[0][0] for each in found]
    assert np.mean([s.low <= truth <= s.high for s in scores]) >= 0.9
    hits = np.random.default_rng(1).binomial(n, truth, size=1000)
    covered = [(s := proportion("", int(h), n)).low <= truth <= s.high for h in hits]
    assert 0.92 <= np.mean(covered) <= 0.985


def test_seeds_that_disagree_widen_the_interval():
    """A negative control: what depends on luck in training is not shown as certain."""
    labels = ["a", "b"] * 200
    right, wrong = labels, ["b", "a"] * 200
    steady = classification_scores(labels, [right, right])[0][0]
    lucky = classification_scores(labels, [right, wrong])[0][0]
    assert steady.low > 0.99
    assert lucky.value == 0.5 and lucky.high - lucky.low == 1
    few = ["a", "b"] * 3  # six rows that are right prove little
    assert classification_scores(few, [few])[0][0].low < 0.65


@pytest.mark.parametrize("target", targets(["sentiment", "product"]))
def test_separable_rows_are_learned_and_shuffled_labels_teach_nothing(target):
    train, heldout = reviews(300, seed=0), reviews(200, seed=1)
    model = train_on(train, "text", target, tfidf)
    assert score_agreement("accuracy", model, heldout, "text", target).value > 0.95
    rng, mood, scores = np.random.default_rng(0), ("sentiment",), []
    for _ in range(20):  # with six telling words, one order may teach something by chance
        shuffled = train.assign(sentiment=rng.permutation(train["sentiment"].to_numpy()))
        model = train_on(shuffled, "text", mood, tfidf)
        scores.append(score_agreement("accuracy", model, heldout, "text", mood).value)
    assert 0.35 < np.mean(scores) < 0.65


def test_what_cannot_be_used_is_refused():
    frame = pd.DataFrame({"mood": ["good", None], "text": [" ", "SECRET two"]})
    with pytest.raises(InputError, match="Give others") as error:
        train_on(frame, "text", ("mood",), tfidf)
    assert "SECRET" not in str(error.value)
    model = DummyClassifier().fit(["a", "b"], ["x", "y"])
    with pytest.raises(InputError, match="Give others"):
        score_agreement("accuracy", model, frame, "text", ("mood",))


def accuracy(model):
    test = reviews(80, seed=1)
    return np.mean(model.predict(test["text"].tolist()) == test["product"].to_numpy())


def regression(budget, rows=600, **options):
    train = reviews(rows, seed=0)
    model = PrivateRegression(SentenceEncoder().encode, budget, **options)
    return model.fit(train["text"].tolist(), train["product"].tolist())


def encoder(folder, **options):
    train = reviews(160, seed=0)
    model = EncoderClassifier(str(folder), **({"recipe": QUICK} | options))
    return model.fit(train["text"].tolist(), train["product"].tolist())


def weights(model):
    return torch.cat([p.detach().flatten() for p in model._model.parameters()])


def test_a_regression_learns_within_its_budget_and_a_small_one_drowns_it(monkeypatch):
    """The second is a negative control: the noise is there, and as large as the budget says."""
    without_downloads(monkeypatch)
    model, again = regression(BUDGET), regression(BUDGET)
    assert accuracy(model) > 0.9
    assert 7.9 < guarantee(model.ledger, CLASSIFIER).epsilon <= 8.0
    assert not torch.equal(model._layer.weight, again._layer.weight)  # noise is not seeded
    drowned = [accuracy(regression(Budget(0.01, 1e-5))) for _ in range(5)]
    assert np.mean(drowned) < 0.8


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
        wanted += gradient * min(1.0, SLACK * 0.7 / np.linalg.norm(gradient))
    found = np.column_stack([s.numpy() for s in clipping.sums])
    clipping.close()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_an_encoder_learns_and_its_seed_repeats_it(tiny_encoder):
    model = encoder(tiny_encoder)
    assert accuracy(model) > 0.9 and model.ledger is None
    first, again = (encoder(tiny_encoder, recipe=ONE_EPOCH) for _ in range(2))
    assert torch.equal(weights(first), weights(again))


def test_a_budget_is_kept_nearly_spent_and_said_of_the_classifier(tiny_encoder):
    model = encoder(tiny_encoder, budget=BUDGET, recipe=ONE_EPOCH)
    (event,) = model.ledger.events
    assert (event.sample_rate, event.steps) == (32 / 160, 5)
    given = guarantee(model.ledger, CLASSIFIER)
    assert 7.9 < given.epsilon <= 8.0
    assert given.sentence.startswith("The classifier is (8.00, 1e-05)-differentially private")
    assert model.ledger.records == 160 and model.ledger.randomness_is_private
    again = encoder(tiny_encoder, budget=BUDGET, recipe=ONE_EPOCH)
    assert not torch.equal(weights(model), weights(again))  # noise is not seeded
    known = replace(model.ledger, randomness_is_private=False)
    assert guarantee(known, CLASSIFIER).epsilon is None


def test_a_policy_that_no_theorem_covers_is_guaranteed_nothing(tiny_encoder, monkeypatch):
    """A negative control: the ledger has the policy's events, whatever the budget was."""

    def published(*given):
        options, weights = PolicyConfig("adaptive", "published"), torch.linspace(0, 1, 160)
        return MechanismParams(*given, options, weights=weights)

    monkeypatch.setattr("evaluation.utility.classifiers.MechanismParams", published)
    model = encoder(tiny_encoder, budget=BUDGET, recipe=ONE_EPOCH)
    given = guarantee(model.ledger, CLASSIFIER)
    assert given.epsilon is None and given.sentence.startswith("No privacy guarantee")


@pytest.mark.parametrize("budget", [None, BUDGET], ids=["open", "with a budget"])
def test_a_gradient_is_used_only_after_it_is_recorded(tiny_encoder, monkeypatch, budget):
    recorded, used = [], []
    plain = Ledger.record
    monkeypatch.setattr(Ledger, "record", lambda *both: (recorded.append(both), plain(*both)))
    handle = register_optimizer_step_pre_hook(lambda *_: used.append(len(recorded)))
    try:
        encoder(tiny_encoder, budget=budget, recipe=ONE_EPOCH)
    finally:
        handle.remove()
    assert used == ([1, 2, 3, 4, 5] if budget else [0] * 5)
