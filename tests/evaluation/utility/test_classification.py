import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from evaluation.utility.classification import Predictions, classification_scores, scores_by_label

LABELS = ["a", "b", "c"]


def random_predictions(seed, n=300, seeds=1, right=0.7):
    rng = np.random.default_rng(seed)
    true = rng.choice(LABELS, n, p=[0.6, 0.3, 0.1])
    said = [np.where(rng.random(n) < right, true, rng.choice(LABELS, n)) for _ in range(seeds)]
    return Predictions(true.tolist(), [row.tolist() for row in said])


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_scikit_learn(seed):
    found = random_predictions(seed)
    said = found.predicted[0]
    accuracy, macro = classification_scores(found)
    assert accuracy.value == pytest.approx(accuracy_score(found.labels, said))
    assert macro.value == pytest.approx(f1_score(found.labels, said, average="macro"))
    by_label = f1_score(found.labels, said, average=None, labels=LABELS)
    assert [s.value for s in scores_by_label(found).values()] == pytest.approx(list(by_label))
    assert found.confusions[0] == pytest.approx(confusion_matrix(found.labels, said))


def test_resamples_are_whole_tables():
    counts = random_predictions(0, seeds=3).confusions
    assert counts.shape == (1001, 3, 3)
    assert (counts[1:].sum((1, 2)) == 300).all()
    assert counts[0].sum() == 900


def test_a_label_that_is_only_predicted_has_no_score_of_its_own():
    found = Predictions(["a", "a"], [["a", "b"]])
    assert scores_by_label(found).keys() == {"a"}
    assert classification_scores(found)[1].value == pytest.approx(2 / 3)


@pytest.mark.parametrize(("n", "right"), [(200, 0.7), (30, 0.925)])
def test_intervals_cover_the_truth_19_times_in_20_or_more(n, right):
    truth = right + (1 - right) / 3
    found = (random_predictions(seed, n=n, right=right) for seed in range(300))
    scores = [classification_scores(predictions)[0] for predictions in found]
    assert np.mean([s.low <= truth <= s.high for s in scores]) >= 0.91


def test_six_rows_that_are_right_prove_little():
    labels = ["a", "b"] * 3
    assert classification_scores(Predictions(labels, [labels]))[0].low < 0.65


def test_seeds_that_disagree_widen_the_interval():
    """A negative control: what depends on luck in training is not shown as certain."""
    labels = ["a", "b"] * 200
    right, wrong = labels, ["b", "a"] * 200
    steady = classification_scores(Predictions(labels, [right, right]))[0]
    lucky = classification_scores(Predictions(labels, [right, wrong]))[0]
    assert steady.low > 0.99
    assert lucky.value == 0.5 and lucky.high - lucky.low == 1
