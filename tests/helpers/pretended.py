"""A pretended device: its tensors are computed here, and may not meet the processor's unmoved.

PyTorch on `meta` refuses to mix devices, but has no values, and a step of ours reads some. So here
tensors say that they lie on `meta`, and hold their values beside. Within `pretending()`:

- `tensor.to(DEVICE)` and factories with `device=DEVICE` make them;
- an operation on some of them and on a tensor of the processor raises `Mixed`, as a GPU would,
  but for a tensor of no dimension, which a GPU takes as a number;
- copies to the processor ("copies") and reads of values ("values") are counted: each makes a GPU
  wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

from twinset.models import device

DEVICE = torch.device("meta", 0)  # with a number; libraries load models on plain `meta`
aten = torch.ops.aten
MOVES = {aten._to_copy, aten.copy_}  # between devices, as asked
# values, and tensors whose length follows from values
READS = {aten._local_scalar_dense, aten.nonzero, aten._unique2}


def exact_root(numbers: Tensor) -> Tensor:
    """A GPU's root is that of IEEE 754, as NumPy's is; a processor's in PyTorch may not be."""
    if numbers.dtype != torch.float64:  # from which nothing exact is made
        return numbers.sqrt()
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(numbers.numpy())))


EXACT = {aten.sqrt.default: exact_root}


class Mixed(RuntimeError):
    """Tensors of two devices met in one operation."""


class Pretended(Tensor):
    """A tensor that says it lies on `DEVICE`; its values are in `held`, on the processor."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Pretended({self.held})"

    def __tensor_flatten__(self):
        """Have modules swap their parameters for these in place, so that tied ones stay tied."""
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride) -> Pretended:
        return Pretended(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {}, Counter())


def computed(func, args, kwargs, reads: Counter):
    """Run an operation on what the tensors hold; refuse to mix."""
    given = tree_flatten((args, kwargs))[0]
    tensors = [t for t in given if isinstance(t, Tensor)]
    named = [d for d in given if isinstance(d, torch.device)]
    there = any(isinstance(t, Pretended) for t in tensors)
    leaves = bool(named) and named[0] != DEVICE
    if not there and (not named or leaves):
        return func(*args, **kwargs)
    strange = [t for t in tensors if not isinstance(t, Pretended) and t.dim() > 0]
    if strange and func.overloadpacket not in MOVES:
        shape = tuple(strange[0].shape)
        raise Mixed(f"{func}: a tensor {shape} of the processor on a device")
    held = tree_map_only(Pretended, lambda t: t.held, (args, kwargs))
    held = tree_map_only(torch.device, lambda _: torch.device("cpu"), held)
    found = EXACT.get(func, func)(*held[0], **held[1])
    if func.overloadpacket in READS:
        reads["values"] += 1
    if func is aten.copy_.default:
        reads["copies"] += not isinstance(args[0], Pretended)
        return args[0]
    if func is aten._to_copy.default and leaves:
        reads["copies"] += 1
        return found
    wrapped = tree_map_only(Tensor, Pretended, found)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if there else wrapped


class _Pretending(TorchDispatchMode):
    reads: Counter

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {}, self.reads)


class _Lists(TorchFunctionMode):
    """Makes tensors of lists here and moves them, and lists of tensors; `meta` has no values."""

    reads: Counter

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is Tensor.tolist and isinstance(args[0], Pretended):
            self.reads["values"] += 1
            return args[0].held.tolist()
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Pretended):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            lists = (torch.tensor(p).to(DEVICE) if isinstance(p, list) else p for p in places)
            args = (args[0], tuple(lists), *args[2:])
        return func(*args, **kwargs)


@contextmanager
def pretending() -> Iterator[Counter]:
    """Have the pretended device in the block; yield the counts of what was read from it."""

    def enter(self) -> None:
        self.before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def leave(self, *error) -> None:
        torch.set_grad_enabled(self.before)

    # inference mode keeps no gradients, and no more: it knows no tensors like these
    mode, operations, lists = torch.inference_mode, _Pretending(), _Lists()
    operations.reads = lists.reads = reads = Counter()
    with patch.object(mode, "__enter__", enter), patch.object(mode, "__exit__", leave):
        with operations, lists:
            yield reads


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Have `device=cuda` name the pretended device in the block."""
    name, fused = "_get_fused_kernels_supported_devices", [DEVICE.type]
    fused += optimizer._get_fused_kernels_supported_devices()
    monkeypatch.setattr(optimizer, name, lambda: fused)
    monkeypatch.setattr(device, "CUDA", DEVICE.type)
    monkeypatch.setattr(device, "gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    with pretending() as reads:
        yield reads
