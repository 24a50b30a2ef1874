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
from twinset.pretraining.token_losses import TokenLosses

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
        nats = sum(_nats(TokenLosses(model), blocks))
    model.train(training)
    return nats / math.log(2) / (size * blocks.share)


def _nats(losses: TokenLosses, blocks: Blocks) -> Iterator[float]:
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        numbers = np.arange(start, min(start + BLOCKS_AT_ONCE, len(blocks)))
        ids = torch.from_numpy(blocks.read(numbers)).to(losses.model.device)
        yield float(losses(ids).double().sum())
