"""How a step is computed: memory against time, and number formats. Not what is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

KEPT_BYTES = 2 << 30


@dataclass(frozen=True)
class Execution:
    """Settings that change no clipped gradient by more than rounding.

    Args:
        kept_bytes: memory for per-unit gradients and residuals that make a step faster; 0 computes
            what is needed twice.
        gradient_checkpointing: keep of each layer only its input, and compute the rest again on the
            way back (Chen et al. 2016): a third more time.
        autocast: format of matrix products in the model, bfloat16 or float16, while the trained
            weights stay as they are; `None` computes in the weights' own.
    """

    kept_bytes: int = KEPT_BYTES
    gradient_checkpointing: bool = False
    autocast: torch.dtype | None = None

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context for the model's forward pass, and nothing else."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


FAST = Execution()


@contextmanager
def repeatable_kernels(like: Tensor) -> Iterator[None]:
    """Have a GPU add in the same order every time, and multiply float32 in float32 (no TF32).

    What has no such kernel raises: where it only warned, the backward pass of every fused attention
    would add in any order. The processor does both anyway.

    Args:
        like: a tensor where it is computed.
    """
    if like.is_cpu:
        yield
        return
    precision, strict = torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    try:
        torch.set_float32_matmul_precision("highest")
        torch.set_deterministic_debug_mode("error")
        memory.fill_uninitialized_memory = False  # all of it is written over
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_deterministic_debug_mode(strict)
        memory.fill_uninitialized_memory = fills


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether a smaller physical batch may help."""
    said = ("allocate memory", "ALLOC_FAILED")  # by a processor, and by libraries of a GPU
    return isinstance(error, torch.OutOfMemoryError) or any(some in str(error) for some in said)


class CheckpointedLayers:
    """A model's layers, made to keep only their inputs until `close`.

    The reentrant form is the one that works with hooks on outputs: it runs the layer without a
    graph first, and builds the graph that hooks see on the way back. transformers' own switch acts
    in training mode only, where layers also drop out at random.

    Args:
        model: a transformers model.
        trained: ids of the trained parameters.
    """

    def __init__(self, model: nn.Module, trained: set[int]) -> None:
        self._layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        for layer in self._layers:
            starts = any(id(p) in trained for p in layer.parameters())
            layer.forward = _checkpointed(layer.forward, starts)

    def __len__(self) -> int:
        return len(self._layers)

    def close(self) -> None:
        """Give the layers their own forward pass back."""
        for layer in self._layers:
            del layer.forward


def _checkpointed(forward: Callable[..., Any], starts: bool) -> Callable[..., Any]:
    @wraps(forward)
    def run(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and starts and not hidden.requires_grad:
            hidden = hidden.detach().requires_grad_(True)  # else no graph would reach the layer
        if not (torch.is_grad_enabled() and hidden.requires_grad):
            return forward(hidden, *args, **kwargs)
        return checkpoint(partial(forward, **kwargs), hidden, *args, use_reentrant=True)

    return run
