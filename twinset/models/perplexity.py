"""How surprising a causal language model finds texts: mean nats per token, a text at a time.

Knows nothing of records or prompts; the exponential of what it returns is the perplexity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from twinset.table.tokenization import batches_of_one_length, padded

TOKENS_AT_ONCE = 2048


@torch.inference_mode()
def nats_per_token(
    model: Any,
    texts: Sequence[Sequence[int]],
    start: int,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> Tensor:
    """Return how many nats each token of a text costs in the mean.

    Rows are batched with rows of their own padded length, always as many at once, so that all
    products have one shape: a text's number depends on the text alone, and not by rounding on the
    rest of its batch.

    Args:
        model: a causal LM, in evaluation mode; right padding needs no mask.
        texts: token ids, none empty.
        start: token before each text.
        on_progress: called with how many texts are scored, of how many.

    Returns:
        (N,) float64.
    """
    found = torch.zeros(len(texts), dtype=torch.float64)
    longest, done = int(model.config.max_position_embeddings), 0

    def length(i: int) -> int:
        return padded(min(1 + len(texts[i]), longest), longest)

    for common, members in batches_of_one_length(range(len(texts)), length, _rows_at_once):
        rows = [[start, *texts[i]][:longest] for i in members]
        filling = [[start, start]] * (_rows_at_once(common) - len(members))
        found[members] = _means(model, rows + filling, common)[: len(members)]
        done += len(members)
        on_progress(done, len(texts))
    return found


def _rows_at_once(length: int) -> int:
    return max(1, TOKENS_AT_ONCE // length)


def _means(model: Any, rows: list[list[int]], length: int) -> Tensor:
    """(R,) mean nats of all tokens of each row but its first."""
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for r, row in enumerate(rows):
        ids[r, : len(row)] = torch.tensor(row)
        mask[r, 1 : len(row)] = True
    ids, mask = ids.to(model.device), mask.to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    nats = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").double()
    counted = mask[:, 1:]
    return ((nats * counted).sum(1) / counted.sum(1)).cpu()
