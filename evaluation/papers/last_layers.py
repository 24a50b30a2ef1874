"""An encoder of which only the last layers, or none, are trained: the others read a text once.

Frozen layers turn a text into the same numbers in every step and for every way of training, so
these are kept. The gradients of what is trained are those of the whole encoder.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

Known = dict[bytes, Tensor]  # a padded text's tokens → (S or 1, d), what frozen layers make of it


def keep_last_layers(model: Any, count: int, known: Known) -> Any:
    """Return a loaded sequence classifier whose base has its last layers alone, behind the others.

    Where none is left, what follows sees the mean over a text's tokens in place of its first token,
    which no layer could adapt any more.

    Args:
        model: of the BERT family, in evaluation mode as long as it is used; changed in place.
        count: layers that are left to train; 0: none.
        known: filled with what the others make of texts; for models with the same weights only.
    """
    base = model.base_model
    below = deepcopy(base).requires_grad_(False).eval()
    at = len(base.encoder.layer) - count
    below.encoder.layer, base.encoder.layer = below.encoder.layer[:at], base.encoder.layer[at:]
    pad = int(model.config.pad_token_id or 0)
    base.embeddings = LayersBelow(below, pad, known, as_mean=count == 0)
    return model


class LayersBelow(nn.Module):
    """Stands where embeddings do; it has no parameters that a method could find and train.

    Args:
        below: the frozen layers and the embeddings.
        pad: the token that fills texts up.
        known: see `keep_last_layers`.
        as_mean: whether each place gets the mean over a text's tokens.
    """

    def __init__(self, below: Any, pad: int, known: Known, *, as_mean: bool) -> None:
        super().__init__()
        self._below, self._pad, self._known = (below,), pad, known  # a tuple is no submodule
        self._as_mean = as_mean

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        """(B, S) → (B, S, d)."""
        keys = [row.numpy().tobytes() for row in input_ids.cpu()]
        if new := [i for i, key in enumerate(keys) if key not in self._known]:
            for i, hidden in zip(new, self._read(input_ids[new]), strict=True):
                self._known[keys[i]] = hidden.clone()
        found = torch.stack([self._known[key] for key in keys]).to(input_ids.device)
        return found.expand(-1, input_ids.shape[1], -1)  # means stand for every place

    @torch.no_grad()
    def _read(self, ids: Tensor) -> Tensor:
        below, mask = self._below[0].to(ids.device), ids != self._pad
        hidden: Tensor = below(input_ids=ids, attention_mask=mask).last_hidden_state
        if not self._as_mean:
            return hidden
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
