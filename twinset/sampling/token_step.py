"""One forward over all rows that are being written: tokens and their positions → logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twinset.models.layers import PackedLinears
from twinset.sampling.kv_cache import SlotCache


@dataclass(frozen=True)
class TokenStep:
    """What is computed for each token.

    Args:
        forward: the model's, compiled perhaps.
        dtype: of the model.
        cache: keys and values of all slots.
        packed: the model's weights, laid out to be multiplied faster; None: they are as they are.
    """

    forward: Callable[..., Any]
    dtype: torch.dtype
    cache: SlotCache
    packed: PackedLinears | None

    def __call__(self, ids: Tensor, at: Tensor) -> Tensor:
        """Return logits (S, V) behind tokens (S, 1) at positions (S, 1), which the cache fits."""
        width = self.cache.aim(at)
        unseen = torch.arange(width, device=at.device) > at
        mask = torch.zeros(unseen.shape, dtype=self.dtype, device=at.device)
        with self.packed.in_use() if self.packed else nullcontext():
            logits: Tensor = self.forward(
                input_ids=ids,
                attention_mask=mask.masked_fill_(unseen, -math.inf)[:, None, None],
                position_ids=at,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
        return logits
