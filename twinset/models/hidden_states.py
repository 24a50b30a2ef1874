"""What a language model makes of a text when it is asked about a label: hidden states as features.

A private record is read by itself: in a batch the others would decide how its features are rounded,
and a private regression on them rests on each record's being its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from twinset.models.base_model import context_length

QUESTION = "\n\nThe {} of this text is"
DEPTH = 28 / 30  # of the layer that is read: the last ones are for the next token (docs/tuning.md)


def usual_layer(layers: int) -> int:
    """Return which of a model's layers is read; the last one's states are normalised.

    >>> usual_layer(30), usual_layer(6)
    (28, 6)
    """
    return round(DEPTH * layers)


class Questions:
    """Reads a text, and behind it a question about each attribute.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        attributes: names of the label columns.
        layer: whose states are read, counted from 1; None: the usual one.
    """

    def __init__(
        self, model: Any, tokenizer: Any, attributes: Sequence[str], layer: int | None = None
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self.layer = layer or usual_layer(model.config.num_hidden_layers)
        asked = [QUESTION.format(name.replace("_", " ")) for name in attributes]
        self._questions = tokenizer(asked, add_special_tokens=False)["input_ids"]
        self._start = tokenizer.bos_token_id or tokenizer.eos_token_id

    def tokens(self, text: str, longest: int) -> list[int]:
        """Return a text's token ids, so many at most."""
        ids: list[int] = self._tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"]
        return ids[:longest]

    def of_tokens(self, ids: Sequence[int]) -> np.ndarray:
        """Return the hidden state (A, d) float64 behind each question about a text's token ids."""
        found: np.ndarray = self.of_batch([ids])[0]
        return found

    def of_rows(
        self, rows: Sequence[Sequence[int]], tokens_at_once: int | None = None
    ) -> list[np.ndarray]:
        """Return the same of several texts of any length (A, d): no private records.

        Those of one length are read together, all of them or so many tokens.
        """
        numbers: dict[int, list[int]] = {}
        for number, ids in enumerate(rows):
            numbers.setdefault(len(ids), []).append(number)
        found: dict[int, np.ndarray] = {}
        for length, alike in numbers.items():
            most = max(1, tokens_at_once // (length + 1)) if tokens_at_once else len(alike)
            for start in range(0, len(alike), most):
                some = alike[start : start + most]
                found |= zip(some, self.of_batch([rows[i] for i in some]), strict=True)
        return [found[i] for i in range(len(rows))]

    @torch.inference_mode()
    def of_batch(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the same of several texts as long as one another (B, A, d): no private records.

        The questions follow one another in one pass. What has no room before them is not read.
        """
        asked = [token for question in self._questions for token in question]
        room = context_length(self._model) - 1 - len(asked)
        read = torch.tensor(
            [[self._start, *ids[:room], *asked] for ids in rows], device=self._model.device
        )
        passed = self._model.base_model(
            input_ids=read, use_cache=False, output_hidden_states=self.layer
        )
        states = passed.hidden_states[self.layer]
        ends = np.cumsum([len(question) for question in self._questions]) - len(asked) - 1
        found: np.ndarray = states[:, ends.tolist()].double().cpu().numpy()
        return found
