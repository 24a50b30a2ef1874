"""Language models as shapes that can be built; those of one paper alone are in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch


class Shape(Protocol):
    """A model that is not yet built."""

    def fresh(self, vocabulary: int) -> Any:
        """Return the model with random weights, for so many tokens."""
        ...

    def begun(self, vocabulary: int) -> Any:
        """Return what training on public text begins from."""
        ...


@dataclass(frozen=True)
class Gpt2Shape:
    """GPT-2 of any size.

    Args:
        width: of its layers.
        layers: how many.
        heads: in each.
        context: most tokens it reads.
    """

    width: int
    layers: int
    heads: int
    context: int

    def fresh(self, vocabulary: int) -> Any:
        """See `Shape`."""
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=self.context,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            bos_token_id=0,
            eos_token_id=0,
        )
        return GPT2LMHeadModel(config)

    def begun(self, vocabulary: int) -> Any:
        """See `Shape`: random weights."""
        return self.fresh(vocabulary)


@dataclass(frozen=True)
class FolderShape:
    """A trained GPT-2 with tokens of its own, from which training on public text begins.

    Args:
        folder: that transformers can read.
    """

    folder: Path

    def fresh(self, vocabulary: int) -> Any:
        """See `Shape`: the same shape with random weights."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(self.folder, local_files_only=True)
        return AutoModelForCausalLM.from_config(config).float()

    def begun(self, vocabulary: int) -> Any:
        """See `Shape`: the folder's weights."""
        from twinset.basemodel import load_base

        return load_base(str(self.folder)).model.float()


def seeded(build: Any, vocabulary: int, seed: int) -> Any:
    """Build a model from a seed, and leave the generators of others alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(vocabulary)


def parameters(shape: Shape, vocabulary: int) -> int:
    """Return how many numbers the model has, without making room for them."""
    with torch.device("meta"):
        return sum(p.numel() for p in shape.fresh(vocabulary).parameters())
