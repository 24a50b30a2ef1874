"""Classifiers by name, from texts to labels, with privacy or without.

All follow scikit-learn: `fit(texts, labels)`, then `predict(texts)`. `minilm` and `encoder` are the
pinned MiniLM: once unchanged, followed by a logistic regression, and once fine-tuned. This module
knows no table and no score.

A user who needs one classifier, and no texts, may spend a budget on it instead of a twin. Private
classifiers are fitted like language models: Poisson batch → exact clipped sum →
`PrivateOptimizer`. Without a budget the text encoder learns without privacy, by the same loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from twinset.errors import InputError
from twinset.models.assets import (
    ASSETS,
    Say,
    asset_path,
    hub_folder,
    no_fetched_code,
    quiet,
    silent,
)
from twinset.models.base_model import ModelFiles
from twinset.models.device import AUTO, device_of
from twinset.policies import MechanismParams
from twinset.privacy.accounting.accountant import calibrate_noise_multiplier
from twinset.privacy.clipping import ClassifierClipping, LabelledRows
from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.privacy.statement.ledger import Ledger
from twinset.progress import Progress
from twinset.table.tokenization import batches_of_one_length, padded
from twinset.training.loop import PrivateOptimizer

# Makes, for a seed, an unfitted one with fit(texts, labels) and predict(texts).
Classifier = Callable[[int], Any]
Encode = Callable[[Sequence[str]], np.ndarray]  # texts → unit vectors (N, d)
Count = Callable[[int, int], object]  # is called with the number of steps done, and of all

CLASSIFIERS = ("tfidf", "svm", "minilm")
SLOW_CLASSIFIERS = ("encoder",)  # minutes for each thousand rows without a GPU
MINILM = "minilm"  # the pinned encoder all-MiniLM-L6-v2
MAX_TOKENS = 128  # that a text is cut at
TOKENS_AT_ONCE = 4096  # of one physical batch
# C of the logistic regressions. On 400 to 1,500 real training reviews of the demo, 1 and 10 do as
# well as each other behind embeddings. 10 takes a twin's wrong labels to heart.
WORDS_INVERSE_PENALTY, EMBEDDINGS_INVERSE_PENALTY = 10.0, 1.0
BATCH_SIZE = 64  # texts embedded at once
REPORT_EVERY = 256  # texts between two reports
PUBLIC_INPUTS = (
    "the number of rows",
    "the set of labels",
    "the encoder and its training data",
    "hyper-parameters, chosen without the private rows",
)


@dataclass(frozen=True)
class Recipe:
    """How long and how fast a classifier learns."""

    batch_size: float  # expected rows a step. Infinite means all of them.
    epochs: float  # visits of each row, on average
    learning_rate: float  # Adam's, falling to nothing
    max_grad_norm: float = 1.0  # C, if there is a budget


@dataclass(frozen=True)
class Budget:
    """ε and δ, for adding or removing one row. The labels and the number of rows are public."""

    epsilon: float
    delta: float


# About the best of 14 recipes, with four runs each at ε = 8. Accuracies on 528 rows of the training
# part of blitzer_dvd_kitchen for either label and for both: 0.77, 0.99, 0.75. Without privacy they
# are 0.78, 0.99, 0.75.
PRIVATE_REGRESSION = Recipe(math.inf, epochs=30, learning_rate=0.5, max_grad_norm=0.3)
OPEN_ENCODER = Recipe(batch_size=32, epochs=3, learning_rate=1e-4)
PRIVATE_ENCODER = Recipe(batch_size=256, epochs=10, learning_rate=1e-3)


@dataclass(eq=False)
class SentenceEncoder:
    """Embeds texts by the pinned encoder all-MiniLM-L6-v2, each of them once.

    Vectors stay in memory as long as this object. Nothing is written to any disk.
    """

    say: Say = silent  # called before the encoder is downloaded, the first time ever
    device: str = AUTO
    _model: Any = None
    _tokenizer: Any = None
    _known: dict[str, np.ndarray] = field(default_factory=dict)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors (N, 384): the mean over the tokens of the last layer, normalised."""
        new = sorted(set(texts) - self._known.keys(), key=len)  # by length: little padding
        if new and self._model is None:
            options = {"trust_remote_code": False, "local_files_only": True}
            files = ModelFiles.of(asset_path(MINILM, self.say), MINILM)
            with no_fetched_code(), quiet(), files.alone() as folder:
                from transformers import AutoModel, AutoTokenizer

                model: Any = AutoModel.from_pretrained(folder, use_safetensors=True, **options)
                self._tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            self._model = model.eval().to(device_of(self.device))
        for start in range(0, len(new), BATCH_SIZE):
            batch = new[start : start + BATCH_SIZE]
            inputs = self._tokenizer(
                batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
            ).to(self._model.device)
            with torch.inference_mode():
                states = self._model(**inputs).last_hidden_state  # (B, T, d)
                mask = inputs["attention_mask"].unsqueeze(-1)  # (B, T, 1)
                means = (states * mask).sum(1) / mask.sum(1)  # (B, d)
                vectors = nn.functional.normalize(means, dim=1).cpu().numpy()
            self._known.update(zip(batch, vectors, strict=True))
        return np.stack([self._known[text] for text in texts])


def encode_tables(
    encode: Encode, tables: Mapping[str, Sequence[str]], progress: Progress
) -> dict[str, np.ndarray]:
    """Return the embeddings (N, d) of each table's rows. Texts of one length are read together."""
    everything = sorted({text for rows in tables.values() for text in rows}, key=len)
    vectors: list[np.ndarray] = []
    for start in range(0, len(everything), REPORT_EVERY):
        vectors.extend(encode(everything[start : start + REPORT_EVERY]))
        progress.count("texts embedded", len(vectors), len(everything))
    known = dict(zip(everything, vectors, strict=True))
    return {name: np.stack([known[text] for text in rows]) for name, rows in tables.items()}


def make_classifiers(
    names: Sequence[str] = CLASSIFIERS,
    say: Say = silent,
    encoder: str | None = None,
    embeddings: SentenceEncoder | None = None,
    budget: Budget | None = None,
    count: Count = lambda done, total: None,
) -> dict[str, Classifier]:
    """Return, by name, functions that make an unfitted classifier for a seed.

    - `tfidf`: words and pairs of words, weighted by rarity, and a logistic regression.
    - `svm`: the same weights, and a linear support vector machine.
    - `minilm`: sentence embeddings and a logistic regression.
    - `encoder`: a text encoder, fine-tuned.

    With a budget only the last two are returned, and each fit spends all of it. None of these
    learns from words alone, because a vocabulary reveals private words. `encoder` is the folder or
    hub name of the fine-tuned model, by default MiniLM. All `minilm` ones made here share the
    embeddings, whose device is that of `encoder` too.

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
            encoder, budget=budget, seed=seed, say=say, count=count, device=vectors.device
        ),
    }
    if unknown := [name for name in names if name not in makers]:
        raise InputError(f"there is no classifier {unknown[0]!r}. There are {', '.join(makers)}.")
    if budget is not None:
        private = {"minilm": lambda seed: PrivateRegression(vectors.encode, budget, count=count)}
        makers = private | {"encoder": makers["encoder"]}
    return {name: makers[name] for name in names if name in makers}


def fit_privately(
    model: nn.Module,
    rows: int,
    labelled: Callable[[Sequence[int]], Iterable[LabelledRows]],
    recipe: Recipe,
    budget: Budget | None,
    *,
    seed: int = 0,
    count: Count = lambda done, total: None,
) -> Ledger | None:
    """Train a classifier in place and return what that spent. None without a budget.

    For its guarantee see `twinset.privacy.statement.theorems`, CLASSIFIER.

    `labelled` returns the rows with given numbers, cut into physical batches. The seed is for the
    batches without a budget. With one, neither batches nor noise are ever seeded.
    """
    batch = int(min(recipe.batch_size, rows))
    steps, rate = max(1, round(recipe.epochs * rows / batch)), batch / rows
    ledger: Ledger | None = None
    if budget is None:
        params = MechanismParams(0.0, math.inf, rate, Randomness.for_tests(seed))
    else:
        sigma = calibrate_noise_multiplier(budget.epsilon, budget.delta, rate, steps)
        params = MechanismParams(sigma, recipe.max_grad_norm, rate, Randomness.from_os())
    policy = params.options.policy_class(params)
    if budget is not None:
        ledger = Ledger.open(
            params.randomness,
            policy.name,
            policy.form,
            delta=budget.delta,
            target_epsilon=budget.epsilon,
            records=rows,
            sample_rate=rate,
            max_grad_norm=params.max_grad_norm,
            public_inputs=PUBLIC_INPUTS,
            caveats=policy.theorem.caveats,
        )
    clipping = ClassifierClipping(model, params.max_grad_norm)
    adam = torch.optim.Adam(clipping.parameters, lr=recipe.learning_rate, fused=True)
    fall = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 1e-3, steps)
    # Training without a budget spends what no ledger counts.
    gate = Gate(ledger.record if ledger else lambda event: None)
    optimizer = PrivateOptimizer(clipping.parameters, policy, batch, adam, fall, gate)
    try:
        for drawn in poisson_batches(rows, params.sample_rate, steps, params.randomness):
            members = drawn.tolist()
            clipping.zero()
            for physical in labelled(members):
                clipping.add(physical)
            optimizer.step(clipping.sums, members)
            count(optimizer.done, steps)
    finally:
        clipping.close()
    return ledger


@dataclass
class PrivateRegression:
    """A logistic regression of sentence embeddings with DP: the cheapest baseline.

    For its guarantee see `fit_privately`. The encoder was trained on public data only.
    """

    encode: Encode
    budget: Budget
    recipe: Recipe = PRIVATE_REGRESSION
    count: Count = lambda done, total: None

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> PrivateRegression:
        """Learn from rows."""
        self.classes_, classes = np.unique(np.array(labels), return_inverse=True)
        wanted = torch.from_numpy(classes)
        vectors = torch.from_numpy(self.encode(texts)).float()  # (N, d)
        layer = LinearOverTable(vectors, len(self.classes_))

        def labelled(rows: Sequence[int]) -> Iterator[LabelledRows]:
            numbers = torch.tensor(rows, dtype=torch.long)
            if rows:
                ids = numbers[:, None]  # (R, 1): a row's number is its only "token"
                yield LabelledRows(ids, torch.ones_like(ids, dtype=torch.bool), wanted[numbers])

        given = layer, len(texts), labelled, self.recipe, self.budget
        self.ledger = fit_privately(*given, count=self.count)
        self._layer = layer.linear
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Return the labels (N,) of texts."""
        with torch.inference_mode():
            scores = self._layer(torch.from_numpy(self.encode(texts)).float())
        predicted: np.ndarray = self.classes_[scores.argmax(1).numpy()]
        return predicted


class LinearOverTable(nn.Module):
    """A classifier whose "token ids" (R, 1) are the numbers of rows with known vectors.

    So the clipping engine, which takes token ids, clips a plain linear layer. Vectors are (N, d).
    """

    def __init__(self, vectors: torch.Tensor, classes: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.linear = nn.Linear(vectors.shape[1], classes)
        nn.init.zeros_(self.linear.weight)  # all labels alike: nothing to seed
        nn.init.zeros_(self.linear.bias)

    def forward(self, input_ids: torch.Tensor, **ignored: Any) -> SimpleNamespace:
        """(R, 1) → logits (R, classes)."""
        return SimpleNamespace(logits=self.linear(self.vectors(input_ids[:, 0])))


@dataclass(eq=False)
class EncoderClassifier:
    """Any sequence classifier of the BERT family, fine-tuned. With a budget, the papers' baseline.

    For its guarantee see `fit_privately`. Without a budget it learns without privacy. The seed is
    for the new head and, without a budget, for the batches. Noise is never seeded.
    """

    name: str | None = None  # folder or hub name, by default the pinned MiniLM
    budget: Budget | None = None
    recipe: Recipe | None = None  # None: that of open or of private ones
    seed: int = 0
    say: Say = silent
    count: Count = lambda done, total: None
    device: str = AUTO

    @no_fetched_code()
    def load(self, classes: int = 2) -> None:
        """Load the encoder with a new head, or refuse one that cannot be loaded."""
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        name = self.name or MINILM
        if name in ASSETS:
            path = asset_path(name, self.say)
        else:
            path = Path(name).expanduser()
            path = path if path.is_dir() else hub_folder(name, self.say)
        files = ModelFiles.of(path, name)
        options = {"trust_remote_code": False, "local_files_only": True}
        try:
            with quiet(), files.alone() as folder, torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                config = AutoConfig.from_pretrained(folder, num_labels=classes, **options)
                files.check_size(AutoModelForSequenceClassification, config)
                self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
                self._model: Any = AutoModelForSequenceClassification.from_pretrained(
                    folder,
                    config=config,
                    ignore_mismatched_sizes=True,  # the head is a new one
                    use_safetensors=True,
                    **options,
                )
        except InputError:
            raise
        except Exception as error:  # whatever a strange file makes three libraries raise
            raise InputError(f"{name} cannot be loaded as a text classifier") from error
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model.eval().to(device_of(self.device))

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> EncoderClassifier:
        """Learn from rows."""
        self.classes_ = np.array(sorted(set(labels)))
        self.load(len(self.classes_))
        numbers = {label: number for number, label in enumerate(self.classes_)}
        batches = self._batches(texts, [numbers[label] for label in labels])

        def labelled(members: Sequence[int]) -> Iterator[LabelledRows]:
            return (rows for _, rows in batches(members))

        recipe = self.recipe or (PRIVATE_ENCODER if self.budget else OPEN_ENCODER)
        given = self._model, len(texts), labelled, recipe, self.budget
        self.ledger = fit_privately(*given, seed=self.seed, count=self.count)
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Return the labels (N,) of texts."""
        found, device = np.zeros(len(texts), dtype=int), self._model.device
        with torch.inference_mode():
            for members, rows in self._batches(texts, [0] * len(texts))(range(len(texts))):
                ids, mask = rows.input_ids.to(device), rows.attention_mask.to(device)
                logits = self._model(input_ids=ids, attention_mask=mask).logits  # (R, classes)
                found[members] = logits.argmax(1).cpu().numpy()
        predicted: np.ndarray = self.classes_[found]
        return predicted

    def _batches(
        self, texts: Sequence[str], classes: Sequence[int]
    ) -> Callable[[Sequence[int]], Iterator[tuple[list[int], LabelledRows]]]:
        """Tokenise rows. Return a function that cuts some into batches of one padded length."""
        with quiet():
            encoded = self._tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)
        rows: list[list[int]] = encoded["input_ids"]
        end = int(self._tokenizer.pad_token_id or 0)

        def cut(members: Sequence[int]) -> Iterator[tuple[list[int], LabelledRows]]:
            lengths = batches_of_one_length(
                members,
                lambda i: padded(len(rows[i]), MAX_TOKENS),
                lambda length: max(1, TOKENS_AT_ONCE // length),
            )
            for length, batch in lengths:
                lengths_of = torch.tensor([len(rows[i]) for i in batch])
                ids = torch.tensor([rows[i] + [end] * (length - len(rows[i])) for i in batch])
                mask = torch.arange(length) < lengths_of[:, None]  # (R, T), as the ids
                yield batch, LabelledRows(ids, mask, torch.tensor([classes[i] for i in batch]))

        return cut
