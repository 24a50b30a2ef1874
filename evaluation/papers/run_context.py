"""What a row is made in: its progress, and a cache of weights that several rows start from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.utility.dp_fitting import Count
from twinset.progress import Progress


@dataclass(frozen=True)
class RunContext:
    """Passed to each row of a study in turn.

    Args:
        progress: where messages and counts go.
        folder: the weight cache, removed once all rows are made; made when first needed.
    """

    progress: Progress
    folder: Path

    def counter(self, what: str) -> Count:
        """Return a callback (done, total) that shows how much of `what` is done."""
        return lambda done, total: self.progress.count(what, done, total)

    def train_once(self, name: str, model: Any, train: Callable[[], object]) -> bool:
        """Give a model the weights that `train` leads to, from the cache if they are there.

        Args:
            name: of these weights; it must name all that they depend on, but the settings.
            model: a torch module, changed in place.
            train: trains `model` in place.

        Returns:
            Whether `train` was called.
        """
        import torch

        kept = self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.pt"
        if kept.exists():
            model.load_state_dict(torch.load(kept, weights_only=True))
            return False
        train()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        part = kept.with_suffix(".part")
        torch.save(model.state_dict(), part)
        os.replace(part, kept)
        return True
