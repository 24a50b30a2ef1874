"""What of an encoder is trained: all of it, LoRA, or bottleneck adapters; always its head too.

LoRA is that of `peft`. Adapters in the sense of Houlsby et al. 2019 it does not have; they are made
of plain linear layers here, so that the clipping engine knows every trained parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import gelu

from twinset.fetchedcode import no_fetched_code

FULL, LORA, ADAPTERS = "full fine-tuning", "LoRA", "adapters"
METHODS = (FULL, LORA, ADAPTERS)

# All linear layers of attention and feed-forward network, as in Yu et al. 2021 (the paper's
# appendix), by their names in models of the BERT family.
_LINEAR = r".*\.encoder\.layer\.\d+\..*(query|key|value|dense)"


@dataclass(frozen=True)
class Tuning:
    """Makes of a loaded sequence classifier what is trained.

    Args:
        method: one of `METHODS`.
        rank: of LoRA and adapters.
        tables: whether full fine-tuning trains the tables of tokens, positions and types too.
    """

    method: str
    rank: int
    tables: bool = True

    def __call__(self, model: Any) -> Any:
        """Return the model with exactly the wanted parameters trainable."""
        if self.method == LORA:
            return _with_lora(model, self.rank)
        if self.method == ADAPTERS:
            return _with_adapters(model, self.rank)
        model.base_model.embeddings.requires_grad_(self.tables)
        return model


class Bottleneck(nn.Module):
    """h + U gelu(D h) of a layer's output h: (…, d) through rank numbers; nothing at the start.

    Source: Houlsby et al. 2019, section 2.1.

    Args:
        layer: whose output it is.
        rank: numbers between D and U.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.out_features, rank)
        self.up = nn.Linear(rank, layer.out_features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d_in) → (…, d)."""
        h: Tensor = self.layer(x)
        change: Tensor = self.up(gelu(self.down(h)))
        return h + change


@no_fetched_code()
def _with_lora(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=_LINEAR,
        modules_to_save=_head(model),
        task_type="SEQ_CLS",
    )
    return get_peft_model(model, config)


def _with_adapters(model: Any, rank: int) -> Any:
    """Put one behind attention and one behind the feed-forward network of each layer."""
    model.requires_grad_(False)
    for layer in model.base_model.encoder.layer:
        for part in (layer.attention.output, layer.output):
            part.dense = Bottleneck(part.dense, rank)
            part.LayerNorm.requires_grad_(True)  # as in the source
    for name in _head(model):
        for parent in (model, model.base_model):
            if (part := getattr(parent, name, None)) is not None:
                part.requires_grad_(True)
    return model


def _head(model: Any) -> list[str]:
    """Return the names of what stands behind the layers; BERT has a part of it in the encoder."""
    has_pooler = getattr(model.base_model, "pooler", None) is not None
    return ["classifier", *(["pooler"] if has_pooler else [])]
