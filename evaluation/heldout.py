"""How well a model predicts real texts that it was not trained on. Knows nothing of privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from twinset.tokens import TokenisedRecords

TOKENS_AT_ONCE = 1024  # their logits fill 200 MB with a vocabulary of 50,000
_LARGEST = 700.0  # nats; e to a larger power is no float


def perplexity(model: Any, texts: TokenisedRecords) -> float:
    """Return exp of the mean loss of a token, each text behind its own prompt.

    What counts is what carries loss in training: text and end of text, cut at the same length.

    Args:
        model: causal LM in evaluation mode.
        texts: tokenised for it.
    """
    nats, tokens = 0.0, 0
    with torch.inference_mode():
        for batch in _batches(texts):
            rows = texts.sequences(batch, 0, (0, 0))
            ids, mask = rows.input_ids.to(model.device), rows.loss_mask[:, 1:].to(model.device)
            logits = model(ids).logits[:, :-1][mask].float()  # (tokens with loss, V)
            nats += float(cross_entropy(logits, ids[:, 1:][mask], reduction="none").double().sum())
            tokens += int(mask.sum())
    return math.exp(min(nats / tokens, _LARGEST))


def _batches(texts: TokenisedRecords) -> Iterator[list[int]]:
    """Yield the texts' indices in batches of one width each: no more padding than in training."""
    by_width: dict[int, list[int]] = {}
    for index in range(len(texts)):
        by_width.setdefault(texts.width(index), []).append(index)
    for width, indices in by_width.items():
        size = max(1, TOKENS_AT_ONCE // width)
        for start in range(0, len(indices), size):
            yield indices[start : start + size]
