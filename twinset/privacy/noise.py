"""Gaussian noise added to tensors. Knows no policy: what the noise is worth is for the caller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from twinset.privacy.gaussian import Gaussian
from twinset.privacy.keystream import KeyStream
from twinset.privacy.randomness import Randomness

if TYPE_CHECKING:
    import torch

AT_ONCE = 1 << 16
THREADS_FROM = 1 << 20  # numbers


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
        randomness: its noise streams are used, all of them at once where there is much to draw.

    Raises:
        TypeError: the tensor is of another precision; noise rounded to 8 bits is not Gaussian.
        ValueError: the standard deviation is negative or not finite.
    """
    import torch

    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise is added to float32 or float64 tensors only, not {tensor.dtype}")
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"the standard deviation must be finite and at least 0, not {std}")
    with torch.no_grad():
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            _add(tensor.detach().view(-1).numpy(), std, randomness.noise)
            return tensor
        draws = torch.zeros(tensor.shape, dtype=tensor.dtype)
        _add(draws.view(-1).numpy(), std, randomness.noise)
        return tensor.add_(draws.to(tensor.device))


def _add(numbers: np.ndarray, std: float, streams: Sequence[KeyStream]) -> None:
    """Give every stream its part of the numbers, side by side; the first one all of a few."""
    import torch

    if len(numbers) < THREADS_FROM:
        return _add_part(numbers, std, streams[0])
    parts = np.array_split(numbers, len(streams))
    with ThreadPoolExecutor(min(len(streams), torch.get_num_threads())) as pool:
        list(pool.map(_add_part, parts, repeat(std), streams))


def _add_part(numbers: np.ndarray, std: float, stream: KeyStream) -> None:
    """Draw some at a time; no second array of all numbers is ever made."""
    gaussian = Gaussian(stream, numbers.dtype, min(AT_ONCE, len(numbers)))
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE]
        draws = gaussian.draw(len(some))
        draws *= std
        some += draws
