"""A classifier on what a language model makes of a text when it is asked about its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from twinset.models.base_model import load_base
from twinset.models.hidden_states import Questions
from twinset.models.packed_layers import PackedLinears
from twinset.models.precision import fastest
from twinset.models.teacher import Whitening

INVERSE_PENALTY = 10.0  # C of the logistic regression on vectors of length one


class HiddenStates:
    """Reads texts by the last layer, each once: vectors are kept as long as this object.

    Args:
        base_model: folder, asset or hub name.
        attributes: names of the label columns that the model is asked about.
        longest: tokens of a text that are read.
    """

    def __init__(self, base_model: str, attributes: Sequence[str], longest: int) -> None:
        self._name, self._attributes, self._longest = base_model, list(attributes), longest
        self._known: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return hidden states (N, A, d)."""
        unread = list({*texts} - self._known.keys())
        tokens = [self._questions.tokens(text, self._longest) for text in unread]
        states = self._questions.of_rows(tokens)
        self._known |= {t: s.astype(np.float32) for t, s in zip(unread, states, strict=True)}
        return np.stack([self._known[text] for text in texts])

    @cached_property
    def _questions(self) -> Questions:
        base = load_base(self._name)
        last = base.model.config.num_hidden_layers
        model = fastest(base.model)
        names, packed = self._attributes, PackedLinears(model)
        return Questions(model, base.tokenizer, names, last, packed)


class HiddenStateClassifier:
    """A logistic regression on all attributes' hidden states, each whitened by the training texts.

    Args:
        states: reads texts.
    """

    def __init__(self, states: HiddenStates) -> None:
        self._states = states

    def fit(self, texts: Sequence[str], labels: Sequence[str]) -> HiddenStateClassifier:
        """Learn from rows."""
        from sklearn.linear_model import LogisticRegression

        states = self._states.encode(texts)
        self._whitenings = [Whitening.of(states[:, i]) for i in range(states.shape[1])]
        self._regression: Any = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000)
        self._regression.fit(self._vectors(states), labels)
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Return the labels (N,) of texts."""
        found: np.ndarray = self._regression.predict(self._vectors(self._states.encode(texts)))
        return found

    def _vectors(self, states: np.ndarray) -> np.ndarray:
        """(N, A, d) → (N, A · (c + 1))."""
        return np.stack(
            [
                np.concatenate([w(s) for w, s in zip(self._whitenings, text, strict=True)])
                for text in states
            ]
        )


def hidden_state_classifier(states: HiddenStates) -> Callable[[int], HiddenStateClassifier]:
    """Return what makes an unfitted one for a seed, as `classifiers.Classifier` has it."""
    return lambda seed: HiddenStateClassifier(states)
