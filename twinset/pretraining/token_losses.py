"""What each token costs a causal language model, in nats; faster where its output layer is frozen.

Then logits are made, used and overwritten piece by piece: of 4096 tokens of a vocabulary of 49,152
they would fill 800 MB, several times over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from twinset.privacy.clipping.gradient_uses import Workspace
from twinset.privacy.clipping.output_head import HeadUse, TokenNLL, piece_of, whole_pieces


class TokenLosses(nn.Module):
    """Token losses of blocks, as a module: processes share the gradients of what is called.

    Args:
        model: causal LM, or its `peft` wrapping.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._workspace = Workspace(0)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the nats of each token but a block's first, in float32: (B, T) → (B · (T-1),)."""
        targets = ids[:, 1:].flatten()
        weight = self.model.get_output_embeddings().weight
        if weight.requires_grad:
            logits = self.model(input_ids=ids).logits[:, :-1]
            return cross_entropy(logits.flatten(0, 1).float(), targets, reduction="none")
        plain = self.model.get_base_model()
        hidden = plain.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return self._of_frozen(hidden[:, :-1].flatten(0, 1), weight, targets)

    def _of_frozen(self, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Return (N,) losses; hidden (N, d), weight (V, d), targets (N,)."""
        tokens = len(targets)
        more = whole_pieces(tokens, piece_of(tokens)) - tokens
        hidden, targets = pad(hidden, (0, 0, 0, more)), pad(targets, (0, more))
        head = HeadUse(
            hidden.detach(), weight, targets, [0, tokens], self._workspace, False, room=tokens
        )
        if torch.is_grad_enabled():
            losses: Tensor = TokenNLL.apply(hidden, weight, head)
        else:
            losses = torch.cat([head.look(piece)[0] for piece in head.pieces(0, len(hidden))])
        return losses[:tokens]
