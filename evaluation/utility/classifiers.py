"""Classifiers by name, from texts to labels, and the sentence embeddings that some learn from.

All are in scikit-learn's manner: `fit(texts, labels)`, then `predict(texts)`. `minilm` and
`encoder` are the pinned MiniLM: once as it is, with a logistic regression behind it, and once
fine-tuned. Knows no table and no score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from twinset.errors import InputError
from twinset.models.assets import Say, asset_path, no_fetched_code, quiet, silent
from twinset.models.base_model import ModelFiles
from twinset.models.device import AUTO, device_of
from twinset.progress import Progress

from .dp_classifiers import (
    MAX_TOKENS,
    MINILM,
    Budget,
    Count,
    Encoder,
    EncoderClassifier,
    PrivateRegression,
)

# Makes, for a seed, an unfitted one with fit(texts, labels) and predict(texts).
Classifier = Callable[[int], Any]

CLASSIFIERS = ("tfidf", "svm", "minilm")
SLOW_CLASSIFIERS = ("encoder",)  # minutes for each thousand rows without a GPU
# C of the logistic regressions. On 400 to 1,500 real training reviews of the demo, 1 and 10 do as
# well as each other behind embeddings. 10 takes a twin's wrong labels to heart.
WORDS_INVERSE_PENALTY, EMBEDDINGS_INVERSE_PENALTY = 10.0, 1.0
BATCH_SIZE = 64  # texts embedded at once
REPORT_EVERY = 256  # texts between two reports


class SentenceEncoder:
    """Embeds texts by the pinned encoder all-MiniLM-L6-v2, each of them once.

    Vectors are kept in memory as long as this object. Nothing is written to any disk.

    Args:
        say: called before the encoder is downloaded, the first time ever.
        device: that embeds, as `device_of` takes it.
    """

    def __init__(self, say: Say = silent, device: str = AUTO) -> None:
        self._say, self.device = say, device
        self._model: Any = None
        self._tokenizer: Any = None
        self._known: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors (N, 384): the mean over the tokens of the last layer, normalised."""
        import torch
        from torch.nn.functional import normalize

        new = sorted(set(texts) - self._known.keys(), key=len)  # by length: little padding
        if new and self._model is None:
            self._load()
        for start in range(0, len(new), BATCH_SIZE):
            batch = new[start : start + BATCH_SIZE]
            inputs = self._tokenizer(
                batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
            ).to(self._model.device)
            with torch.inference_mode():
                states = self._model(**inputs).last_hidden_state  # (B, T, d)
                mask = inputs["attention_mask"].unsqueeze(-1)  # (B, T, 1)
                means = (states * mask).sum(1) / mask.sum(1)  # (B, d)
                vectors = normalize(means, dim=1).cpu().numpy()
            self._known.update(zip(batch, vectors, strict=True))
        return np.stack([self._known[text] for text in texts])

    @no_fetched_code()
    def _load(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        options = {"trust_remote_code": False, "local_files_only": True}
        files = ModelFiles.of(asset_path(MINILM, self._say), MINILM)
        with quiet(), files.alone() as folder:
            model: Any = AutoModel.from_pretrained(folder, use_safetensors=True, **options)
            self._tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        self._model = model.eval().to(device_of(self.device))


def encode_tables(
    encoder: Encoder, tables: Mapping[str, Sequence[str]], progress: Progress
) -> dict[str, np.ndarray]:
    """Return the embeddings (N, d) of each table's rows. Texts of one length are read together."""
    everything = sorted({text for rows in tables.values() for text in rows}, key=len)
    vectors: list[np.ndarray] = []
    for start in range(0, len(everything), REPORT_EVERY):
        vectors.extend(encoder.encode(everything[start : start + REPORT_EVERY]))
        progress.count("texts embedded", len(vectors), len(everything))
    known = dict(zip(everything, vectors, strict=True))
    return {name: np.stack([known[text] for text in rows]) for name, rows in tables.items()}


def make_classifiers(
    names: Sequence[str] = CLASSIFIERS,
    say: Say = silent,
    encoder: str | None = None,
    embeddings: SentenceEncoder | None = None,
) -> dict[str, Classifier]:
    """Return, by name, what makes an unfitted classifier for a seed.

    - `tfidf`: words and pairs of words, weighted by rarity, and a logistic regression.
    - `svm`: the same weights, and a linear support vector machine.
    - `minilm`: sentence embeddings and a logistic regression.
    - `encoder`: a text encoder, fine-tuned.

    Args:
        names: in `CLASSIFIERS` or `SLOW_CLASSIFIERS`.
        say: called before an asset is downloaded, the first time ever.
        encoder: what `encoder` fine-tunes: folder or hub name. None is MiniLM.
        embeddings: what all `minilm` ones made here share. Its device is that of `encoder` too.

    Raises:
        InputError: a name that is in neither.

    >>> model = make_classifiers(["tfidf"])["tfidf"](0).fit(["a fine film", "a dull pan"], [1, 0])
    >>> model.predict(["fine"]).tolist()
    [1]
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.svm import LinearSVC

    vectors = embeddings or SentenceEncoder(say)
    words = {"ngram_range": (1, 2), "sublinear_tf": True, "token_pattern": r"(?u)\b\w+\b"}
    makers: dict[str, Classifier] = {
        "tfidf": lambda seed: make_pipeline(
            TfidfVectorizer(**words), LogisticRegression(C=WORDS_INVERSE_PENALTY, max_iter=1000)
        ),
        "svm": lambda seed: make_pipeline(TfidfVectorizer(**words), LinearSVC(random_state=seed)),
        "minilm": lambda seed: make_pipeline(
            FunctionTransformer(vectors.encode),
            LogisticRegression(C=EMBEDDINGS_INVERSE_PENALTY, max_iter=1000),
        ),
        "encoder": lambda seed: EncoderClassifier(
            encoder, seed=seed, say=say, device=vectors.device
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
    count: Count = lambda done, total: None,
) -> dict[str, Classifier]:
    """Return those of the classifiers that can be trained with differential privacy, made so.

    There is none that learns from words alone, since a vocabulary gives private words away. Each
    fit spends the whole budget. `count` is notified of each step. See `make_classifiers`.
    """
    vectors = embeddings or SentenceEncoder(say)
    dp_classifiers: dict[str, Classifier] = {
        "minilm": lambda seed: PrivateRegression(vectors, budget, count=count),
        "encoder": lambda seed: EncoderClassifier(
            encoder, budget=budget, seed=seed, say=say, count=count, device=vectors.device
        ),
    }
    return {name: dp_classifiers[name] for name in names if name in dp_classifiers}
