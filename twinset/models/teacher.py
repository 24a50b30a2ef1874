"""The private teacher: linear probes on a model's hidden states that know the labels of a text.

Holds what was released with noise, and what was public before; reads no private record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COMPONENTS = 128  # of the reference texts' hidden states, at most
FEWEST_COMPONENTS = 8
RECORDS_FOR_COMPONENT = 6  # and noise multiplier: see docs/tuning.md
CONSTANT = 0.3  # stands behind each vector of length one
TEACHER = "teacher.safetensors"
LAYER = "layer"  # in it; a file without one is of a version that read the last
PHASE = "texts read by the teacher"  # as progress calls it
_SLACK = 1e-9


def components_for(records: int, noise_multiplier: float) -> int:
    """Return how many components a teacher of N records has: noise hits each of them alike.

    >>> [components_for(2500, noise) for noise in (0, 2.9, 20, 80)]
    [128, 128, 20, 8]
    """
    if not noise_multiplier:
        return COMPONENTS
    borne = records / (RECORDS_FOR_COMPONENT * noise_multiplier)
    return int(min(COMPONENTS, max(FEWEST_COMPONENTS, borne)))


@dataclass(frozen=True)
class Whitening:
    """Hidden states → vectors of length one, by statistics of texts that are not private.

    Args:
        mean: (d,) of the reference texts.
        projection: (d, c) onto their principal components, each divided by the root of its own
            deviation: half-way to white.
    """

    mean: np.ndarray
    projection: np.ndarray

    @classmethod
    def of(cls, reference: np.ndarray, components: int = COMPONENTS) -> Whitening:
        """Take the statistics of (R, d) hidden states, with so many components at most."""
        mean, scale = reference.mean(0), reference.std(0) + _SLACK
        _, singular, axes = np.linalg.svd((reference - mean) / scale, full_matrices=False)
        kept = min(components, max(1, len(reference) - 1), int((singular > _SLACK).sum()) or 1)
        deviation = np.maximum(singular[:kept], _SLACK) / max(1, len(reference) - 1) ** 0.5
        return cls(mean, axes[:kept].T / scale[:, None] / deviation**0.5)

    @property
    def numbers(self) -> int:
        """How long a vector is."""
        return self.projection.shape[1] + 1

    def __call__(self, state: np.ndarray) -> np.ndarray:
        """Return the vector (c + 1,) of one hidden state (d,), computed by itself."""
        found = (state - self.mean) @ self.projection
        return np.append(found / max(float(np.linalg.norm(found)), _SLACK), CONSTANT)


@dataclass(frozen=True)
class Teacher:
    """One logistic regression for each attribute.

    Args:
        whitenings: of each attribute's hidden states.
        weights: (K, c + 1) of each.
        layer: of the model, counted from 1, whose hidden states it knows.
    """

    whitenings: Sequence[Whitening]
    weights: Sequence[np.ndarray]
    layer: int

    def log_probabilities(self, states: np.ndarray) -> list[np.ndarray]:
        """Return log P[value | text], (K,) for each attribute, from hidden states (A, d)."""
        scores = (
            weights @ whiten(state)
            for weights, whiten, state in zip(self.weights, self.whitenings, states, strict=True)
        )
        return [each - np.logaddexp.reduce(each) for each in scores]

    def save(self, folder: Path) -> None:
        """Write it beside a model's weights."""
        from safetensors.numpy import save_file

        arrays = {
            f"{number}.{name}": np.ascontiguousarray(array, dtype=np.float64)
            for number, (whiten, weights) in enumerate(
                zip(self.whitenings, self.weights, strict=True)
            )
            for name, array in (
                ("mean", whiten.mean),
                ("projection", whiten.projection),
                ("weights", weights),
            )
        }
        save_file({**arrays, LAYER: np.array([self.layer])}, folder / TEACHER)

    @classmethod
    def load(cls, folder: Path, classes: Sequence[int], hidden: int, layers: int) -> Teacher | None:
        """Read what `save` wrote; None where there is none.

        Args:
            folder: of the model.
            classes: number of values of each attribute.
            hidden: d, of the model.
            layers: number of the model's.

        Raises:
            ValueError, KeyError: it is of other attributes, or of another model.
        """
        from safetensors.numpy import load_file

        if not (folder / TEACHER).is_file():
            return None
        arrays: dict[str, Any] = load_file(folder / TEACHER)
        (layer,) = arrays.pop(LAYER, [layers])
        parts = [
            [arrays.pop(f"{number}.{name}") for name in ("mean", "projection", "weights")]
            for number in range(len(classes))
        ]
        for (mean, projection, weights), values in zip(parts, classes, strict=True):
            shapes = mean.shape, projection.shape, weights.shape
            if shapes != ((hidden,), (hidden, weights.shape[1] - 1), (values, weights.shape[1])):
                raise ValueError
        if arrays or int(layer) not in range(1, layers + 1):
            raise ValueError
        if not all(np.isfinite(array).all() for part in parts for array in part):
            raise ValueError
        return cls(
            [Whitening(mean, to) for mean, to, _ in parts], [w for *_, w in parts], int(layer)
        )
