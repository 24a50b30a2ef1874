"""The models that are timed, made on the spot with random weights: speed does not depend on them.

Without dropout, which would be counted against some engines and not others.
"""

from __future__ import annotations

import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.bench.cases import StepCase

if TYPE_CHECKING:
    import torch

_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_LORA_RANK = 8

# name → (family, what differs from the family's default configuration)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (model.pop("family"), model)
    for name, model in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}


def classes(name: str) -> tuple[Any, Any]:
    """Return the classes of the configuration and of the model."""
    import transformers

    family = MODELS[name][0]
    return getattr(transformers, f"{family}Config"), getattr(transformers, _MODEL_CLASS[family])


_MODEL_CLASS = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}


def build(case: StepCase, device: torch.device | None = None) -> Any:
    """Return a new model, its trained parameters switched on; the same weights every time.

    Args:
        case: says which.
        device: that makes its weights, and where it lies; a processor takes a minute for a large
            one. None: the processor.
    """
    import torch

    from twinset.models.lora import with_lora

    torch.manual_seed(0)
    config_class, model_class = classes(case.model)
    family, different = MODELS[case.model]
    dropout = _NO_DROPOUT if family == "GPT2" else {}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    with device or nullcontext():
        model = model_class(config_class(**special, **dropout, use_cache=False, **different))
    if not case.autocast:
        model = model.to(getattr(torch, case.precision))
    return with_lora(model, _LORA_RANK) if case.method == "lora" else model
