"""Bits per byte: how well a model foresees text, whatever its tokens are.

The logarithm of what it gives to every token and to the end of each text, over the bytes of the
texts in UTF-8. Models of different vocabularies can be compared by it, perplexities cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from twinset.pretraining.packing import Blocks

BLOCKS_AT_ONCE = 16


def bits_per_byte(model: Any, blocks: Blocks, size: int) -> float:
    """Return bits per byte of packed text.

    Args:
        model: causal LM.
        blocks: of the text.
        size: its bytes; counted as far as blocks go.
    """
    training = model.training
    model.eval()
    with torch.inference_mode():
        nats = sum(_nats(model, blocks))
    model.train(training)
    return nats / math.log(2) / (size * blocks.share)


def _nats(model: Any, blocks: Blocks) -> Iterator[float]:
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        numbers = np.arange(start, min(start + BLOCKS_AT_ONCE, len(blocks)))
        ids = torch.from_numpy(blocks.read(numbers)).to(model.device)
        yield float(token_losses(model(input_ids=ids).logits, ids).double().sum())


def token_losses(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the nats that each token but a block's first costs: (B, T, V), (B, T) → (B · (T-1),).

    In float32, whatever the logits are in.
    """
    request = ids[:, 1:].flatten()
    given = logits[:, :-1].flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(given, request, reduction="none")
