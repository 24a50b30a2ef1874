"""Classifiers by name, from texts to labels: unfitted, in scikit-learn's manner.

`minilm` and `encoder` are the pinned MiniLM: once as it is, with a logistic regression behind it,
once fine-tuned. Knows no table and no score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from evaluation.utility.dp_baseline import PrivateRegression
from evaluation.utility.dp_fitting import Budget, Count, no_op
from evaluation.utility.embeddings import SentenceEncoder
from evaluation.utility.encoder_classifier import EncoderClassifier
from twinset.errors import InputError
from twinset.models.assets import Say, silent

# Makes, for a seed, an unfitted one with fit(texts, labels) and predict(texts).
Classifier = Callable[[int], Any]

CLASSIFIERS = ("tfidf", "svm", "minilm")
SLOW_CLASSIFIERS = ("encoder",)  # minutes for each thousand rows without a GPU
# C of the logistic regressions. On 400 to 1,500 real training reviews of the demo, 1 and 10 do as
# well as each other behind embeddings; 10 takes a twin's wrong labels to heart.
WORDS_INVERSE_PENALTY, EMBEDDINGS_INVERSE_PENALTY = 10.0, 1.0


def make_classifiers(
    names: Sequence[str] = CLASSIFIERS,
    say: Say = silent,
    encoder: str | None = None,
    embeddings: SentenceEncoder | None = None,
) -> dict[str, Classifier]:
    """Return, by name, what makes an unfitted classifier for a seed.

    Args:
        names: in `CLASSIFIERS` or `SLOW_CLASSIFIERS`.
        say: called before an asset is downloaded, the first time ever.
        encoder: what `encoder` fine-tunes: folder or hub name; None is MiniLM.
        embeddings: what all `minilm` ones made here share; its device is that of `encoder` too.

    Raises:
        InputError: a name that is in neither.
    """
    embeddings = embeddings or SentenceEncoder(say)
    makers: dict[str, Classifier] = {
        "tfidf": tfidf,
        "svm": svm,
        "minilm": partial(minilm, embeddings),
        "encoder": lambda seed: EncoderClassifier(
            encoder, seed=seed, say=say, device=embeddings.device
        ),
    }
    if unknown := [name for name in names if name not in makers]:
        raise InputError(f"there is no classifier {unknown[0]!r}; there are {', '.join(makers)}")
    return {name: makers[name] for name in names}


def make_dp_classifiers(
    names: Sequence[str],
    budget: Budget,
    say: Say = silent,
    encoder: str | None = None,
    embeddings: SentenceEncoder | None = None,
    count: Count = no_op,
) -> dict[str, Classifier]:
    """Return those of the classifiers that can be trained with differential privacy, made so.

    Args:
        names: of classifiers; of words alone there is none, for a vocabulary tells private words.
        budget: ε and δ of each fit, for adding or removing one row.
        say: as in `make_classifiers`.
        encoder: as in `make_classifiers`.
        embeddings: as in `make_classifiers`.
        count: is notified of each step.
    """
    vectors = embeddings or SentenceEncoder(say)
    dp_classifiers: dict[str, Classifier] = {
        "minilm": lambda seed: PrivateRegression(vectors, budget, count=count),
        "encoder": lambda seed: EncoderClassifier(
            encoder, budget=budget, seed=seed, say=say, count=count, device=vectors.device
        ),
    }
    return {name: dp_classifiers[name] for name in names if name in dp_classifiers}


def tfidf(seed: int = 0) -> Any:
    """Words and pairs of words, weighted by rarity, and a logistic regression."""
    from sklearn.pipeline import make_pipeline

    return make_pipeline(_words(), _regression(WORDS_INVERSE_PENALTY))


def svm(seed: int = 0) -> Any:
    """The same weights, and a linear support vector machine."""
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    return make_pipeline(_words(), LinearSVC(random_state=seed))


def minilm(encoder: SentenceEncoder, seed: int = 0) -> Any:
    """Sentence embeddings and a logistic regression."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    embeddings = FunctionTransformer(encoder.encode)
    return make_pipeline(embeddings, _regression(EMBEDDINGS_INVERSE_PENALTY))


def _words() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")


def _regression(inverse_penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=inverse_penalty, max_iter=1000)
