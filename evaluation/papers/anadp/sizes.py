"""How large paper 001's experiment is: for a test, for two cores and an hour, and as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evaluation.embeddings import ASSET
from evaluation.fitting import Recipe
from evaluation.papers.anadp.published import ENCODER, EPOCHS, MAX_GRAD_NORM
from evaluation.papers.anadp.tuning import ADAPTERS, FULL, LORA
from evaluation.papers.models import Gpt2Shape


@dataclass(frozen=True)
class Recipes:
    """How a method learns: the rates differ, for noise wants another one than none."""

    bare: Recipe
    private: Recipe


@dataclass(frozen=True)
class Size:
    """How much text, and which models.

    Args:
        encoder: that is fine-tuned: folder or hub name; None: the pinned MiniLM.
        tables: whether full fine-tuning trains its tables of tokens and positions too.
        tokens: that a labelled text is cut at.
        rows: most rows of a set to train on; None: all.
        scored_rows: most rows of a set to test on; None: all.
        recipes: by method.
        vocabulary: most tokens of the language model, taken from the public text.
        public_lines: most public lines; None: all.
        shape: of the language model.
        begun: how it learns the public lines.
        passages: most passages of e-mails to train on; None: all.
        recipe: how it learns them, with noise and without.
        candidates: numbers that each telephone number is compared with.
        scored_numbers: most telephone numbers scored.
        trials: outputs with and without a record that an attack sees.
    """

    encoder: str | None
    tables: bool
    tokens: int
    rows: int | None
    scored_rows: int | None
    recipes: Mapping[str, Recipes]
    vocabulary: int
    public_lines: int | None
    shape: Gpt2Shape
    begun: Recipe
    passages: int | None
    recipe: Recipe
    candidates: int
    scored_numbers: int
    trials: int

    @property
    def encoder_name(self) -> str:
        """Name of the encoder, without the path of a folder."""
        if self.encoder is None:
            return ASSET
        folder = Path(self.encoder).expanduser()
        return f"the folder {folder.name}" if folder.is_dir() else self.encoder


def _recipes(
    epochs: float, norm: float, methods: Mapping[str, tuple[int, float, float]]
) -> dict[str, Recipes]:
    """Return recipes by method: expected batch, learning rate without noise, and with it."""
    return {
        method: Recipes(*(Recipe(batch, epochs, rate, norm) for rate in rates))
        for method, (batch, *rates) in methods.items()
    }


SIZES = {
    "tiny": Size(
        encoder=None,
        tables=False,
        tokens=16,
        rows=120,
        scored_rows=60,
        recipes=_recipes(
            1, 1.0, {FULL: (16, 1e-3, 1e-3), LORA: (16, 3e-3, 3e-3), ADAPTERS: (16, 3e-3, 3e-3)}
        ),
        vocabulary=400,
        public_lines=200,
        shape=Gpt2Shape(16, 1, 2, 64),
        begun=Recipe(32, 1, 1e-2),
        passages=60,
        recipe=Recipe(16, 3, 1e-2),
        candidates=50,
        scored_numbers=10,
        trials=1_000,
    ),
    "cpu": Size(
        encoder=None,
        tables=False,
        tokens=24,
        rows=3_600,
        scored_rows=500,
        # A step of noise for all of the encoder is dear: fewer of them, of larger batches.
        recipes=_recipes(
            0.3, 1.0, {FULL: (48, 5e-4, 5e-4), LORA: (16, 1e-3, 1e-3), ADAPTERS: (16, 1e-3, 1e-3)}
        ),
        vocabulary=2_048,
        public_lines=6_000,
        shape=Gpt2Shape(128, 2, 4, 64),
        begun=Recipe(64, 1, 3e-3),
        passages=500,
        recipe=Recipe(100, 20, 3e-3),
        candidates=300,
        scored_numbers=60,
        trials=3_000,
    ),
    # The paper states neither batches nor learning rates, nor where it cuts texts.
    "full": Size(
        encoder=ENCODER,
        tables=True,
        tokens=128,
        rows=None,
        scored_rows=None,
        recipes=_recipes(
            EPOCHS,
            MAX_GRAD_NORM,
            {FULL: (1_024, 1e-5, 5e-4), LORA: (1_024, 3e-4, 1e-3), ADAPTERS: (1_024, 3e-4, 1e-3)},
        ),
        vocabulary=50_257,
        public_lines=None,
        shape=Gpt2Shape(768, 12, 12, 128),
        begun=Recipe(64, 5, 3e-4),
        passages=None,
        recipe=Recipe(256, EPOCHS, 3e-4, MAX_GRAD_NORM),
        candidates=2_000,
        scored_numbers=500,
        trials=20_000,
    ),
}
