"""In which number format the weights that are not trained are kept.

Knows no record. Trained weights are always float32: the noise is added there.
"""

from __future__ import annotations

from typing import Any

import torch

from twinset.config import RunConfig
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.clipping.isolation import TOLERANCE, company_effect


def frozen_dtype(config: RunConfig) -> torch.dtype:
    """Return bfloat16 for a model under adapters, if asked for or if the CPU computes in it."""
    precision = config.speed.precision
    if precision == "auto":
        precision = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    low = precision == "bfloat16" and config.training.method == "lora"
    return torch.bfloat16 if low else torch.float32


def is_isolated(model: Any, max_grad_norm: float) -> bool:
    """Tell whether records leave one another's gradients alone, in the model's own precision."""
    engine = ClippingEngine(model, max_grad_norm)
    try:
        return company_effect(engine, model.config.vocab_size) <= TOLERANCE
    finally:
        engine.close()
