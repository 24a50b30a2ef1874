"""What a table is good for: a classifier trained on it, tested on real rows it has not seen.

Tables are data frames, private or synthetic: all are treated alike. Rows without a text or a label
are left out. Scores are accuracy, macro-F1 and every label's own F1, with intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.findings import Score, proportion
from evaluation.release import labelled
from evaluation.utility.classifiers import Classifier
from twinset.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame

RESAMPLES = 1000  # of the bootstrap

Target = tuple[str, ...]  # the label columns a classifier predicts together


def targets(attributes: Sequence[str]) -> list[Target]:
    """Return what is predicted: each attribute, and all together where there are several.

    >>> targets(["sentiment", "product"])
    [('sentiment',), ('product',), ('sentiment', 'product')]
    """
    single: list[Target] = [(name,) for name in attributes]
    return single + ([tuple(attributes)] if len(single) > 1 else [])


def train_on(
    frame: DataFrame, text: str, target: Target, classifier: Classifier, seed: int = 0
) -> Any:
    """Fit a classifier of the table's texts. Rows of one label teach it that label, always.

    Args:
        frame: the table to learn from.
        text: name of the text column.
        target: the label columns to predict.
        classifier: makes an unfitted one for a seed.
        seed: of the classifier.

    Raises:
        InputError: no row has both a text and a label.
    """
    from sklearn.dummy import DummyClassifier

    texts, labels = labelled(frame, text, target)
    if not labels:
        raise InputError(f"no row has both a text and {', '.join(target)}; nothing to learn from")
    learner = classifier(seed) if len(set(labels)) > 1 else DummyClassifier()
    return learner.fit(texts, labels)


@dataclass(frozen=True)
class Predictions:
    """What classifiers said of the same rows.

    Args:
        labels: (n,) the true labels.
        predicted: (S, n) by each of S classifiers that differ in their seed alone.
    """

    labels: Sequence[str]
    predicted: Sequence[Sequence[str]]

    @property
    def classes(self) -> list[str]:
        """The true labels that occur, and those predicted."""
        return sorted({*self.labels, *(label for row in self.predicted for label in row)})

    @cached_property
    def confusions(self) -> np.ndarray:
        """(1 + R, k, k) counts of (true, predicted): of all rows, and of R resamples.

        A resample draws rows *and* a classifier, so that its spread speaks of another held-out
        table and another seed. It does not speak of another twin.
        """
        from scipy.sparse import csr_array

        names = self.classes
        place, n, k = {c: i for i, c in enumerate(names)}, len(self.labels), len(names)
        true = np.array([place[label] for label in self.labels])
        said = np.array([[place[label] for label in row] for row in self.predicted])  # (S, n)
        rng = np.random.default_rng(0)
        drawn_rows = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)  # (R, n)
        drawn_seeds = rng.integers(len(said), size=RESAMPLES)
        counts = np.zeros((1 + RESAMPLES, k * k))
        for number, row in enumerate(said):
            # One cell a row: a product with (R, n) draws counts all resamples at once.
            cells = csr_array((np.ones(n), (np.arange(n), true * k + row)), shape=(n, k * k))
            counts[0] += cells.sum(0)
            mine = np.flatnonzero(drawn_seeds == number)
            counts[1 + mine] = (cells.T @ drawn_rows[mine].T).T
        return counts.reshape(-1, k, k)


def predict_labels(
    models: Sequence[Any], frame: DataFrame, text: str, target: Target
) -> Predictions:
    """Return what classifiers say of a table's rows.

    Raises:
        InputError: no row has both a text and a label.
    """
    texts, labels = labelled(frame, text, target)
    if not texts:
        raise InputError(f"no row has both a text and {', '.join(target)}; nothing to test on")
    return Predictions(labels, [[str(p) for p in model.predict(texts)] for model in models])


def classification_scores(predictions: Predictions) -> list[Score]:
    """Return accuracy and macro-F1, in 0 to 1, higher is better, with 95 % intervals.

    Macro-F1 is the mean of the F1 of all labels that the true rows have. An interval holds the
    bootstrap's and Wilson's. Where all rows are right, resamples know no error, and the
    bootstrap's alone would have no width.

    >>> found = Predictions(["a", "a", "b", "b"], [["a", "a", "b", "a"]])
    >>> [round(score.value, 3) for score in classification_scores(found)]
    [0.75, 0.733]
    """
    counts, n = predictions.confusions, len(predictions.labels)
    hits = counts.trace(axis1=1, axis2=2) / counts.sum((1, 2))
    occurring = counts[0].sum(1) > 0
    macro = _f1_by_label(counts)[:, occurring].mean(1)
    return [_resampled_score("accuracy", hits, n), _resampled_score("macro-F1", macro, n)]


def scores_by_label(predictions: Predictions) -> dict[str, Score]:
    """Return the F1 of every true label. Its n is the label's number of rows."""
    counts = predictions.confusions
    f1, rows = _f1_by_label(counts), counts[0].sum(1) / len(predictions.predicted)
    return {
        label: _resampled_score("F1", f1[:, i], round(float(rows[i])))
        for i, label in enumerate(predictions.classes)
        if rows[i]
    }


def _f1_by_label(counts: np.ndarray) -> np.ndarray:
    """(R, k, k) → (R, k), and 0 where a label is neither true nor predicted."""
    hits = np.diagonal(counts, axis1=1, axis2=2)
    either = counts.sum(1) + counts.sum(2)
    return np.divide(2 * hits, either, out=np.zeros_like(hits), where=either > 0)


def _resampled_score(name: str, values: np.ndarray, n: int) -> Score:
    """Return the first value, with an interval from the others and Wilson's."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    middle = float(values[0])
    wilson = proportion(name, round(middle * n), n)
    low, high = min(middle, float(low), wilson.low), max(middle, float(high), wilson.high)
    return Score(name, middle, low, high, "maximise", 0.0, 1.0, n)


def score_agreement(name: str, model: Any, frame: DataFrame, text: str, target: Target) -> Score:
    """Return the share of a table's rows on whose label a classifier agrees.

    Of held-out rows this is the classifier's accuracy. Of a twin's rows and a classifier of real
    ones it is label fidelity. That classifier errs too: a perfect twin reaches its accuracy on real
    rows, not 1.
    """
    found = predict_labels([model], frame, text, target)
    hits = sum(map(str.__eq__, found.predicted[0], found.labels))
    return proportion(name, hits, len(found.labels))
