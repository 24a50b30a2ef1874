"""Σᵢ ĝᵢ: every unit's whole gradient, clipped, summed over a logical batch of any size.

Knows nothing of noise, sampling or accounting. It is given units and a loss, and adds. `Execution`
says how a step is computed, memory against time and number formats, never what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from twinset.privacy.clipping.gradient_uses import (
    EmbeddingUse,
    ParameterUse,
    Scale,
    UnitWeights,
    Workspace,
    accumulation_dtype,
    squares,
)
from twinset.privacy.clipping.hooks import Capture, UnsupportedModule
from twinset.privacy.clipping.output_head import HeadUse

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
    """Return whether an error says that memory ran out, so that a smaller batch may help.

    Args:
        error: of a processor's allocator, of a GPU's, or of a library of a GPU, which have no class
            of their own.
    """
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


BUFFER_NUMBERS = 1 << 26  # per-unit gradients formed at once: 256 MB of float32
LEAST_OF_TIED = 0.1  # of its two uses' squared norms, what a tied table's has unless they cancel


@dataclass(frozen=True)
class UnitReport:
    """What clipping saw, per unit of one physical batch. Private: `internal/` only.

    Args:
        losses: (B,) loss of each unit.
        norms: (B,) float64 norms before clipping; not finite where a gradient was not.
        scales: (B,) factors applied, min(1, limit / norm); 0 for a gradient that was not finite.
    """

    losses: Tensor
    norms: Tensor
    scales: Tensor


class UnitClipping:
    """Exact clipping of whole units; `ClippingEngine` and `ClassifierClipping` know their models.

    Guarantee:
        After any calls of `add`, `sums` holds Σᵢ ĝᵢ with ĝᵢ = gᵢ · min(1, C/‖gᵢ‖), where gᵢ is the
        gradient of unit i's loss with respect to *all* trained parameters: all sequences of the
        unit, all tokens, and all uses of a shared (tied) parameter. So adding or removing one unit
        changes `sums` by at most C in Euclidean norm, up to rounding (float32 products, float64
        totals), in whatever physical batches the units came. With `limits`, unit i changes it by
        at most its own limit ≤ C. After `rescale`, the same holds of gᵢ / s and Σᵢ clip(gᵢ / s),
        for any s that does not depend on the units. A unit whose gradient is not finite
        counts as zero. The unit's loss may be any function of the mean losses of its own K
        sequences; it must not look at other units, nor at draws that other units share in. With
        low-precision (bfloat16) layers the gradient that is bounded is the one they computed; norm
        and sum are formed from the same numbers in float32.

    Args:
        model: put in evaluation mode: no dropout. A `peft` wrapping is looked through.
        max_grad_norm: C; `math.inf` only for runs without privacy.
        execution: memory against time, and number formats.
        head: a module whose parameters' uses the subclass adds to the capture itself.
        rows_only: whether layers may see one vector a row, as a classifier behind a pooler does.

    Raises:
        UnsupportedModule: a trained parameter lives in a module that has no rule.
    """

    def __init__(
        self,
        model: nn.Module,
        max_grad_norm: float,
        execution: Execution = FAST,
        head: nn.Module | None = None,
        rows_only: bool = False,
    ) -> None:
        if not max_grad_norm > 0:
            raise ValueError("max_grad_norm must be above 0")
        self.max_grad_norm = max_grad_norm
        self._model = model.eval()
        self._execution = execution
        self._workspace = Workspace(execution.kept_bytes)
        self._capture = Capture(model, head, self._workspace, rows_only)
        self.parameters = self._capture.parameters
        if not self.parameters:
            raise ValueError("the model has no parameter that is to be trained")
        self._layers: CheckpointedLayers | None = None
        if execution.gradient_checkpointing:
            self.checkpoint_layers()
        self._sums = [torch.empty_like(p, dtype=accumulation_dtype(p)) for p in self.parameters]
        self._undefined = True  # what the sums hold; the first addition overwrites it

    def zero(self) -> None:
        """Start a new logical batch.

        The sums are not written: the first addition overwrites them, and `sums` of an empty batch
        are zeros.
        """
        self._undefined = True

    def rescale(self, scales: Sequence[Scale]) -> None:
        """Clip and sum gᵢ / s from now on, s being one scale for each of `parameters`.

        Raises:
            ValueError: their number or a shape is wrong, or something was added since `zero`.
        """
        if not self._undefined:
            raise ValueError("scales may change only between zero() and the first addition")
        for parameter, scale in zip(self.parameters, scales, strict=True):
            if not scale.fits(parameter.shape):
                raise ValueError(f"a scale does not fit a parameter of shape {parameter.shape}")
        ids = map(id, self.parameters)
        self._capture.scales = dict(zip(ids, scales, strict=True))

    @property
    def sums(self) -> list[Tensor]:
        """Σᵢ ĝᵢ of what was added since `zero`, one tensor for each of `parameters`."""
        if self._undefined:
            for total in self._sums:
                total.zero_()
            self._undefined = False
        return self._sums

    def checkpoint_layers(self) -> bool:
        """Keep only the inputs of layers from now on, and compute the rest twice.

        Returns:
            Whether that needs less memory than before: not where it was on already, or where the
            model has no layers that can.
        """
        if self._layers is None:
            self._layers = CheckpointedLayers(self._model, {id(p) for p in self.parameters})
            return len(self._layers) > 0
        return False

    def close(self) -> None:
        """Remove hooks; parameters are trainable by autograd again."""
        self._capture.close()
        if self._layers is not None:
            self._layers.close()

    def _clip(
        self,
        units: int,
        shape: torch.Size,
        forward: Callable[[], Tensor],
        limits: Tensor | None = None,
        filler: int = 0,
    ) -> UnitReport:
        """Add the clipped gradients of a batch's units, whose (B,) losses `forward` returns.

        Args:
            units: B.
            shape: (B·K, T) of the rows that the model reads.
            forward: runs the model, under `casting`, and its loss outside of it.
            limits: norms to clip to, one for each unit that is not filler; `None`: C.
            filler: how many units, the last ones, add nothing.
        """
        real = units - filler
        limit = torch.full((units,), self.max_grad_norm, dtype=torch.float64)
        if limits is not None:
            inside = (limits > 0) & (limits <= self.max_grad_norm)
            if limits.shape != (real,) or not bool(inside.all()):
                raise ValueError(
                    "limits must be one number for each unit, above 0 and at most max_grad_norm"
                )
            limit[:real] = limits.double()
        self._capture.begin(units, shape)
        try:
            with repeatable_kernels(self._sums[0]):
                with torch.enable_grad():
                    losses = forward()
                    losses[:real].sum().backward()  # so the filler's gradient is zero
                norms = self._norms(units)
                scales = (limit.to(norms.device) / norms).clamp(max=1.0)
                scales = torch.where(norms.isfinite(), scales, torch.zeros_like(scales))
                self._add_scaled(scales)
        finally:
            self._capture.end()
        return UnitReport(losses.detach()[:real], norms[:real], scales[:real])

    def _norms(self, units: int) -> Tensor:
        """(B,) float64 norms of the whole gradients: squares of all parameters' sums of uses."""
        squared = torch.zeros(units, dtype=torch.float64, device=self._sums[0].device)
        for parameter in self.parameters:
            squared += _squared_norms(self._uses_of(parameter), parameter.numel(), units)
        return squared.sqrt()

    def _add_scaled(self, scales: Tensor) -> None:
        """Add Σ scaleᵢ gᵢ to the sums, and let go of each parameter's uses on the way."""
        weights = UnitWeights.of(scales)
        if not weights.any_present:
            return
        for parameter, total in zip(self.parameters, self._sums, strict=True):
            beta = 0 if self._undefined else 1
            for use in self._capture.uses.pop(id(parameter)):
                use.add_to(total, weights, beta)
                beta = 1
        self._undefined = False

    def _uses_of(self, parameter: nn.Parameter) -> list[ParameterUse]:
        uses = self._capture.uses[id(parameter)]
        if not uses:
            name = next(n for n, p in self._model.named_parameters() if p is parameter)
            raise UnsupportedModule(f"{name} is trained but took no part in the loss; freeze it")
        return uses


def _squared_norms(uses: list[ParameterUse], numbers: int, units: int) -> Tensor:
    """(B,) float64, of the sum of all uses of one parameter of so many numbers."""
    match uses:
        case [use]:
            return use.squared_norms()
        case [HeadUse() as head, EmbeddingUse() as embedding] if head.ids is not None:
            return _tied_squared_norms(head, embedding)
    step = max(1, BUFFER_NUMBERS // numbers)
    spans = ((start, min(start + step, units)) for start in range(0, units, step))
    return torch.cat([squares(_sum_of_uses(uses, *span)) for span in spans])


def _tied_squared_norms(head: HeadUse, embedding: EmbeddingUse) -> Tensor:
    """(B,) float64, of a table that is output layer and embedding: ‖H‖² + ‖E‖² + 2⟨H, E⟩.

    Where H and E all but cancel, the digits of the sum are lost, and a norm read too small would be
    clipped to more than C: there the gradient is formed.
    """
    apart = head.squared_norms() + embedding.squared_norms()
    squared = apart + 2 * head.cross(embedding)
    doubtful = squared < LEAST_OF_TIED * apart
    for unit in doubtful.nonzero().squeeze(1).tolist():
        squared[unit] = squares(_sum_of_uses([head, embedding], unit, unit + 1))[0]
    return squared


def _sum_of_uses(uses: list[ParameterUse], start: int, stop: int) -> Tensor:
    total = uses[0].unit_gradients(start, stop).clone()
    for use in uses[1:]:
        total += use.unit_gradients(start, stop)
    return total
