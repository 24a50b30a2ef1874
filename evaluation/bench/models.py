"""The models that are timed, made on the spot with random weights: speed does not depend on them.

Without dropout, which would be counted against some engines and not others.
"""

from __future__ import annotations

from typing import Any

from evaluation.bench.cases import StepCase

_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_LORA_RANK = 8

# name → (family, what differs from the family's default configuration)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-toy": (
        "GPT2",
        {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 97, "n_positions": 64},
    ),
    "llama-toy": (
        "Llama",
        {
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 97,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2-14m": ("GPT2", {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 8192}),
    "gpt2-124m": ("GPT2", {}),
    "smollm2-135m": (
        "Llama",
        {
            "num_hidden_layers": 30,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49_152,
            "max_position_embeddings": 8192,
            "rope_theta": 100_000.0,
            "tie_word_embeddings": True,
        },
    ),
}


def classes(name: str) -> tuple[Any, Any]:
    """Return the classes of the configuration and of the model."""
    import transformers

    family = MODELS[name][0]
    return getattr(transformers, f"{family}Config"), getattr(transformers, _MODEL_CLASS[family])


_MODEL_CLASS = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}


def build(case: StepCase) -> Any:
    """Return a new model, its trained parameters switched on; the same weights every time."""
    import torch

    from twinset.models.lora import with_lora

    torch.manual_seed(0)
    config_class, model_class = classes(case.model)
    family, different = MODELS[case.model]
    dropout = _NO_DROPOUT if family == "GPT2" else {}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    model = model_class(config_class(**special, **dropout, use_cache=False, **different))
    if not case.autocast:
        model = model.to(getattr(torch, case.precision))
    return with_lora(model, _LORA_RANK) if case.method == "lora" else model
