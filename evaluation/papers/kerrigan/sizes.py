"""How large paper 003's experiment is: for a test, for two cores and an hour, and as published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.fitting import Recipe
from evaluation.papers.kerrigan.contestants import Contestant, FeedForwardShape
from evaluation.papers.models import FolderShape, Gpt2Shape

CONTEXT = 256  # tokens of a line; those of reddit10000 have fewer than 200 words
VECTORS, NUMBERS = "feed-forward, words as vectors", "feed-forward, words as numbers"
GPT2 = "GPT-2"


@dataclass(frozen=True)
class Size:
    """How much text, and which models.

    Args:
        vocabulary: most words; None: all of the public text.
        public_lines: most lines of public text, drawn at random; None: all. So are the others.
        private_lines: most private lines to train on.
        scored_lines: most lines of each of the development and the test part.
        contestants: the models.
    """

    vocabulary: int | None
    public_lines: int | None
    private_lines: int | None
    scored_lines: int | None
    contestants: tuple[Contestant, ...]


def _contestants(
    public: Recipe, private: Recipe, hidden: tuple[int, ...], embedding: int, gpt2: Gpt2Shape
) -> tuple[Contestant, ...]:
    shapes = {
        NUMBERS: FeedForwardShape(hidden, 0),
        VECTORS: FeedForwardShape(hidden, embedding),
    }
    small = [Contestant(n, s, public, private, "small") for n, s in shapes.items()]
    return (*small, Contestant(GPT2, gpt2, public, private))


def _large(contestant: Contestant) -> Contestant:
    """Return the paper's large network for one of its small ones, trained for fewer epochs."""
    public, private = (replace(r, epochs=2) for r in (contestant.public, contestant.private))
    assert isinstance(contestant.shape, FeedForwardShape)
    shape = replace(contestant.shape, hidden=(10_000, 5_000, 1_000))
    return Contestant(f"{contestant.name}, large", shape, public, private, "large")


_SMALL = (500, 250, 50)
# The paper: Adam at 1e-3 for public text, batches of 64, five epochs of each text, two for the
# large network.
_PUBLISHED = _contestants(
    Recipe(64, 5, 1e-3), Recipe(64, 5, 1e-3), _SMALL, 64, Gpt2Shape(768, 12, 12, CONTEXT)
)
SIZES = {
    "tiny": Size(
        200,
        300,
        400,
        200,
        _contestants(
            Recipe(16, 3, 5e-3), Recipe(64, 2, 5e-3), (16, 8, 8), 8, Gpt2Shape(16, 1, 2, CONTEXT)
        ),
    ),
    "cpu": Size(
        5_000,
        40_000,
        20_000,
        2_000,
        _contestants(
            Recipe(64, 1, 1e-3), Recipe(64, 1, 1e-3), _SMALL, 64, Gpt2Shape(128, 2, 4, CONTEXT)
        ),
    ),
    "full": Size(None, None, None, None, (*_PUBLISHED, *map(_large, _PUBLISHED[:2]))),
}


def with_folder(size: Size, gpt2: Path) -> Size:
    """Return a size in which a folder's model takes the place of GPT-2 with random weights."""
    own = [replace(c, shape=FolderShape(gpt2)) if c.name == GPT2 else c for c in size.contestants]
    return replace(size, contestants=tuple(own))
