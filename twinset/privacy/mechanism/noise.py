"""Gaussian noise added to tensors. Knows no policy: what the noise is worth is for the caller."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from twinset.privacy.mechanism.gaussian_grid import GaussianGrid, Scale, grid_step
from twinset.privacy.mechanism.randomness import Randomness

if TYPE_CHECKING:
    import torch

THREADS_FROM = 1 << 20  # numbers
LEAST_STD, LARGEST_STD = 1e-30, 1e30  # the grid's steps are exact in float32


def add_gaussian_(
    tensor: torch.Tensor,
    std: float,
    randomness: Randomness,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add independent N(0, std²) to every element, round to a grid, in place; return the tensor.

    The grid's step is the largest power of two that is at most std / 64. What is not finite stays.
    All is computed on the CPU in the tensor's own precision, and moved to its device.

    Guarantee: for a sum that adding or removing one unit changes by at most C in L2 norm, std = σC
    makes this the Gaussian mechanism of noise multiplier σ with post-processing, for that unit and
    relation, *as computed*: each element is the multiple of the step nearest to S + std · Z for the
    sum S as it stands in memory and a real Gaussian Z, so that its last bits tell nothing more
    (`gaussian_grid`). With scales it is that of the least scale. It rests on independent uniform
    bits, and on the C of the sum as computed, its own rounding included. With std = 0 there is no
    noise, no rounding and no guarantee.

    Args:
        tensor: float32 or float64, of any shape and on any device.
        std: standard deviation; 0, or from 1e-30 to 1e30.
        randomness: its noise streams are used, all of them at once where there is much to draw.
        scales: as many, above 0, functions of what was released before: each element has its own
            standard deviation, std times its scale, and its own grid, which follows from that.

    Raises:
        TypeError: the tensor is of another precision; noise rounded to 8 bits is not Gaussian.
        ValueError: a standard deviation is out of range.
    """
    import torch

    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"noise is added to float32 or float64 tensors only, not {tensor.dtype}")
    stds = _stds(std, scales)
    if std == 0:
        return tensor
    with torch.no_grad():
        flat = tensor.detach().cpu().contiguous().view(-1)
        _add(flat.numpy(), stds, randomness)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view(tensor.shape))
    return tensor


def _stds(std: float, scales: torch.Tensor | None) -> Scale:
    """Return one for all, or (n,) of float64; zero for no noise."""
    if scales is None:
        stds = np.array(std, dtype=np.float64)
    else:
        stds = std * scales.detach().cpu().double().contiguous().view(-1).numpy()
    if not (std == 0 or ((stds >= LEAST_STD) & (stds <= LARGEST_STD)).all()):
        raise ValueError(
            f"a standard deviation must be 0, or from {LEAST_STD:g} to {LARGEST_STD:g}, not {std}"
        )
    return float(std) if scales is None else stds


def _add(numbers: np.ndarray, std: Scale, randomness: Randomness) -> None:
    """Give every stream its part of the numbers, side by side; the first one all of a few."""
    import torch

    grids = list(map(GaussianGrid, randomness.noise, randomness.refinement))
    if len(numbers) < THREADS_FROM:
        return grids[0].add(numbers, std, grid_step(std))
    parts = np.array_split(numbers, len(grids))
    stds = np.array_split(std, len(grids)) if isinstance(std, np.ndarray) else [std] * len(grids)
    with ThreadPoolExecutor(min(len(grids), torch.get_num_threads())) as pool:
        list(pool.map(GaussianGrid.add, grids, parts, stds, map(grid_step, stds)))
