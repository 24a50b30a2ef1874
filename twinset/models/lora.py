"""LoRA through `peft`: few trained numbers, hence little noise, and no gradients for the rest.

The frozen rest may lie in memory in four bits a weight (QLoRA).
"""

from __future__ import annotations

from typing import Any

import torch

from twinset.config import TrainingConfig
from twinset.models.hub import no_fetched_code
from twinset.models.nf4 import plain, quantised

# Queries and values, as in the LoRA paper (Hu et al. 2021, section 4.2); GPT-2 fuses them with the
# keys. A fifth of the numbers of "all-linear", so a fifth of the squared noise.
_ATTENTION = ("q_proj", "v_proj", "c_attn")


def trainable(model: Any, training: TrainingConfig) -> Any:
    """Return the model as a method trains it; the adapters' start is drawn from the run's seed."""
    if training.method == "full":
        return model
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        adapted = with_lora(model, training.lora_rank)
    return quantised(adapted) if training.method == "qlora" else adapted


@no_fetched_code()
def with_lora(model: Any, rank: int) -> Any:
    """Return the model with trainable low-rank adapters in its attention layers.

    A model whose attention goes by other names gets them on every linear layer but the output's.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    leaves = {name.rpartition(".")[2]: module for name, module in model.named_modules()}
    found = [name for name in _ATTENTION if name in leaves]
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=found or "all-linear",
        fan_in_fan_out=any(isinstance(leaves[name], Conv1D) for name in found),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def merged(model: Any) -> Any:
    """Return the plain model with the adapters added into its weights, in float32.

    Its weights ask for gradients, as those of a loaded model do: writing token by token, PyTorch
    would else copy a frozen weight for each row (`at::matmul` folds rows of one token only then).
    """
    if hasattr(model, "merge_and_unload"):
        model = plain(model).float().merge_and_unload()
    return model.requires_grad_(True)
