"""In which number formats and by which products a run computes, and whether records interfere.

Knows no record. Trained weights are always float32: the noise is added there.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from twinset.config import RunConfig
from twinset.models.device import device_of, has_bfloat16, is_cpu
from twinset.models.fused_layers import fuse_llama
from twinset.privacy.clipping import ClippingEngine, Execution
from twinset.privacy.clipping.engine import KEPT_BYTES
from twinset.privacy.clipping.models import BatchShape, batch_interference


def frozen_dtype(config: RunConfig) -> torch.dtype:
    """Return bfloat16 for a model under adapters where the run computes in it."""
    return torch.bfloat16 if config.training.method != "full" and _is_low(config) else torch.float32


def execution(config: RunConfig) -> Execution:
    """Return how steps are computed. Weights that are all trained are cast for each product."""
    speed = config.speed
    return Execution(
        kept_bytes=0 if speed.low_memory else KEPT_BYTES,
        gradient_checkpointing=speed.gradient_checkpointing,
        autocast=torch.bfloat16 if config.training.method == "full" and _is_low(config) else None,
    )


def _is_low(config: RunConfig) -> bool:
    if config.speed.precision == "auto":
        return has_bfloat16(device_of(config.speed.device))
    return config.speed.precision == "bfloat16"


def is_batch_invariant(
    model: Any, max_grad_norm: float, how: Execution, shapes: Sequence[BatchShape]
) -> bool:
    """Return whether no record changes another's gradient when computed so, by not one bit."""
    engine = ClippingEngine(model, max_grad_norm, how)
    try:
        return batch_interference(engine, model.config.vocab_size, shapes) == 0
    finally:
        engine.close()


def fastest(model: Any) -> Any:
    """Return a model to sample from, in the format that its device multiplies fastest in.

    Rows are post-processing: rounding moves no guarantee, whatever training computed in.
    """
    if model.dtype is torch.float32 and has_bfloat16(model.device):
        return fuse(copy_in(model, torch.bfloat16))
    return model


def copy_in(model: Any, dtype: torch.dtype) -> Any:
    """Return a copy of a model in a number format; what has it already is shared.

    So its weights must not be changed in place. They are cast one by one: a copy of all of them
    before that would need as much memory again.
    """
    cast = {id(p): nn.Parameter(p.detach().to(dtype), p.requires_grad) for p in model.parameters()}
    return deepcopy(model, cast).to(dtype)  # its buffers too


def fuse(model: Any) -> Any:
    """Swap activations for fused ones in place, choose the attention kernel; return the model.

    The mathematics is the same, in fewer passes over memory. Only weights are saved.

    GPT-2's GELU by its tanh formula is written as eight elementwise operations, each of which reads
    and writes the widest activations of the model, and as many again backwards.
    """
    from transformers.activations import NewGELUActivation

    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is NewGELUActivation:
                setattr(module, name, nn.GELU(approximate="tanh"))
    fuse_llama(model)
    if model.dtype is torch.bfloat16 and is_cpu(model.device):
        # Flash attention on a CPU is slow here: 31 ms against 6 ms forward and backward for 32 rows
        # of 48 tokens, nine heads; even at 256 tokens.
        model.set_attn_implementation("eager")
    return model
