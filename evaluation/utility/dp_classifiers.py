"""Classifiers that learn with differential privacy: what a budget buys without a twin.

Someone who needs one classifier, and no texts, may spend the budget on one of these instead. Both
are fitted the way language models are trained: Poisson batch → exact clipped sum →
`PrivateOptimizer`. Without a budget the text encoder learns openly, by the same loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

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
from twinset.policies import MechanismParams, make_policy
from twinset.privacy.accounting.accountant import calibrate_noise_multiplier
from twinset.privacy.clipping import ClassifierClipping, LabelledRows
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.privacy.statement.ledger import Ledger, MechanismRun
from twinset.privacy.statement.wording import caveats
from twinset.table.tokenization import batches_of_one_length, padded
from twinset.training.loop import PrivateOptimizer

MINILM = "minilm"  # the pinned encoder all-MiniLM-L6-v2
MAX_TOKENS = 128  # that a text is cut at
TOKENS_AT_ONCE = 4096  # of one physical batch
PUBLIC_INPUTS = (
    "the number of rows",
    "the set of labels",
    "the encoder and its training data",
    "hyper-parameters, chosen without the private rows",
)

Count = Callable[[int, int], object]  # is called with the number of steps done, and of all


class Encoder(Protocol):
    """Embeds texts."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors (N, d)."""


@dataclass(frozen=True)
class Recipe:
    """How long and how fast a classifier learns."""

    batch_size: float  # expected rows a step. Infinite means all of them.
    epochs: float  # visits of each row, on average
    learning_rate: float  # Adam's, falling to nothing
    max_grad_norm: float = 1.0  # C, where there is a budget


@dataclass(frozen=True)
class Budget:
    """ε and δ, for adding or removing one row. The labels and the number of rows are public."""

    epsilon: float
    delta: float


# Of 14 recipes, four runs each at ε = 8, about the best on 528 rows of the training part of
# blitzer_dvd_kitchen for either label and for both (0.77, 0.99, 0.75; without privacy 0.78, 0.99,
# 0.75).
PRIVATE_REGRESSION = Recipe(math.inf, epochs=30, learning_rate=0.5, max_grad_norm=0.3)
OPEN_ENCODER = Recipe(batch_size=32, epochs=3, learning_rate=1e-4)
PRIVATE_ENCODER = Recipe(batch_size=256, epochs=10, learning_rate=1e-3)


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

    For what it guarantees see `twinset.privacy.statement.theorems`, CLASSIFIER.

    Args:
        model: what `ClassifierClipping` takes.
        rows: N.
        labelled: returns the rows of these numbers, cut into physical batches.
        recipe: how long and how fast.
        budget: ε and δ. None learns without privacy.
        seed: of the batches without a budget. With one, neither batches nor noise is ever seeded.
        count: is notified of each step.
    """
    batch = int(min(recipe.batch_size, rows))
    steps, rate = max(1, round(recipe.epochs * rows / batch)), batch / rows
    ledger: Ledger | None = None
    if budget is None:
        params = MechanismParams(0.0, math.inf, rate, Randomness.for_tests(seed))
    else:
        sigma = calibrate_noise_multiplier(budget.epsilon, budget.delta, rate, steps)
        params = MechanismParams(sigma, recipe.max_grad_norm, rate, Randomness.from_os())
    policy = make_policy(params)
    if budget is not None:
        run = MechanismRun(
            delta=budget.delta,
            target_epsilon=budget.epsilon,
            records=rows,
            sample_rate=rate,
            max_grad_norm=params.max_grad_norm,
            randomness=params.randomness,
            policy=policy.name,
            policy_form=policy.form,
        )
        ledger = Ledger.open(run, PUBLIC_INPUTS, caveats(policy.name, policy.form))
    clipping = ClassifierClipping(model, params.max_grad_norm)
    adam = torch.optim.Adam(clipping.parameters, lr=recipe.learning_rate, fused=True)
    fall = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 1e-3, steps)
    # Training without a budget spends what no ledger counts.
    record: Callable[[Any], None] = ledger.record if ledger else lambda event: None
    optimizer = PrivateOptimizer(clipping.parameters, policy, batch, adam, fall, record)
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


class PrivateRegression:
    """A logistic regression of sentence embeddings with DP: the cheapest baseline.

    For what it guarantees see `fit_privately`. The encoder was trained on nothing private.
    """

    def __init__(
        self,
        encoder: Encoder,
        budget: Budget,
        recipe: Recipe = PRIVATE_REGRESSION,
        count: Count = lambda done, total: None,
    ) -> None:
        self._encoder, self._budget, self._recipe, self._count = encoder, budget, recipe, count

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> PrivateRegression:
        """Learn from rows."""
        self.classes_, classes = np.unique(np.array(labels), return_inverse=True)
        wanted = torch.from_numpy(classes)
        vectors = torch.from_numpy(self._encoder.encode(texts)).float()  # (N, d)
        layer = LinearOverTable(vectors, len(self.classes_))

        def labelled(rows: Sequence[int]) -> Iterator[LabelledRows]:
            numbers = torch.tensor(rows, dtype=torch.long)
            if rows:
                ids = numbers[:, None]  # (R, 1): a row's number is its only "token"
                yield LabelledRows(ids, torch.ones_like(ids, dtype=torch.bool), wanted[numbers])

        self.ledger = fit_privately(
            layer, len(texts), labelled, self._recipe, self._budget, count=self._count
        )
        self._layer = layer.linear
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Return the labels (N,) of texts."""
        with torch.inference_mode():
            scores = self._layer(torch.from_numpy(self._encoder.encode(texts)).float())
        predicted: np.ndarray = self.classes_[scores.argmax(1).numpy()]
        return predicted


class LinearOverTable(nn.Module):
    """A classifier whose "token ids" (R, 1) are the numbers of rows with vectors known beforehand.

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


class EncoderClassifier:
    """Any sequence classifier of the BERT family, fine-tuned. With a budget, the papers' baseline.

    For what it guarantees see `fit_privately`.

    Args:
        name: folder or hub name. None is the pinned MiniLM.
        budget: ε and δ. None learns without privacy.
        recipe: None takes `OPEN_ENCODER` or `PRIVATE_ENCODER`.
        seed: of the new head and, without a budget, of the batches. Noise never is seeded.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        budget: Budget | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        say: Say = silent,
        count: Count = lambda done, total: None,
        device: str = AUTO,
    ) -> None:
        self._name, self._seed, self._say, self._device = name or MINILM, seed, say, device
        self._budget, self._count = budget, count
        self._recipe = recipe or (PRIVATE_ENCODER if budget else OPEN_ENCODER)

    @no_fetched_code()
    def load(self, classes: int = 2) -> None:
        """Load the encoder with a new head, so that one that cannot be is refused early.

        Raises:
            InputError: it cannot be loaded.
        """
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        if self._name in ASSETS:
            path = asset_path(self._name, self._say)
        else:
            path = Path(self._name).expanduser()
            path = path if path.is_dir() else hub_folder(self._name, self._say)
        files = ModelFiles.of(path, self._name)
        options = {"trust_remote_code": False, "local_files_only": True}
        try:
            with quiet(), files.alone() as folder, torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed)
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
            raise InputError(f"{self._name} cannot be loaded as a text classifier") from error
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model.eval().to(device_of(self._device))

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> EncoderClassifier:
        """Learn from rows."""
        self.classes_ = np.array(sorted(set(labels)))
        self.load(len(self.classes_))
        numbers = {label: number for number, label in enumerate(self.classes_)}
        batches = self._batches(texts, [numbers[label] for label in labels])

        self.ledger = fit_privately(
            self._model,
            len(texts),
            lambda members: (rows for _, rows in batches(members)),
            self._recipe,
            self._budget,
            seed=self._seed,
            count=self._count,
        )
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
        """Tokenise rows. Return what cuts some of them into batches of one padded length."""
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
                ids = torch.full((len(batch), length), end)  # (R, T)
                mask = torch.zeros((len(batch), length), dtype=torch.bool)
                for place, row in enumerate(rows[i] for i in batch):
                    ids[place, : len(row)] = torch.tensor(row)
                    mask[place, : len(row)] = True
                yield batch, LabelledRows(ids, mask, torch.tensor([classes[i] for i in batch]))

        return cut
