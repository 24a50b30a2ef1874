"""The private teacher: linear classifiers on a model's hidden states that know a text's labels.

Holds what was released with noise and what was public before. Reads no private record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COMPONENTS = 128  # most principal components of the reference texts' hidden states
FEWEST_COMPONENTS = 8
# Records that one component needs for each unit of the noise multiplier (docs/tuning.md).
RECORDS_FOR_COMPONENT = 6
CONSTANT = 0.3  # follows each vector of length one: the intercept of the regression
TEACHER = "teacher.safetensors"
LAYER = "layer"  # a tensor in it; a file without one is of a version that read the last layer
PHASE = "texts read by the teacher"  # as progress calls it
_SLACK = 1e-9  # keeps divisions finite where reference texts are all alike


def components_for(records: int, noise_multiplier: float) -> int:
    """Return how many components a teacher has. Each one more takes the same noise.

    Args:
        records: number N of private records.
        noise_multiplier: of the teacher's release; 0 if there is no noise.

    >>> [components_for(2500, noise) for noise in (0, 2.9, 20, 80)]
    [128, 128, 20, 8]
    """
    if not noise_multiplier:
        return COMPONENTS
    affordable = records / (RECORDS_FOR_COMPONENT * noise_multiplier)
    return int(min(COMPONENTS, max(FEWEST_COMPONENTS, affordable)))


@dataclass(frozen=True)
class Whitening:
    """Hidden states → vectors of length one, by statistics of texts that are not private.

    Args:
        mean: (d,) of the reference texts.
        projection: (d, c) onto their principal components. Each is divided by the square root of
            its own deviation, which is half-way to white.
    """

    mean: np.ndarray
    projection: np.ndarray

    @classmethod
    def fit(cls, reference: np.ndarray, components: int = COMPONENTS) -> Whitening:
        """Take the statistics of reference texts.

        Args:
            reference: (R, d) hidden states.
            components: most components c; fewer if the states have a lower rank.
        """
        mean, scale = reference.mean(0), reference.std(0) + _SLACK
        _, singular, axes = np.linalg.svd((reference - mean) / scale, full_matrices=False)
        kept = min(components, max(1, len(reference) - 1), int((singular > _SLACK).sum()) or 1)
        deviation = np.maximum(singular[:kept], _SLACK) / max(1, len(reference) - 1) ** 0.5
        return cls(mean, axes[:kept].T / scale[:, None] / deviation**0.5)

    @property
    def numbers(self) -> int:
        """Length of a vector, constant included."""
        return self.projection.shape[1] + 1

    def __call__(self, state: np.ndarray) -> np.ndarray:
        """Return the vector (c + 1,) of one hidden state (d,).

        One state at a time: products of several states would round each by the others.
        """
        found = (state - self.mean) @ self.projection
        return np.append(found / max(float(np.linalg.norm(found)), _SLACK), CONSTANT)


@dataclass(frozen=True)
class Teacher:
    """One logistic regression for each attribute.

    Args:
        whitenings: one for each attribute's hidden states.
        weights: (K, c + 1) for each attribute with K values.
        layer: number of the model's layer whose hidden states it knows, counted from 1.
    """

    whitenings: Sequence[Whitening]
    weights: Sequence[np.ndarray]
    layer: int

    def log_probabilities(self, states: np.ndarray) -> list[np.ndarray]:
        """Return log P[value | text], (K,) for each attribute.

        Args:
            states: hidden states (A, d) behind the questions of one text.
        """
        scores = (
            weights @ whiten(state)
            for weights, whiten, state in zip(self.weights, self.whitenings, states, strict=True)
        )
        return [each - np.logaddexp.reduce(each) for each in scores]

    def save(self, folder: Path) -> None:
        """Write it next to a model's weights, in float64."""
        from safetensors.numpy import save_file

        arrays = {LAYER: np.array([self.layer])}
        for number, whiten in enumerate(self.whitenings):
            arrays[f"{number}.mean"] = whiten.mean
            arrays[f"{number}.projection"] = np.ascontiguousarray(whiten.projection)
            arrays[f"{number}.weights"] = np.ascontiguousarray(self.weights[number])
        save_file(arrays, folder / TEACHER)

    @classmethod
    def load(cls, folder: Path, classes: Sequence[int], hidden: int, layers: int) -> Teacher | None:
        """Read what `save` wrote, or return None if the folder has no teacher.

        Args:
            folder: of the model.
            classes: number of values of each attribute.
            hidden: width d of the model.
            layers: number of the model's layers.

        Raises:
            ValueError, KeyError: it belongs to other attributes or to another model.
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
