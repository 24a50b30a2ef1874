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

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `make` returns, from the cache if it is there.

        Args:
            name: of it; it must name all that it depends on, but the settings.
            make: returns tensors and plain values by name.
        """
        import torch

        kept = self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.pt"
        if not kept.exists():
            made = make()
            self.folder.mkdir(mode=0o700, exist_ok=True)
            part = kept.with_suffix(".part")
            torch.save(made, part)
            os.replace(part, kept)
        values: dict[str, Any] = torch.load(kept, weights_only=True)
        return values

    def train_once(self, name: str, model: Any, train: Callable[[], object]) -> None:
        """Give a torch module the weights that `train`, which changes it in place, leads to."""

        def trained() -> dict[str, Any]:
            train()
            weights: dict[str, Any] = model.state_dict()
            return weights

        model.load_state_dict(self.once(name, trained))
