"""How large paper 000's experiment is: for a test, for two cores and an hour, and as published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evaluation.fitting import Recipe
from evaluation.papers.adp.published import (
    BATCH,
    EPOCHS,
    LAYERS,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    WIDTH,
)
from evaluation.papers.models import Gpt2Shape
from twinset.assets import SMOLLM2

DELTA = 1e-5  # the paper states none


@dataclass(frozen=True)
class Size:
    """How much text, and which model.

    Args:
        public_model: that tells how unusual a text is; an asset, a folder or a hub name.
        weighed_tokens: of its own, at the beginning of a text, that it is shown.
        scale_lines: most public lines that the constants of privacy weights are fitted on.
        vocabulary: most tokens of the language model, taken from the public text.
        public_lines: most public lines that the vocabulary is taken from; None: all.
        private_lines: most lines to train on; None: all.
        scored_lines: most lines of the test part; None: all.
        shape: of the language model.
        recipe: how it is trained, with noise and without.
        candidates: secrets of a random sample that exposure is taken from; None ranks all.
        trials: outputs with and without a record that an attack sees.
    """

    public_model: str
    weighed_tokens: int
    scale_lines: int
    vocabulary: int
    public_lines: int | None
    private_lines: int | None
    scored_lines: int | None
    shape: Gpt2Shape
    recipe: Recipe
    candidates: int | None
    trials: int

    @property
    def weigher(self) -> str:
        """Name of the public model, without the path of a folder."""
        folder = Path(self.public_model).expanduser()
        return f"the folder {folder.name}" if folder.is_dir() else self.public_model


SIZES = {
    "tiny": Size(
        public_model=SMOLLM2.name,
        weighed_tokens=16,
        scale_lines=24,
        vocabulary=300,
        public_lines=200,
        private_lines=120,
        scored_lines=60,
        shape=Gpt2Shape(16, 1, 2, 24),
        recipe=Recipe(64, 2, 1e-2),
        candidates=100,
        trials=300,
    ),
    "cpu": Size(
        public_model=SMOLLM2.name,
        weighed_tokens=32,
        scale_lines=400,
        vocabulary=2048,
        public_lines=20_000,
        private_lines=6_000,
        scored_lines=1_000,
        shape=Gpt2Shape(128, 2, 4, 32),
        recipe=Recipe(256, 4, 3e-3),
        candidates=2_000,
        trials=3_000,
    ),
    "full": Size(
        public_model="gpt2-large",
        weighed_tokens=512,
        scale_lines=10_000,
        vocabulary=50_257,
        public_lines=None,
        private_lines=None,
        scored_lines=None,
        shape=Gpt2Shape(WIDTH, LAYERS, 16, 512),
        recipe=Recipe(BATCH, EPOCHS, LEARNING_RATE, MAX_GRAD_NORM),
        candidates=None,
        trials=20_000,
    ),
}
