"""What a language model makes of a text when it is asked about a label: hidden states as features.

A private record is read by itself: in a batch the others would decide how its features are rounded,
and a private regression on them rests on each record's being its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from twinset.models.base_model import context_length
from twinset.models.packed_layers import PackedLinears

QUESTION = "\n\nThe {} of this text is"
TOKENS_AT_ONCE = 1024  # more are no faster, and longer rows' attention slower
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
        packed: the model's weights, laid out to be multiplied faster; None: they are as they are.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        attributes: Sequence[str],
        layer: int | None = None,
        packed: PackedLinears | None = None,
    ) -> None:
        self._model, self._tokenizer, self._packed = model, tokenizer, packed
        self.layer = layer or usual_layer(model.config.num_hidden_layers)
        asked = [QUESTION.format(name.replace("_", " ")) for name in attributes]
        questions = tokenizer(asked, add_special_tokens=False)["input_ids"]
        self._asked = [token for question in questions for token in question]
        self._ends = np.cumsum([len(question) for question in questions])
        self._room = context_length(model) - 1 - len(self._asked)
        self._start = tokenizer.bos_token_id or tokenizer.eos_token_id

    def tokens(self, text: str, longest: int) -> list[int]:
        """Return a text's token ids, so many at most."""
        ids: list[int] = self._tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"]
        return ids[:longest]

    def of_tokens(self, ids: Sequence[int]) -> np.ndarray:
        """Return the hidden state (A, d) float64 behind each question about a text's token ids."""
        found: np.ndarray = self.of_batch([ids])[0]
        return found

    def of_rows(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the same of several texts (A, d): no private records.

        Those of about one length are read together, so many tokens at once.
        """
        found: dict[int, np.ndarray] = {}
        for some in self._together([len(ids) for ids in rows]):
            found |= zip(some, self.of_batch([rows[i] for i in some]), strict=True)
        return [found[i] for i in range(len(rows))]

    def _together(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield the numbers of texts that are read together, the shortest first."""
        some: list[int] = []
        for number in sorted(range(len(lengths)), key=lengths.__getitem__):
            if some and (len(some) + 1) * self._read_length(lengths[number]) > TOKENS_AT_ONCE:
                yield some
                some = []
            some.append(number)
        if some:
            yield some

    def _read_length(self, tokens: int) -> int:
        return 1 + min(tokens, self._room) + len(self._asked)

    @torch.inference_mode()
    def of_batch(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the same of several texts (B, A, d): no private records.

        The questions follow one another in one pass. What has no room before them is not read, and
        what fills shorter rows up stands behind all that is asked: no token looks so far ahead.
        """
        read = [[self._start, *ids[: self._room], *self._asked] for ids in rows]
        lengths = np.array([len(ids) for ids in read])
        filled = [ids + [self._start] * (lengths.max() - len(ids)) for ids in read]
        with self._packed.in_use() if self._packed else nullcontext():
            passed = self._model.base_model(
                input_ids=torch.tensor(filled, device=self._model.device),
                use_cache=False,
                output_hidden_states=self.layer,
            )
        ends = torch.tensor(lengths[:, None] - len(self._asked) - 1 + self._ends)
        states = passed.hidden_states[self.layer]
        found: np.ndarray = states[torch.arange(len(read))[:, None], ends].double().cpu().numpy()
        return found
