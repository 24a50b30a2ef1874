"""LoRA through `peft`: few trained numbers, hence little noise, and no gradients for the rest.

The frozen rest may lie in memory in four bits a weight (QLoRA).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from twinset.config import TrainingConfig
from twinset.models.hub import no_fetched_code, quiet
from twinset.models.nf4 import plain, quantised

# Queries and values, as in the LoRA paper (Hu et al. 2021, section 4.2); GPT-2 fuses them with the
# keys. A fifth of the numbers of "all-linear", so a fifth of the squared noise.
ATTENTION = ("q_proj", "v_proj", "c_attn")
ALL_LINEAR = ()


def trainable(model: Any, training: TrainingConfig) -> Any:
    """Return the model as a method trains it; the adapters' start is drawn from the run's seed."""
    if training.method == "full":
        return model
    with torch.random.fork_rng(devices=[]):  # adapters are drawn on the processor
        torch.manual_seed(training.seed)
        adapted = with_lora(model, training.lora_rank)
    return quantised(adapted) if training.method == "qlora" else adapted


@no_fetched_code()
def with_lora(model: Any, rank: int, targets: Sequence[str] = ATTENTION) -> Any:
    """Return the model with trainable low-rank adapters in its attention layers.

    Args:
        model: causal LM.
        rank: of the adapters.
        targets: last parts of the names of the layers. A model that has none of them gets adapters
            on every linear layer but the output's.
    """
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer
    from transformers.pytorch_utils import Conv1D

    leaves = {name.rpartition(".")[2]: module for name, module in model.named_modules()}
    found = [name for name in targets if name in leaves]
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=found or "all-linear",
        fan_in_fan_out=any(isinstance(leaves[name], Conv1D) for name in found or leaves),
        task_type="CAUSAL_LM",
    )
    with quiet():  # peft reads what transformers is about to rename
        adapted = get_peft_model(model, config)
    for layer in adapted.modules():
        if isinstance(layer, LoraLayer):
            layer.forward = partial(_adapted, layer)
            for adapter in (*layer.lora_A.values(), *layer.lora_B.values()):
                adapter.forward = partial(_product, adapter)
    return adapted


def _adapted(layer: Any, x: Tensor) -> Tensor:
    """Return layer(x) + B (α/r · A x), the products in the input's format.

    peft casts x to the adapters' float32 and multiplies by α/r behind B, in passes over the widest
    numbers there are.
    """
    y: Tensor = layer.base_layer(x)
    for name in layer.active_adapters:
        y = y + layer.lora_B[name](layer.lora_A[name](x) * layer.scaling[name])
    return y


def _product(adapter: Any, x: Tensor) -> Tensor:
    """Return x Wᵀ in the format of x; W itself stays float32, where noise is added."""
    return linear(x, adapter.weight.to(x.dtype))


def merged(model: Any) -> Any:
    """Return the plain model with the adapters added into its weights, in float32.

    Its weights ask for gradients, as those of a loaded model do: writing token by token, PyTorch
    would else copy a frozen weight for each row (`at::matmul` folds rows of one token only then).
    """
    if hasattr(model, "merge_and_unload"):
        model = plain(model).float().merge_and_unload()
    return model.requires_grad_(True)
