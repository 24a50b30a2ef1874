"""Two tables that differ in one record, made by somebody who knows everything but that record.

A differentially private step must hide the record for *any* weights and any other records. So the
attacker chooses them: a small real model whose tied table makes both uses of one token point the
same way, a record that repeats that token, and others that pull elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twinset.models.device import CPU, device_of
from twinset.privacy.clipping import Sequences

TOKENS = 6  # in a row
OTHERS = 3  # other records


@dataclass(frozen=True)
class Neighbours:
    """A model and records of two rows each; the last one is the target, present or absent.

    Args:
        model: a causal LM.
        rows: (records, 2, T) tokens.
    """

    model: Any
    rows: Tensor

    @property
    def target(self) -> int:
        """Number of the record whose presence is to be hidden."""
        return len(self.rows) - 1

    def sequences(self, units: tuple[int, ...], apart: bool = False) -> Sequences:
        """Return some records as units of two rows, or with each row a unit of its own."""
        ids = self.rows[list(units)].flatten(0, 1)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, 0] = False
        return Sequences(ids, mask, 1 if apart else self.rows.shape[1])


def worst_case(device: str = CPU) -> Neighbours:
    """Return the neighbours, the model on a device; only the token table is trained.

    Seed and target are the worst of 300 × 97: with them, a tied table's norm without its cross term
    lets a record contribute 1.38 C, and not 1.03 C as with usual weights.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=2,
        vocab_size=97,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(190)
    model: Any = GPT2LMHeadModel(shape)
    with torch.no_grad():
        model.transformer.ln_f.weight.copy_((1.5 * torch.randn(32)).exp())
        model.transformer.ln_f.bias.copy_(torch.randn(32))
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.lm_head.weight)
    target, other = (torch.full((1, 2, TOKENS), token) for token in (85, 5))
    return Neighbours(
        model.to(device_of(device)), torch.cat([other.expand(OTHERS, -1, -1), target])
    )
