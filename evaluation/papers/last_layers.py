"""An encoder of which only the last layers are trained: what lies below reads each text once.

Frozen layers turn a text into the same numbers in every step and for every way of training, so
these are kept. The gradients of what is trained are those of the whole encoder.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

Known = dict[bytes, Tensor]  # a padded text's tokens → (S, d), what the frozen layers make of it


def keep_last_layers(model: Any, count: int, known: Known) -> Any:
    """Return a loaded sequence classifier whose base has its last layers alone, behind the others.

    Args:
        model: of the BERT family, in evaluation mode as long as it is used; changed in place.
        count: layers that are left to train.
        known: filled with what the others make of texts; for models with the same weights only.
    """
    base = model.base_model
    below = deepcopy(base).requires_grad_(False).eval()
    at = len(base.encoder.layer) - count
    below.encoder.layer, base.encoder.layer = below.encoder.layer[:at], base.encoder.layer[at:]
    base.embeddings = LayersBelow(below, int(model.config.pad_token_id or 0), known)
    return model


class LayersBelow(nn.Module):
    """Stands where embeddings do; it has no parameters that a method could find and train.

    Args:
        below: the frozen layers and the embeddings.
        pad: the token that fills texts up.
        known: see `keep_last_layers`.
    """

    def __init__(self, below: Any, pad: int, known: Known) -> None:
        super().__init__()
        self._below, self._pad, self._known = (below,), pad, known  # a tuple is no submodule

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        """(B, S) → (B, S, d)."""
        keys = [row.numpy().tobytes() for row in input_ids.cpu()]
        if new := [i for i, key in enumerate(keys) if key not in self._known]:
            for i, hidden in zip(new, self._read(input_ids[new]), strict=True):
                self._known[keys[i]] = hidden.clone()
        return torch.stack([self._known[key] for key in keys]).to(input_ids.device)

    @torch.no_grad()
    def _read(self, ids: Tensor) -> Tensor:
        below = self._below[0].to(ids.device)
        hidden: Tensor = below(input_ids=ids, attention_mask=ids != self._pad).last_hidden_state
        return hidden
