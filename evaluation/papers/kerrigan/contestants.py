"""The models of paper 003's experiment, and how each is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluation.fitting import Recipe
from evaluation.papers.models import Shape


@dataclass(frozen=True)
class FeedForwardShape:
    """`evaluation.papers.kerrigan.feedforward.FeedForward`.

    Args:
        hidden: units of each layer.
        embedding: length of a word's vector; 0 takes the word's number instead.
    """

    hidden: tuple[int, ...]
    embedding: int

    def fresh(self, vocabulary: int) -> Any:
        """See `Shape`."""
        from evaluation.papers.kerrigan.feedforward import FeedForward

        return FeedForward(vocabulary, self.embedding, self.hidden)

    def begun(self, vocabulary: int) -> Any:
        """See `Shape`: random weights."""
        return self.fresh(vocabulary)


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
