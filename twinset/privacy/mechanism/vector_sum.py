"""A noisy sum of one bounded vector a unit, added up in whole numbers: exact, in any order."""

from __future__ import annotations

import numpy as np

from twinset.privacy.mechanism.noise import add_gaussian_
from twinset.privacy.mechanism.randomness import Randomness

UNIT_STEPS = 1 << 24  # of the grid that vectors are rounded to, in a length of one
_SLACK = 1 - 1e-9  # for the rounding of a norm


class VectorSum:
    """Adds up vectors of at most length one, one for each unit, and releases the sum with noise.

    Args:
        length: n, of a vector.
    """

    def __init__(self, length: int) -> None:
        self._sum = np.zeros(length, np.int64)

    def add(self, vectors: np.ndarray) -> None:
        """Add the vectors of k units, each scaled down to length one where it is longer.

        Args:
            vectors: (k, n) float64. A row with a number that is not finite counts as zero.
        """
        norms = np.sqrt(np.square(vectors).sum(1))
        scales = UNIT_STEPS * np.minimum(1.0, _SLACK / np.maximum(norms, 1e-300))
        known = np.isfinite(norms)
        exact = vectors[known] * scales[known, None]
        self._sum += np.trunc(exact).astype(np.int64).sum(0)  # towards 0: no longer

    def add_at(self, places: np.ndarray, values: np.ndarray) -> None:
        """Add the vector of one unit that is zero but for `values` (k,) at distinct `places`."""
        norm = float(np.sqrt(np.square(values).sum()))
        scale = UNIT_STEPS * min(1.0, _SLACK / max(norm, 1e-300))
        self._sum[places] += np.trunc(values * scale).astype(np.int64)

    def release(self, noise_multiplier: float, randomness: Randomness) -> np.ndarray:
        """Return the sum (n,) with noise N(0, σ²) on each number.

        Guarantee: each unit adds one vector of a length of at most one, which is a function of it
        alone and of what is public or was released before. Whole numbers are added without
        rounding, so adding or removing a unit changes the sum by that vector and nothing else, and
        this is one Gaussian release of multiplier σ (`noise.add_gaussian_`). With σ = 0 nothing is
        guaranteed.

        Args:
            noise_multiplier: σ.
            randomness: its noise streams are used.
        """
        import torch

        noisy = torch.from_numpy(self._sum.astype(np.float64) / UNIT_STEPS)
        return add_gaussian_(noisy, noise_multiplier, randomness).numpy()
