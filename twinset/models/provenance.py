"""How a base model that `twinset pretrain` made came to be: a stage, and the stages before it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from twinset.errors import DAMAGED, InputError
from twinset.files.limits import read_text

FACTS = "pretraining.json"
Stage = Mapping[str, Any]


def facts_of(folder: Path) -> Stage | None:
    """Return what a model's folder says of its pre-training, None where it says nothing.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / FACTS
    if not path.is_file():
        return None
    try:
        facts = json.loads(read_text(path))
        list(stages(facts))
    except (*DAMAGED, AttributeError):
        raise InputError(
            f"{path}: is damaged; the base model's training data are unknown"
        ) from None
    return dict(facts)


def stages(facts: Stage | None) -> Iterator[Stage]:
    """Yield a model's stages, the newest first."""
    while facts:
        yield facts
        facts = facts.get("before")


def was_chosen(facts: Stage | None) -> bool:
    """Return whether the corpus of some stage depends on files that were kept out of it."""
    return any(stage.get("decontaminated") for stage in stages(facts))
