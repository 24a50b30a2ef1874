"""Gaussian noise added to tensors. Knows no policy: what the noise is worth is for the caller."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from twinset.privacy.randomness import Randomness

if TYPE_CHECKING:
    import torch


def add_gaussian_(tensor: torch.Tensor, std: float, randomness: Randomness) -> torch.Tensor:
    """Add independent N(0, std²) to every element, in place, and return the tensor.

    The draws are made on the CPU in the tensor's own precision and then moved to its device.

    Guarantee: for a sum that adding or removing one record changes by at most C in L2 norm,
    std = σC makes this the Gaussian mechanism of noise multiplier σ, over real numbers. That
    floating-point numbers are not real numbers (Mironov 2012, "On significance of the least
    significant bits") is not covered.

    Args:
        tensor: float32 or float64, of any shape and on any device.
        std: standard deviation, finite and at least 0.
        randomness: its noise stream is used.

    Raises:
        TypeError: the tensor is of another precision; noise rounded to 8 bits is not Gaussian.
        ValueError: the standard deviation is negative or not finite.
    """
    import torch

    dtypes: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
    if tensor.dtype not in dtypes:
        raise TypeError(f"noise is added to float32 or float64 tensors only, not {tensor.dtype}")
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"the standard deviation must be finite and at least 0, not {std}")
    draws = randomness.noise.standard_normal(tuple(tensor.shape), dtype=dtypes[tensor.dtype])
    with torch.no_grad():
        return tensor.add_(torch.as_tensor(draws, device=tensor.device), alpha=std)
