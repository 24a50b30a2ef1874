"""Perplexity under a public model: how usual texts seem to one that never saw private data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evaluation.fidelity.jackknife import jackknife, leaving_out
from evaluation.findings import Score

PERPLEXITY_ROWS = 100  # a model of 135 million parameters reads some hundred a minute on one core
MAX_TOKENS = 512  # of a row; the rest is not read

OnProgress = Callable[[int, int], object]


def perplexity(
    texts: Sequence[str], model: Any, tokenizer: Any, on_progress: OnProgress
) -> Score | None:
    """Return exp of the mean nats of a token, without any prompt; None where there is no token.

    The interval is the jackknife's, over rows.

    Args:
        texts: in random order.
        model: causal LM in evaluation mode.
        tokenizer: its tokenizer.
        on_progress: is notified of how many texts are scored, of how many.
    """
    from twinset.training.record_weights import text_nats

    ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    longest = min(MAX_TOKENS, int(model.config.max_position_embeddings) - 1)  # one more: the start
    ids = [row[:longest] for row in ids if row]
    if not ids:
        return None
    tokens = np.array(list(map(len, ids)))
    nats = text_nats(model, tokenizer, ids, on_progress).numpy() * tokens

    def mean(kept: slice | np.ndarray) -> float:
        return math.exp(nats[kept].sum() / tokens[kept].sum())

    without = [mean(kept) for kept in leaving_out(len(ids))]
    name = "perplexity under a public model"
    return jackknife(name, mean(slice(None)), without, "match", 1.0, math.inf, len(ids))
