"""How well a model predicts real texts that it was not trained on. Knows nothing of privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from twinset.table.tokenization import TokenisedRecords, batches_of_one_length

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
    for _, found, mask in read(model, texts):
        nats += float(found.sum())
        tokens += int(mask.sum())
    return math.exp(min(nats / tokens, _LARGEST))


def read(model: Any, texts: TokenisedRecords) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Read every text once behind its own prompt, in batches of one padded length.

    Args:
        model: causal LM in evaluation mode.
        texts: tokenised for it.

    Yields:
        The batch's texts by their numbers; (M,) float64 nats of each token with loss; (R, T-1)
        where these tokens stand.
    """
    for _, batch in batches_of_one_length(range(len(texts)), texts.padded_length, _rows_at_once):
        rows = texts.sequences(batch, 0, (0, 0))
        ids, mask = rows.input_ids.to(model.device), rows.loss_mask[:, 1:].to(model.device)
        with torch.inference_mode():
            logits = model(ids).logits[:, :-1][mask].float()  # (M, V)
            nats = cross_entropy(logits, ids[:, 1:][mask], reduction="none").double()
        yield batch, nats, mask


def _rows_at_once(padded_length: int) -> int:
    return max(1, TOKENS_AT_ONCE // padded_length)
