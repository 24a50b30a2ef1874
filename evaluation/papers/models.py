"""The language models of paper 003's experiment, as shapes that can be built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from evaluation.fitting import Recipe


class Shape(Protocol):
    """A model that is not yet built."""

    def fresh(self, vocabulary: int) -> Any:
        """Return the model with random weights, for so many tokens."""
        ...

    def begun(self, vocabulary: int) -> Any:
        """Return what training on public text begins from."""
        ...


@dataclass(frozen=True)
class FeedForwardShape:
    """`evaluation.papers.feedforward.FeedForward`.

    Args:
        hidden: units of each layer.
        embedding: length of a word's vector; 0 takes the word's number instead.
    """

    hidden: tuple[int, ...]
    embedding: int

    def fresh(self, vocabulary: int) -> Any:
        """See `Shape`."""
        from evaluation.papers.feedforward import FeedForward

        return FeedForward(vocabulary, self.embedding, self.hidden)

    def begun(self, vocabulary: int) -> Any:
        """See `Shape`: random weights."""
        return self.fresh(vocabulary)


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


@dataclass(frozen=True)
class Contestant:
    """A model, and how it is trained.

    Args:
        name: in the tables.
        shape: of the model.
        public: recipe for public text.
        private: recipe for private text, with noise and without.
        paper: the column of the paper's table that it answers to, if any: small or large.
    """

    name: str
    shape: Shape
    public: Recipe
    private: Recipe
    paper: str = ""


def seeded(build: Any, vocabulary: int, seed: int) -> Any:
    """Build a model from a seed, and leave the generators of others alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(vocabulary)


def parameters(shape: Shape, vocabulary: int) -> int:
    """Return how many numbers the model has, without making room for them."""
    with torch.device("meta"):
        return sum(p.numel() for p in shape.fresh(vocabulary).parameters())
