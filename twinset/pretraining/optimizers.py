"""Which optimiser takes which parameter: Muon the matrices between hidden states, AdamW the rest.

Muon steps along the nearest orthogonal matrix to the momentum, so that rare directions move as far
as common ones. Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks"
(2024); its step is scaled to AdamW's, so that both share one learning rate, as in Liu et al., "Muon
is scalable for LLM training" (2025).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

NAMES = "Muon for hidden matrices, AdamW for the rest"
OF_ADAPTERS = "AdamW"
BETAS = (0.9, 0.95)  # of AdamW
MOMENTUM = 0.95  # of Muon


def optimizers(model: Any, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Return the optimisers of a model's trained parameters, each of which is in one of them.

    Args:
        model: causal LM.
        weight_decay: of matrices.
    """
    tables = {id(p) for table in _tables(model) for p in table.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in trained if p.ndim == 2 and id(p) not in tables]
    rest = [p for p in trained if p.ndim != 2 or id(p) in tables]
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    muon = torch.optim.Muon(
        hidden, weight_decay=weight_decay, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.AdamW(groups, betas=BETAS, fused=True)]


def adapter_optimizers(model: Any) -> list[torch.optim.Optimizer]:
    """Return the optimiser of low-rank factors: neither is a map between hidden states."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [torch.optim.AdamW(trained, betas=BETAS, weight_decay=0.0, fused=True)]


def _tables(model: Any) -> list[nn.Module]:
    """Return layers whose rows are tokens or places, which are no maps between hidden states."""
    return [
        model.get_output_embeddings(),
        *(m for m in model.modules() if isinstance(m, nn.Embedding)),
    ]
