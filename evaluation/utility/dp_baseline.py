"""A logistic regression of sentence embeddings with DP: the cheapest baseline.

Whoever needs one classifier, and no texts, may spend the budget on this instead of on a twin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from evaluation.utility.dp_fitting import Budget, Count, Fitting, PrivatelyFitted, Recipe, no_op
from evaluation.utility.embeddings import SentenceEncoder
from twinset.privacy.clipping import LabelledRows

# Of 14 recipes, four runs each at ε = 8, about the best on 528 rows of the training part of
# blitzer_dvd_kitchen for either label and for both (0.77, 0.99, 0.75; without privacy 0.78, 0.99,
# 0.75).
PRIVATE = Recipe(batch_size=math.inf, epochs=30, learning_rate=0.5, max_grad_norm=0.3)


class PrivateRegression(PrivatelyFitted):
    """A linear layer over vectors of public origin.

    For what it guarantees see `twinset.privacy.statement.theorems`, CLASSIFIER.

    Args:
        encoder: makes the vectors; trained on nothing private.
        budget: ε and δ.
        recipe: how long and how fast.
        count: is notified of each step.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        budget: Budget,
        recipe: Recipe = PRIVATE,
        count: Count = no_op,
    ) -> None:
        self._encoder = encoder
        self._fitting = Fitting(recipe, budget, count=count)

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> PrivateRegression:
        """Learn from rows."""
        self.classes_, classes = np.unique(np.array(labels), return_inverse=True)
        wanted = torch.from_numpy(classes)
        layer = LinearOverTable(self._vectors(texts), len(self.classes_))

        def labelled(rows: Sequence[int]) -> Iterator[LabelledRows]:
            numbers = torch.tensor(rows, dtype=torch.long)
            if rows:
                ids = numbers[:, None]
                yield LabelledRows(ids, torch.ones_like(ids, dtype=torch.bool), wanted[numbers])

        self.ledger = self._fitting.fit(layer, len(texts), labelled)
        self._layer = layer.linear
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Return the labels (N,) of texts."""
        with torch.inference_mode():
            scores = self._layer(self._vectors(texts))
        predicted: np.ndarray = self.classes_[scores.argmax(1).numpy()]
        return predicted

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        return torch.from_numpy(self._encoder.encode(texts)).float()


class LinearOverTable(nn.Module):
    """A classifier whose "token ids" (R, 1) are the numbers of rows with vectors known beforehand.

    Args:
        vectors: (N, d), not trained.
        classes: number of labels.
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
