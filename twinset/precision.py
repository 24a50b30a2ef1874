"""In which number formats a run computes, and whether records leave one another alone in them.

Knows no record. Trained weights are always float32: the noise is added there.
"""

from __future__ import annotations

from typing import Any

import torch

from twinset.config import RunConfig
from twinset.privacy.clipping import ClippingEngine, Execution
from twinset.privacy.clipping.execution import KEPT_BYTES
from twinset.privacy.clipping.isolation import TOLERANCE, company_effect


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


def has_bfloat16() -> bool:
    """Tell whether this machine's processor multiplies in bfloat16."""
    supported: bool = torch.cpu._is_avx512_bf16_supported()
    return supported


def _is_low(config: RunConfig) -> bool:
    if config.speed.precision == "auto":
        return has_bfloat16()
    return config.speed.precision == "bfloat16"


def is_isolated(model: Any, max_grad_norm: float, how: Execution) -> bool:
    """Tell whether records leave one another's gradients alone when computed so."""
    engine = ClippingEngine(model, max_grad_norm, how)
    try:
        return company_effect(engine, model.config.vocab_size) <= TOLERANCE
    finally:
        engine.close()
