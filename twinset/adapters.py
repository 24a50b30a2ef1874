"""LoRA through `peft`: few trained numbers, hence little noise, and a backward pass that skips the rest."""

from __future__ import annotations

from typing import Any


def with_lora(model: Any, rank: int) -> Any:
    """Return the model with trainable low-rank adapters on every linear layer but the output's."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def merged(model: Any) -> Any:
    """Return the plain model with the adapters added into its weights, in float32."""
    return model.float().merge_and_unload() if hasattr(model, "merge_and_unload") else model
