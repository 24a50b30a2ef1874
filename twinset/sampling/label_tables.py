"""Files of numbers by label value and token: one table (K, V) an attribute, beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def as_kept(tables: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what `load_tables` gives back: a model is the same when it is loaded again."""
    return [each.astype(np.float16).astype(np.float32) for each in tables]


def save_tables(path: Path, tables: Sequence[np.ndarray]) -> None:
    """Write them."""
    from safetensors.numpy import save_file

    save_file({str(i): each.astype(np.float16) for i, each in enumerate(tables)}, path)


def load_tables(
    path: Path, classes: Sequence[int], vocabulary: int, largest: float
) -> list[np.ndarray] | None:
    """Read what `save_tables` wrote, in float32; None where there is none.

    Args:
        path: of the file.
        classes: number of values K of each attribute.
        vocabulary: V, of the model.
        largest: that any number may be.

    Raises:
        ValueError: they are of other attributes or another model, or no run writes such numbers.
    """
    from safetensors.numpy import load_file

    if not path.is_file():
        return None
    arrays = load_file(path)
    shapes = {str(i): (values, vocabulary) for i, values in enumerate(classes)}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise ValueError(f"{path.name}: of other labels")
    if not all((np.abs(array) <= largest).all() for array in arrays.values()):
        raise ValueError(f"{path.name}: as no run writes it")
    return [arrays[str(i)].astype(np.float32) for i in range(len(shapes))]
