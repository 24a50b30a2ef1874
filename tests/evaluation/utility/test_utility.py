import random

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier

from evaluation.findings import proportion
from evaluation.private_table import labelled
from evaluation.utility.classification import score_agreement, targets, train_on
from evaluation.utility.classifiers import SentenceEncoder, make_classifiers
from twinset.errors import InputError

tfidf = make_classifiers(["tfidf"])["tfidf"]
WORDS = {
    "good": "great lovely fine superb moving bright".split(),
    "bad": "dull poor weak awful boring grim".split(),
}
THINGS = {"film": "plot actor scene".split(), "pan": "handle lid oven".split()}
FILLER = "the a this that very rather somewhat quite it was".split()


def made_up(rows: int, seed: int) -> pd.DataFrame:
    """Rows whose words give away both labels."""
    rng = random.Random(seed)
    table = []
    for _ in range(rows):
        mood, thing = rng.choice(list(WORDS)), rng.choice(list(THINGS))
        words = rng.choices(FILLER, k=6) + rng.choices(WORDS[mood], k=2)
        words += rng.choices(THINGS[thing], k=2)
        rng.shuffle(words)
        table.append((thing, mood, " ".join(words)))
    return pd.DataFrame(table, columns=["product", "mood", "text"])


def shuffled_labels(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    order = np.random.default_rng(seed).permutation(len(frame))
    return frame.assign(mood=frame["mood"].to_numpy()[order])


@pytest.mark.parametrize("p", [0.05, 0.5, 0.93])
def test_intervals_cover_the_truth_about_19_times_in_20(p):
    draws = np.random.default_rng(1).binomial(200, p, size=2000)
    covered = [(s := proportion("", int(hits), 200)).low <= p <= s.high for hits in draws]
    assert 0.92 <= np.mean(covered) <= 0.98


@pytest.mark.parametrize(("hits", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_no_proportion(hits, n):
    with pytest.raises(ValueError, match="no proportion"):
        proportion("accuracy", hits, n)


@pytest.mark.parametrize("target", targets(["mood", "product"]))
def test_separable_rows_are_learned(target):
    train, heldout = made_up(300, seed=0), made_up(200, seed=1)
    model = train_on(train, "text", target, tfidf)
    assert score_agreement("accuracy", model, heldout, "text", target).value > 0.95


def test_shuffled_labels_teach_nothing():
    train, heldout = shuffled_labels(made_up(400, seed=0)), made_up(400, seed=1)
    score = score_agreement(
        "accuracy", train_on(train, "text", ("mood",), tfidf), heldout, "text", ("mood",)
    )
    assert 0.35 < score.value < 0.65


def test_commonest_label_is_the_one_of_training():
    train = pd.DataFrame({"mood": ["bad", "good", "good"], "text": ["a", "b", "c"]})
    heldout = pd.DataFrame({"mood": ["bad", "bad", "bad", "good"], "text": ["d", "e", "f", "g"]})
    always = train_on(train, "text", ("mood",), lambda seed: DummyClassifier())
    assert score_agreement("accuracy", always, heldout, "text", ("mood",)).value == 0.25


@pytest.mark.parametrize(
    ("change", "low", "high"),
    [
        (lambda twin: twin, 0.95, 1.0),
        (lambda twin: twin.assign(mood=twin["mood"].map({"good": "bad", "bad": "good"})), 0, 0.05),
        (shuffled_labels, 0.35, 0.65),
    ],
    ids=["faithful", "swapped", "shuffled"],
)
def test_label_fidelity(change, low, high):
    real_classifier = train_on(made_up(300, seed=0), "text", ("mood",), tfidf)
    score = score_agreement(
        "label fidelity", real_classifier, change(made_up(300, seed=2)), "text", ("mood",)
    )
    assert score.name == "label fidelity"
    assert low <= score.value <= high


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        ([1, 5], ["1", "5"]),
        ([1.0, 5.0], ["1", "5"]),  # the same labels from a table that had a gap
        ([True, False], ["True", "False"]),
        (pd.Categorical(["x", "y"]), ["x", "y"]),
    ],
)
def test_labels_agree_between_files(cells, labels):
    frame = pd.DataFrame({"stars": cells, "text": ["a film", "a pan"]})
    assert labelled(frame, "text", ("stars",)) == (["a film", "a pan"], labels)


def test_rows_with_gaps_are_left_out():
    frame = pd.DataFrame({"mood": ["good", None, "bad"], "text": ["a", "b", " "]})
    assert labelled(frame, "text", ("mood",)) == (["a"], ["good"])


def test_rows_of_one_label_teach_that_label():
    frame = pd.DataFrame({"mood": ["good", "good"], "text": ["a film", "a pan"]})
    assert (
        train_on(frame, "text", ("mood",), tfidf).predict(["a", "b", "c"]).tolist() == ["good"] * 3
    )


def test_nothing_to_learn_from_is_refused():
    frame = pd.DataFrame({"mood": ["good", None], "text": [" ", "SECRET two"]})
    with pytest.raises(InputError, match="nothing to learn from") as error:
        train_on(frame, "text", ("mood",), tfidf)
    assert "SECRET" not in str(error.value)


def test_nothing_to_test_on_is_refused():
    model = DummyClassifier().fit(["a", "b"], ["x", "y"])
    frame = pd.DataFrame({"mood": [None, "good"], "text": ["a", " "]})
    with pytest.raises(InputError, match="nothing to test on"):
        score_agreement("accuracy", model, frame, "text", ("mood",))


def test_unknown_classifier_is_refused():
    with pytest.raises(InputError, match="no classifier 'bert'; there are tfidf, svm, minilm"):
        make_classifiers(["bert"])


@pytest.mark.slow
def test_minilm():
    """Embeddings are unit vectors, whatever the batch, and tell moods apart by unseen words."""
    encoder = SentenceEncoder()
    texts = ["A great film, moving and fine.", "Dull.", "A great film, moving and fine."]
    vectors = encoder.encode(texts)
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0)
    assert vectors[1] == pytest.approx(SentenceEncoder().encode(["Dull."])[0], abs=1e-5)
    classifier = make_classifiers(["minilm"])["minilm"]
    model = train_on(made_up(60, seed=0), "text", ("mood",), classifier)
    unseen = pd.DataFrame(
        {
            "mood": ["good", "bad"] * 2,
            "text": ["a wonderful delight", "a tedious mess", "beautiful", "terrible and stupid"],
        }
    )
    assert score_agreement("accuracy", model, unseen, "text", ("mood",)).value >= 0.75
