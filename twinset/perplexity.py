"""How surprising a causal language model finds texts: mean nats per token, a text at a time.

Knows nothing of records or prompts; the exponential of what it returns is the perplexity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

WIDTH_STEP = 16  # tokens; a text's padding depends on its own length only
TOKENS_AT_ONCE = 2048


@torch.inference_mode()
def nats_per_token(
    model: Any,
    texts: Sequence[Sequence[int]],
    start: int,
    tick: Callable[[int], object] = lambda texts: None,
) -> Tensor:
    """Return how many nats each token of a text costs in the mean.

    Rows are batched with rows of their own width, always as many at once, so that all products
    have one shape: a text's number depends on the text alone, and not by rounding on its company.

    Args:
        model: a causal LM, in evaluation mode; right padding needs no mask.
        texts: token ids, none empty.
        start: token before each text.
        tick: is told how many texts were scored just now.

    Returns:
        (N,) float64.
    """
    found = torch.zeros(len(texts), dtype=torch.float64)
    longest = int(model.config.max_position_embeddings) - 1
    by_width: dict[int, list[int]] = {}
    for i, text in enumerate(texts):
        length = min(len(text), longest) + 1
        width = min(-(-length // WIDTH_STEP) * WIDTH_STEP, longest + 1)
        by_width.setdefault(width, []).append(i)
    for width, members in sorted(by_width.items()):
        at_once = max(1, TOKENS_AT_ONCE // width)
        for first in range(0, len(members), at_once):
            some = members[first : first + at_once]
            rows = [[start, *texts[i]][: longest + 1] for i in some]
            rows += [[start, start]] * (at_once - len(rows))
            found[some] = _means(model, rows, width)[: len(some)]
            tick(len(some))
    return found


def _means(model: Any, rows: list[list[int]], width: int) -> Tensor:
    """(R,) mean nats of all tokens of each row but its first."""
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for r, row in enumerate(rows):
        ids[r, : len(row)] = torch.tensor(row)
        mask[r, 1 : len(row)] = True
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    nats = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").double()
    counted = mask[:, 1:]
    return (nats * counted).sum(1) / counted.sum(1)
