"""What a language model makes of a text when it is asked about a label: hidden states as features.

One text at a time: a batch would let the company round what a text's features are, and a private
regression on them rests on each record's being its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

QUESTION = "\n\nThe {} of this text is"


class Questions:
    """Reads a text, and behind it a question about each attribute.

    Args:
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        attributes: names of the label columns.
    """

    def __init__(self, model: Any, tokenizer: Any, attributes: Sequence[str]) -> None:
        self._model, self._tokenizer = model, tokenizer
        asked = [QUESTION.format(name.replace("_", " ")) for name in attributes]
        self._questions = tokenizer(asked, add_special_tokens=False)["input_ids"]
        self._start = tokenizer.bos_token_id or tokenizer.eos_token_id

    def features(self, text: str, longest: int) -> np.ndarray:
        """Return the last hidden state (A, d) float64 behind each question."""
        ids = self._tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"][:longest]
        return self.of_tokens(ids)

    @torch.inference_mode()
    def of_tokens(self, ids: Sequence[int]) -> np.ndarray:
        """Return the same of a text's token ids, without its end."""
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        self._read([self._start, *ids], cache)
        found = []
        for question in self._questions:
            found.append(self._read(question, cache)[0, -1].double().cpu().numpy())
            cache.crop(-len(question))
        return np.stack(found)

    def _read(self, ids: Sequence[int], cache: Any) -> torch.Tensor:
        read = torch.tensor([list(ids)], device=self._model.device)
        states: torch.Tensor = self._model.base_model(
            input_ids=read, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return states
