"""What a table is good for: a classifier trained on it, tested on real rows it has not seen.

Tables are data frames, private or synthetic: all are treated alike. Knows nothing of how a twin is
made. Rows without a text or a label are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation.embeddings import SentenceEncoder
from evaluation.scores import Score, proportion
from twinset.assets import Say, silent
from twinset.columns import label_cells, text_cells
from twinset.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame

Target = tuple[str, ...]  # the label columns a classifier predicts together
Classifier = Callable[[], Any]  # makes an unfitted scikit-learn pipeline from texts to labels

CLASSIFIERS = ("tfidf", "minilm")
# C of the logistic regressions. On 400 to 1,500 real training reviews of the demo, 1 and 10 do as
# well as each other behind embeddings; 10 takes a twin's wrong labels to heart.
WORDS_INVERSE_PENALTY, EMBEDDINGS_INVERSE_PENALTY = 10.0, 1.0


def targets(attributes: Sequence[str]) -> list[Target]:
    """Return what is predicted: each attribute, and all together where there are several.

    >>> targets(["sentiment", "product"])
    [('sentiment',), ('product',), ('sentiment', 'product')]
    """
    single: list[Target] = [(name,) for name in attributes]
    return single + ([tuple(attributes)] if len(single) > 1 else [])


def make_classifiers(
    names: Sequence[str] = CLASSIFIERS, say: Say = silent
) -> dict[str, Classifier]:
    """Return classifiers by name; all `minilm` ones made here share the embeddings of texts.

    Raises:
        InputError: a name that is not in `CLASSIFIERS`.
    """
    makers: dict[str, Classifier] = {
        "tfidf": tfidf,
        "minilm": partial(minilm, SentenceEncoder(say)),
    }
    if unknown := [name for name in names if name not in makers]:
        raise InputError(f"there is no classifier {unknown[0]!r}; there are {', '.join(makers)}")
    return {name: makers[name] for name in names}


def tfidf() -> Any:
    """Words and pairs of words, weighted by rarity, and a logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    return make_pipeline(words, _regression(WORDS_INVERSE_PENALTY))


def minilm(encoder: SentenceEncoder) -> Any:
    """Sentence embeddings and a logistic regression."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    embeddings = FunctionTransformer(encoder.encode)
    return make_pipeline(embeddings, _regression(EMBEDDINGS_INVERSE_PENALTY))


def _regression(inverse_penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=inverse_penalty, max_iter=1000)


def train_on(frame: DataFrame, text: str, target: Target, classifier: Classifier) -> Any:
    """Fit a classifier of the table's texts.

    Raises:
        InputError: the table has fewer than two labels.
    """
    texts, labels = labelled(frame, text, target)
    if len(set(labels)) < 2:
        raise InputError(
            f"no classifier of {', '.join(target)} can be trained on rows of one label only; "
            "take more rows"
        )
    return classifier().fit(texts, labels)


def accuracy(model: Any, frame: DataFrame, text: str, target: Target) -> Score:
    """Return the share of the table's rows whose label the classifier finds."""
    return _agreement("accuracy", model, frame, text, target)


def label_fidelity(twin: DataFrame, text: str, target: Target, real_classifier: Any) -> Score:
    """Return the share of a twin's rows on whose label a classifier of real rows agrees.

    That classifier errs too: a perfect twin reaches its accuracy on real rows, not 1.
    """
    return _agreement("label fidelity", real_classifier, twin, text, target)


def _agreement(name: str, model: Any, frame: DataFrame, text: str, target: Target) -> Score:
    texts, labels = labelled(frame, text, target)
    if not texts:
        raise InputError(f"no row has both a text and {', '.join(target)}; nothing to test on")
    hits = sum(map(str.__eq__, model.predict(texts).tolist(), labels))
    return proportion(name, hits, len(labels))


def commonest_label(train: DataFrame, heldout: DataFrame, text: str, target: Target) -> Score:
    """Return the accuracy of always answering the label that is commonest in training."""
    from sklearn.dummy import DummyClassifier

    return accuracy(train_on(train, text, target, DummyClassifier), heldout, text, target)


def labelled(frame: DataFrame, text: str, target: Target) -> tuple[list[str], list[str]]:
    """Return texts and labels of the rows that have both.

    Labels are written as strings, so that the same values agree whatever files they came from.
    """
    rows = list(_labelled_rows(frame, text, target))
    return [row for row, _ in rows], [label for _, label in rows]


def _labelled_rows(frame: DataFrame, text: str, target: Target) -> Iterator[tuple[str, str]]:
    columns = (label_cells(frame[name], f"column {name!r}") for name in target)
    texts = text_cells(frame[text], f"column {text!r}")
    for row, *values in zip(texts, *columns, strict=True):
        if row is not None and None not in values:
            yield row, " | ".join(map(str, values))
