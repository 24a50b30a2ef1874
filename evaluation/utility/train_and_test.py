"""What a table is good for: a classifier trained on it, tested on real rows it has not seen.

Tables are data frames, private or synthetic: all are treated alike. Knows nothing of how a twin is
made. Rows without a text or a label are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evaluation.findings import Score, proportion
from evaluation.private_table import labelled
from evaluation.utility.classification import Predictions
from evaluation.utility.classifiers import Classifier
from twinset.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame

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
    """Fit a classifier of the table's texts; rows of one label teach it that label, always.

    Raises:
        InputError: no row has both a text and a label.
    """
    from sklearn.dummy import DummyClassifier

    texts, labels = labelled(frame, text, target)
    if not labels:
        raise InputError(f"no row has both a text and {', '.join(target)}; nothing to learn from")
    learner = classifier(seed) if len(set(labels)) > 1 else DummyClassifier()
    return learner.fit(texts, labels)


def accuracy(model: Any, frame: DataFrame, text: str, target: Target) -> Score:
    """Return the share of the table's rows whose label the classifier finds."""
    return _agreement("accuracy", model, frame, text, target)


def label_fidelity(twin: DataFrame, text: str, target: Target, real_classifier: Any) -> Score:
    """Return the share of a twin's rows on whose label a classifier of real rows agrees.

    That classifier errs too: a perfect twin reaches its accuracy on real rows, not 1.
    """
    return _agreement("label fidelity", real_classifier, twin, text, target)


def _agreement(name: str, model: Any, frame: DataFrame, text: str, target: Target) -> Score:
    found = predictions([model], frame, text, target)
    hits = sum(map(str.__eq__, found.predicted[0], found.labels))
    return proportion(name, hits, len(found.labels))


def predictions(models: Sequence[Any], frame: DataFrame, text: str, target: Target) -> Predictions:
    """Return what classifiers say of a table's rows.

    Raises:
        InputError: no row has both a text and a label.
    """
    texts, labels = labelled(frame, text, target)
    if not texts:
        raise InputError(f"no row has both a text and {', '.join(target)}; nothing to test on")
    return Predictions(labels, [[str(p) for p in model.predict(texts)] for model in models])


def commonest_label(train: DataFrame, heldout: DataFrame, text: str, target: Target) -> Score:
    """Return the accuracy of always answering the label that is commonest in training."""
    from sklearn.dummy import DummyClassifier

    always = train_on(train, text, target, lambda seed: DummyClassifier())
    return accuracy(always, heldout, text, target)
