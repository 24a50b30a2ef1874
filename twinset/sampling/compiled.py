"""A model's token step compiled by `torch.compile`, for rows alone.

Training compiles nothing: the engine that clips reads layers through hooks, which compiling loses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from twinset.errors import InputError, first_line


def compiled(model: Any) -> Callable[..., Any]:
    """Return the model's forward, compiled once for all numbers of rows and of columns.

    The first token of a process waits for it, and numbers differ from the model's in their last
    bits. What is compiled belongs to the model: asked again, nothing is compiled again.

    Args:
        model: causal LM in evaluation mode, whose weights stay as they are.

    Raises:
        InputError: nothing can be compiled here.
    """
    check_compiler(model.device)
    forward: Callable[..., Any] = torch.compile(model.forward, dynamic=True)
    return forward


@lru_cache
def check_compiler(device: torch.device) -> None:
    """Compile one addition on a device.

    Raises:
        InputError: nothing can be compiled here.
    """

    def doubled(x: Tensor) -> Tensor:
        return x + x

    try:
        torch.compile(doubled)(torch.ones(2, device=device))
    except Exception as error:  # PyTorch has a class of its own for each of a dozen reasons
        raise InputError(
            f"`engine=compiled`: PyTorch cannot compile here ({first_line(error)}); install a C++ "
            "compiler, or take `engine=torch`"
        ) from error
