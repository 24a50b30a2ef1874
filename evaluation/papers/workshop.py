"""What a row is made in: who hears of it, and weights that several rows begin from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.fitting import Count
from twinset.progress import Progress


@dataclass(frozen=True)
class Workshop:
    """Lent to each row of an experiment in turn.

    Args:
        progress: is told what happens.
        folder: of weights that are kept until all rows are made; there may be none yet.
    """

    progress: Progress
    folder: Path

    def counting(self, what: str) -> Count:
        """Return what is to be told how many are done of `what`."""
        return lambda done, total: self.progress.count(what, done, total)

    def once(self, name: str, model: Any, train: Callable[[], object]) -> bool:
        """Bring a model's weights to what `train` makes of them, which is done once for all rows.

        Args:
            name: of these weights; it must tell all that they depend on, but the settings.
            model: a module of torch.
            train: trains it in place.

        Returns:
            Whether it was trained now.
        """
        import torch

        kept = self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.pt"
        if kept.exists():
            model.load_state_dict(torch.load(kept, weights_only=True))
            return False
        train()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        half = kept.with_suffix(".part")
        torch.save(model.state_dict(), half)
        os.replace(half, kept)
        return True
