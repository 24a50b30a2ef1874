"""Σᵢ ĝᵢ: every unit's whole gradient, clipped, summed over a logical batch of any size.

Knows nothing of noise, sampling or accounting. It is given units and a loss, and adds. `Execution`
says how a step is computed, memory against time and number formats, never what is computed.

One forward and one backward pass leave behind each trained parameter's uses (`Capture`). Autograd
forms no weight gradients here: trained parameters are switched off, the embeddings' outputs become
the leaves of the graph, and hooks keep every layer's input and output gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from twinset.privacy.clipping.gradient_uses import (
    PLAIN,
    EmbeddingUse,
    FormedUse,
    ParameterUse,
    Scale,
    UnitWeights,
    Workspace,
    accumulation_dtype,
    matrix_use,
    squares,
)
from twinset.privacy.clipping.output_head import HeadUse

KEPT_BYTES = 2 << 30


@dataclass(frozen=True)
class Execution:
    """Settings that change no clipped gradient by more than rounding.

    Args:
        kept_bytes: memory for per-unit gradients and residuals that make a step faster; 0 computes
            what is needed twice.
        gradient_checkpointing: keep of each layer only its input, and compute the rest again on the
            way back (Chen et al. 2016). This takes a third more time.
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
    """Make a GPU add in the same order every time, and multiply float32 in float32 (no TF32).

    An operation without such a kernel raises. If it only warned, the backward pass of every fused
    attention would add in any order. The processor does both anyway.

    Args:
        like: a tensor on the device in question.
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
        error: of a processor's allocator, of a GPU's, or of a library of a GPU. They have no class
            of their own.
    """
    said = ("allocate memory", "ALLOC_FAILED")  # by a processor, and by libraries of a GPU
    return isinstance(error, torch.OutOfMemoryError) or any(some in str(error) for some in said)


# -- what the layers did ---------------------------------------------------------------------------


class UnsupportedModule(TypeError):
    """A trained parameter lives in a module whose per-unit gradient is not known."""


def is_rms_norm(module: nn.Module) -> bool:
    """Return whether it is an RMS norm (Llama family).

    Each model of transformers has a class of its own. So the name decides, and that it has a weight
    and nothing else.
    """
    return type(module).__name__.endswith("RMSNorm") and [*module._parameters] == ["weight"]


def rms_normalised(module: nn.Module, x: Tensor, scale: float = 1.0) -> Tensor:
    """Return an RMS norm's output, in the very arithmetic the module uses.

    Its whole weight is set to `scale`.
    """
    weight = torch.full_like(module._parameters["weight"], scale)  # type: ignore[arg-type]
    output = functional_call(module, {"weight": weight}, (x,))
    assert isinstance(output, Tensor)
    return output


def known_parameters(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters whose per-unit gradient `parameter_use` knows, or raise.

    Types are compared exactly: a subclass may compute something else, as scaled embeddings do.
    """
    if type(module) is nn.Embedding:
        if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
            raise UnsupportedModule("an embedding with max_norm, sparse or scale_grad_by_freq")
        return ("weight",)
    if type(module) in (nn.Linear, Conv1D):
        return "weight", "bias"
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        return "weight", "bias"
    if is_rms_norm(module):
        weight = module._parameters["weight"]
        assert weight is not None
        # The weight must be the factor itself. Gemma's normalisation has 1 + weight.
        if not rms_normalised(module, torch.ones_like(weight)[None], scale=0.0).any():
            return ("weight",)
    raise UnsupportedModule(type(module).__name__)


def parameter_use(
    module: nn.Module,
    name: str,
    a: Tensor,
    b: Tensor,
    scale: Scale,
    workspace: Workspace,
    key: object,
) -> ParameterUse:
    """Return what a module's parameter contributes to its gradient, by one pass over B units.

    `a` is the layer's input (B, S, d), or normalised (B, S, p), or (B, S) ids of a table; `b` is
    the gradient (B, S, p) of its output. `key` names this use in the workspace.
    """
    if name == "bias":
        return FormedUse(scale.per_column(b).sum(1, dtype=accumulation_dtype(b)))  # (B, p)
    if isinstance(module, nn.Linear):  # y = a Wᵀ, W (p, d)
        return matrix_use(scale.per_row(b), scale.per_column(a), workspace, key)
    if isinstance(module, Conv1D):  # GPT-2's: y = a W, W (d, p)
        return matrix_use(scale.per_row(a), scale.per_column(b), workspace, key)
    if isinstance(module, nn.Embedding):
        if module.padding_idx is not None:  # as in autograd, the padding's row gets no gradient
            b = b.masked_fill((a == module.padding_idx)[..., None], 0.0)
        b = scale.per_column(b.to(accumulation_dtype(b)))
        if scale.rows is not None:  # those of the rows that the ids name
            b = b / scale.rows[a][..., None]
        return EmbeddingUse(a, b, module.num_embeddings)
    b = scale.per_column(b)  # factors of a normalisation
    return FormedUse((a * b).sum(1, dtype=accumulation_dtype(a, b)))  # (B, p)


def _is_compiled(module: nn.Module) -> bool:
    by_call = module._compiled_call_impl is not None  # `module.compile()`
    return by_call or hasattr(module.forward, "_torchdynamo_orig_callable")


class Capture:
    """Hooks on every module that owns a trained parameter, and what they caught.

    Args:
        model: the whole model. Its trainable parameters are switched off until `close`.
        head: the output layer, whose use is `output_head.HeadUse`. It gets no hook.
        workspace: gives the uses their memory.
        rows_only: whether a layer may see (B·K, d), one vector a row. Not where a layer could see
            as many tokens of other rows instead, as an expert can.
    """

    def __init__(
        self, model: nn.Module, head: nn.Module | None, workspace: Workspace, rows_only: bool
    ) -> None:
        self._workspace, self._rows_only = workspace, rows_only
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.trained = {id(p) for p in self.parameters}
        self.uses: dict[int, list[ParameterUse]] = {}
        self.scales: dict[int, Scale] = {}
        self._units, self._shape = 0, torch.Size()
        if any(map(_is_compiled, model.modules())):
            raise UnsupportedModule(
                "a compiled model: its gradients would be wrong without an error; pass the "
                "model that `torch.compile` was given"
            )
        # All modules are known before the first hook is set: a refused model keeps none.
        owned = {}
        for name, module in model.named_modules():
            names = [n for n, p in module._parameters.items() if id(p) in self.trained]
            try:
                known = known_parameters(module) if names else ()
            except UnsupportedModule as error:
                raise UnsupportedModule(
                    f"{name} is a {error}, whose per-record gradient is not known; train with LoRA "
                    "(`method=lora`), which leaves it unchanged"
                ) from None
            if unknown := [n for n in names if n not in known]:
                raise UnsupportedModule(
                    f"{name} has unknown parameters {unknown}; use `method=lora`"
                )
            if names and module is not head:
                owned[module] = names
        self._handles = [m.register_forward_hook(partial(self._watch, n)) for m, n in owned.items()]
        for parameter in self.parameters:
            parameter.requires_grad_(False)

    def begin(self, units: int, shape: torch.Size) -> None:
        """Forget the last physical batch; hooks keep what they see from now on.

        Args:
            units: B.
            shape: (B·K, T) of the rows that the model reads.
        """
        self._workspace.begin()
        self.uses = {id(p): [] for p in self.parameters}
        self._units, self._shape = units, shape

    def end(self) -> None:
        """Stop keeping."""
        self.uses, self._units = {}, 0

    def close(self) -> None:
        """Remove all hooks and give the parameters back to autograd."""
        for handle in self._handles:
            handle.remove()
        for parameter in self.parameters:
            parameter.requires_grad_(True)

    def _watch(
        self, names: list[str], module: nn.Module, args: tuple[Tensor, ...], output: Tensor
    ) -> Tensor | None:
        """Have the uses of a module's parameters kept once the gradient of its output is known."""
        if not self._units or not torch.is_grad_enabled():
            return None
        starts_graph = not output.requires_grad
        if starts_graph:  # nothing below it is trained: no gradient is wanted there
            output = output.detach().requires_grad_(True)
        x = args[0].detach()

        def keep(grad: Tensor) -> None:
            a = x
            if isinstance(module, nn.LayerNorm):
                a = nn.functional.layer_norm(x, module.normalized_shape, eps=module.eps)
            elif is_rms_norm(module):
                a = rms_normalised(module, x)
            a, b = self._by_unit(a), self._by_unit(grad)
            for name in names:
                place = id(module._parameters[name])
                uses, scale = self.uses[place], self.scales.get(place, PLAIN)
                key = place, len(uses)
                uses.append(parameter_use(module, name, a, b, scale, self._workspace, key))

        output.register_hook(keep)
        return output if starts_graph else None

    def _by_unit(self, x: Tensor) -> Tensor:
        """(B·K, T) → (B, K·T), (B·K, T, …, d) → (B, K·T·…, d) and (B·K, d) → (B, K, d)."""
        if self._rows_only and x.dim() == 2 and len(x) == self._shape[0] and x.is_floating_point():
            return x.reshape(self._units, -1, x.shape[1])
        if x.shape[:2] != self._shape:
            raise UnsupportedModule(
                "a trained layer sees its rows shared or in another order (as experts do), so "
                "its per-record gradient is not known; train with LoRA (`method=lora`)"
            )
        return x.reshape(self._units, -1, *x.shape[2:][-1:])


def _checkpointed(forward: Callable[..., Any], starts: bool) -> Callable[..., Any]:
    """Return a layer's forward pass that keeps only its inputs.

    The reentrant form is the one that works with hooks on outputs: it runs the layer without a
    graph first, and builds the graph that hooks see on the way back. `starts` says whether one of
    the layer's parameters is trained.
    """

    @wraps(forward)
    def run(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and starts and not hidden.requires_grad:
            hidden = hidden.detach().requires_grad_(True)  # else no graph would reach the layer
        if not (torch.is_grad_enabled() and hidden.requires_grad):
            return forward(hidden, *args, **kwargs)
        return checkpoint(partial(forward, **kwargs), hidden, *args, use_reentrant=True)

    return run


# -- clipping and adding ---------------------------------------------------------------------------

BUFFER_NUMBERS = 1 << 26  # per-unit gradients formed at once: 256 MB of float32
LEAST_OF_TIED = 0.1  # a tied table's squared norm over that of its two uses, unless they cancel


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
        self._layers: list[nn.Module] = []  # those that keep only their inputs
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
        self._capture.scales = dict(zip(map(id, self.parameters), scales, strict=True))

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

        The switch of transformers acts in training mode only, where layers also drop out at random.

        Returns:
            Whether that needs less memory than before: not where it was on already, or where the
            model has no layers that can.
        """
        if self._layers:
            return False
        for layer in self._model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                starts = any(id(p) in self._capture.trained for p in layer.parameters())
                layer.forward = _checkpointed(layer.forward, starts)
                self._layers.append(layer)
        return len(self._layers) > 0

    def close(self) -> None:
        """Remove hooks; parameters are trainable by autograd again."""
        self._capture.close()
        for layer in self._layers:
            del layer.forward
        self._layers.clear()

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
        if weights.kept is not None and not len(weights.kept):
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
    """Return (B,) float64, of the sum of all uses of one parameter with that many numbers."""

    def formed(start: int, stop: int) -> Tensor:
        total = uses[0].unit_gradients(start, stop).clone()
        for use in uses[1:]:
            total += use.unit_gradients(start, stop)
        return squares(total)

    match uses:
        case [use]:
            return use.squared_norms()
        case [HeadUse() as head, EmbeddingUse() as embedding] if head.ids is not None:
            # A table that is output layer and embedding: ‖H‖² + ‖E‖² + 2⟨H, E⟩. Where H and E all
            # but cancel, the digits of the sum are lost, and a norm read too small would be clipped
            # to more than C. There the gradient is formed.
            apart = head.squared_norms() + embedding.squared_norms()
            squared = apart + 2 * head.cross(embedding)
            doubtful = squared < LEAST_OF_TIED * apart
            for unit in doubtful.nonzero().squeeze(1).tolist():
                squared[unit] = formed(unit, unit + 1)[0]
            return squared
    step = max(1, BUFFER_NUMBERS // numbers)
    return torch.cat([formed(i, min(i + step, units)) for i in range(0, units, step)])
