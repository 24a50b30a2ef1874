"""Memory that is kept from one physical batch to the next.

Fresh pages cost more than the arithmetic done on them: a gradient buffer taken anew for every
physical batch made the step up to 88 % slower on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor


class Workspace:
    """Named buffers that grow and are never given back, and a budget for what outlives a layer.

    Args:
        budget: bytes that formed gradients and residuals of one physical batch may occupy.
    """

    def __init__(self, budget: int) -> None:
        self._budget, self._left = budget, budget
        self._buffers: dict[tuple[Hashable, torch.dtype], Tensor] = {}

    def begin(self) -> None:
        """Start a physical batch: what was reserved is free again."""
        self._left = self._budget

    def reserve(self, numbers: int, dtype: torch.dtype) -> bool:
        """Return whether so many numbers may be kept until the end of this physical batch."""
        wanted = numbers * dtype.itemsize
        if wanted > self._left:
            return False
        self._left -= wanted
        return True

    def take(self, name: Hashable, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of undefined content, valid until `name` is next asked for."""
        numbers, key = math.prod(shape), (name, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < numbers:
            buffer = torch.empty(numbers, dtype=like.dtype, device=like.device)
            self._buffers[key] = buffer
        return buffer[:numbers].view(shape)
