"""Σᵢ ĝᵢ: every unit's whole gradient, clipped, summed over a logical batch of any size.

This module knows nothing of noise, sampling or accounting. It takes units and a loss, and adds up
their clipped gradients. `Execution` decides how a step is computed (memory against time, number
formats), but never the result.

One forward and one backward pass leave each trained parameter's uses behind (`gradient_uses`).
Autograd forms no weight gradients here. Trained parameters are switched off, the embeddings'
outputs become the leaves of the graph, and hooks keep every layer's input and output gradient.

`ClippingEngine` clips causal language models, where each token is predicted from those before it.
`ClassifierClipping` clips encoders of the BERT family with one label per row.

A kernel chooses its blocks by the shape of what it multiplies, and rounds each row accordingly. In
bfloat16, an added record in a physical batch would change every other gradient by percents of C,
which no theorem covers. At a constant shape the arithmetic of each row is the same wherever it
stands. So all physical batches of units of one size have one shape, with filler for missing units.
Products over tokens of several units come in pieces of one size.
`twinset.models.layers.batch_interference` tests the machine for this, shape by shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, pad
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from twinset.privacy.clipping.gradient_uses import (
    PLAIN,
    FeatureFactors,
    Kept,
    Scale,
    UnsupportedModule,
    Workspace,
    accumulation_dtype,
    known_parameters,
    parameter_use,
    repeatable_kernels,
    rms_normalised,
)
from twinset.privacy.clipping.output_head import (
    HeadUse,
    ParameterUse,
    TokenNLL,
    squared_norms,
    whole_pieces,
)

KEPT_BYTES = 2 << 30
SLACK = 1 - 1e-5  # of a limit: room for the rounding of norms and sums


@dataclass(frozen=True)
class Execution:
    """Settings that change no clipped gradient by more than rounding.

    Args:
        kept_bytes: memory for per-unit gradients and residuals that make a step faster. With 0,
            some of them are computed twice.
        gradient_checkpointing: keep only the input of each layer, and compute the rest again in
            the backward pass (Chen et al. 2016). This takes a third more time.
        autocast: format of matrix products in the model, bfloat16 or float16. The trained weights
            keep their own format. `None` computes in that of the weights.
    """

    kept_bytes: int = KEPT_BYTES
    gradient_checkpointing: bool = False
    autocast: torch.dtype | None = None

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context for the model's forward pass only."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


FAST = Execution()


@dataclass(frozen=True)
class UnitReport:
    """Figures of clipping per unit of one physical batch. Private: `internal/` only.

    Args:
        losses: (B,) loss of each unit.
        norms: (B,) float64 norms before clipping, rounded up. Not finite if a gradient was not.
        scales: (B,) factors applied, min(1, SLACK · limit / norm). 0 if a gradient was not
            finite.
    """

    losses: Tensor
    norms: Tensor
    scales: Tensor


class UnitClipping:
    """Exact clipping of whole units. `ClippingEngine` and `ClassifierClipping` know their models.

    Guarantee:
        After any calls of `add`, `sums` holds Σᵢ ĝᵢ with ĝᵢ = gᵢ · min(1, C(1 - 1e-5)/‖gᵢ‖). gᵢ is
        the gradient of unit i's loss with respect to *all* trained parameters: all sequences of
        the unit, all tokens, and all uses of a shared (tied) parameter. So adding or removing
        one unit changes `sums` by at most C in Euclidean norm, with 1e-5 C of room for rounding
        (float32 products, float64 totals), for any split into physical batches. Where a gradient's
        terms cancel, ‖gᵢ‖ is first raised by what their rounding may hide. With `limits`,
        unit i changes it by at most its own limit ≤ C. After `rescale`, the same is true of
        gᵢ / s and Σᵢ clip(gᵢ / s), for any s that does not depend on the units. A unit whose
        gradient is not finite counts as zero. The unit's loss may be any function of the mean
        losses of its own K sequences. It must not look at other units, nor at draws shared with
        other units. With low-precision (bfloat16) layers the bounded gradient is the one that
        they computed. Norm and sum are formed from the same numbers in float32.

    Args:
        model: put in evaluation mode: no dropout. A `peft` wrapping is looked through.
        max_grad_norm: C. `math.inf` only for runs without privacy.
        execution: memory against time, and number formats.
        head: the output layer, whose use the subclass adds (`output_head`). It has no hook.
        rows_only: whether a layer may see (B·K, d), one vector per row, as a classifier behind a
            pooler does. False if that could also be the same number of tokens of other rows, as
            in an expert layer.

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
        self.max_grad_norm, self._execution = max_grad_norm, execution
        self._model, self._rows_only = model.eval(), rows_only
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._trained = {id(p) for p in self.parameters}
        if not self.parameters:
            raise ValueError("the model has no parameter that is to be trained")
        if any(
            m._compiled_call_impl is not None or hasattr(m.forward, "_torchdynamo_orig_callable")
            for m in model.modules()  # by `module.compile()`, and by `torch.compile(...)`
        ):
            raise UnsupportedModule(
                "a compiled model would give wrong gradients without an error. Pass the model "
                "that `torch.compile` was given."
            )
        # All modules are known before the first hook is set: a refused model keeps none.
        owned = {}
        for name, module in model.named_modules():
            names = [n for n, p in module._parameters.items() if id(p) in self._trained]
            try:
                known = known_parameters(module) if names else ()
            except UnsupportedModule as error:
                raise UnsupportedModule(
                    f"{name} is a {error}, whose per-record gradient is not known. Train with LoRA "
                    "(`method=lora`), which leaves it unchanged."
                ) from None
            if unknown := [n for n in names if n not in known]:
                raise UnsupportedModule(
                    f"{name} has unknown parameters {unknown}. Use `method=lora`."
                )
            if names and module is not head:
                owned[module] = names
        self._handles = [m.register_forward_hook(partial(self._watch, n)) for m, n in owned.items()]
        for parameter in self.parameters:
            parameter.requires_grad_(False)

        self._workspace = Workspace(execution.kept_bytes)
        self._scales: dict[int, Scale] = {}  # by the id of a parameter, as `_uses`
        self._uses: dict[int, list[ParameterUse]] = {}  # of the physical batch
        self._units, self._shape = 0, torch.Size()  # B and (B·K, T). With 0 the hooks keep nothing
        self._sums = [torch.empty_like(p, dtype=accumulation_dtype(p)) for p in self.parameters]
        self._undefined = True  # whether the sums are unset (the first addition writes)
        self._layers: list[nn.Module] = []  # those that keep only their inputs
        if execution.gradient_checkpointing:
            self.checkpoint_layers()

    def zero(self) -> None:
        """Start a new logical batch.

        The sums are not written, because the first addition overwrites them. `sums` of an empty
        batch are zeros.
        """
        self._undefined = True

    def rescale(self, scales: Sequence[Scale]) -> None:
        """Clip and sum gᵢ / s from now on, with one scale s for each of `parameters`.

        Raises:
            ValueError: their number or a shape is wrong, or something was added since `zero`.
        """
        if not self._undefined:
            raise ValueError("scales may change only between zero() and the first addition")
        for parameter, scale in zip(self.parameters, scales, strict=True):
            shape, rows, columns = parameter.shape, scale.rows, scale.columns
            fits = columns is None or columns.shape == shape[-1:]
            if not fits or not (rows is None or (len(shape) == 2 and rows.shape == shape[:1])):
                raise ValueError(f"a scale does not fit a parameter of shape {shape}")
        self._scales = dict(zip(map(id, self.parameters), scales, strict=True))

    @property
    def sums(self) -> list[Tensor]:
        """Σᵢ ĝᵢ of all units added since `zero`, one tensor for each of `parameters`."""
        if self._undefined:
            for total in self._sums:
                total.zero_()
            self._undefined = False
        return self._sums

    def checkpoint_layers(self) -> bool:
        """Keep only the inputs of layers from now on, and compute the rest twice.

        The built-in switch of transformers only acts in training mode, which also enables dropout.

        Returns:
            Whether that saves memory. False if it was on already, or if no layer of the model can
            do it.
        """
        if self._layers:
            return False
        for layer in self._model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                starts = any(id(p) in self._trained for p in layer.parameters())
                forward = partial(_run_checkpointed, layer.forward, starts)
                layer.forward = update_wrapper(forward, layer.forward)
                self._layers.append(layer)
        return len(self._layers) > 0

    def close(self) -> None:
        """Remove all hooks and give the parameters back to autograd."""
        for handle in self._handles:
            handle.remove()
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        for layer in self._layers:
            del layer.forward
        self._layers.clear()

    def _watch(
        self, names: list[str], module: nn.Module, args: tuple[Tensor, ...], output: Tensor
    ) -> Tensor | None:
        """Keep the uses of a module's parameters once the gradient of its output is known."""
        if not self._units or not torch.is_grad_enabled():
            return None
        starts_graph = not output.requires_grad
        if starts_graph:  # nothing below it is trained: no gradient is wanted there
            output = output.detach().requires_grad_(True)
        x = args[0].detach()

        def keep(grad: Tensor) -> None:
            a = x
            if isinstance(module, nn.LayerNorm):
                a = layer_norm(x, module.normalized_shape, eps=module.eps)
            elif not isinstance(module, nn.Embedding | nn.Linear | Conv1D | FeatureFactors):
                a = rms_normalised(module, x)
            a, b = self._by_unit(a), self._by_unit(grad)
            for name in names:
                place = id(module._parameters[name])
                uses, scale = self._uses[place], self._scales.get(place, PLAIN)
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
                "a trained layer mixes or reorders its rows (as experts do), so its per-record "
                "gradient is not known. Train with LoRA (`method=lora`)."
            )
        return x.reshape(self._units, -1, *x.shape[2:][-1:])

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
            forward: runs the model under `casting`, and its loss outside of it.
            limits: norms to clip to, one for each unit that is not filler. `None`: C.
            filler: how many units at the end add nothing.
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
        self._workspace.left = self._execution.kept_bytes
        self._uses = {id(p): [] for p in self.parameters}
        self._units, self._shape = units, shape  # hooks keep tensors from now on
        try:
            with repeatable_kernels(self._sums[0]):
                with torch.enable_grad():
                    losses = forward()
                    losses[:real].sum().backward()  # so the filler's gradient is zero
                norms = self._norms(units)
                scales = (SLACK * limit.to(norms.device) / norms).clamp(max=1.0)
                scales = torch.where(norms.isfinite(), scales, torch.zeros_like(scales))
                self._add_scaled(scales)
        finally:
            self._uses, self._units = {}, 0
        return UnitReport(losses.detach()[:real], norms[:real], scales[:real])

    def _norms(self, units: int) -> Tensor:
        """(B,) float64 norms of the whole gradients, from the squared norms of all parameters."""
        squared = torch.zeros(units, dtype=torch.float64, device=self._sums[0].device)
        for parameter in self.parameters:
            uses = self._uses[id(parameter)]
            if not uses:
                name = next(n for n, p in self._model.named_parameters() if p is parameter)
                raise UnsupportedModule(
                    f"{name} is trained but took no part in the loss. Freeze it."
                )
            squared += squared_norms(uses, parameter.numel(), units)
        return squared.sqrt()

    def _add_scaled(self, scales: Tensor) -> None:
        """Add Σ scaleᵢ gᵢ to the sums, and free each parameter's uses on the way."""
        some = scales.nonzero().squeeze(1)  # found once: each look waits for a GPU
        kept: Kept = slice(None) if len(some) == len(scales) else some
        if not len(some):
            return
        for parameter, total in zip(self.parameters, self._sums, strict=True):
            beta = 0 if self._undefined else 1
            for use in self._uses.pop(id(parameter)):
                use.add_to(total, scales, kept, beta)
                beta = 1
        self._undefined = False


def _run_checkpointed(
    forward: Callable[..., Any], starts: bool, hidden: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Run a layer's forward pass and keep only its inputs.

    Only the reentrant form works with hooks on outputs. It first runs the layer without a graph,
    and builds the graph that hooks see in the backward pass. `starts` says whether one of the
    layer's parameters is trained.
    """
    if torch.is_grad_enabled() and starts and not hidden.requires_grad:
        hidden = hidden.detach().requires_grad_(True)  # else no graph would reach the layer
    if not (torch.is_grad_enabled() and hidden.requires_grad):
        return forward(hidden, *args, **kwargs)
    return checkpoint(partial(forward, **kwargs), hidden, *args, use_reentrant=True)


# -- the two kinds of model that are trained -------------------------------------------------------

UnitLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sequences:
    """B units of K sequences, right-padded to T tokens. Unit i owns rows i·K … i·K+K-1.

    Args:
        input_ids: (B·K, T) token ids on the CPU, so that the places of losses are known without
            asking a device. The engine moves them to the model's device.
        loss_mask: (B·K, T) true where a token carries loss (text and end of text, never prompt or
            padding). Column 0 must be false, because the first token cannot be predicted.
        per_unit: K.
        filler: how many units at the end are filler. They take part in the products, which then
            always have one shape, and in nothing else.
    """

    input_ids: Tensor
    loss_mask: Tensor
    per_unit: int
    filler: int = 0

    def __post_init__(self) -> None:
        """Refuse rows that cannot be grouped into units or that carry no loss."""
        if self.input_ids.shape != self.loss_mask.shape or self.input_ids.dim() != 2:
            raise ValueError("input_ids and loss_mask must both be (rows, tokens)")
        if self.input_ids.shape[0] % self.per_unit:
            raise ValueError("the number of rows must be a multiple of the sequences per unit")
        if bool(self.loss_mask[:, 0].any()) or not bool(self.loss_mask.any(1).all()):
            raise ValueError("every row needs a token with loss, and the first token carries none")

    @property
    def units(self) -> int:
        """B, the number of units, including filler."""
        return self.input_ids.shape[0] // self.per_unit

    def filled(self, units: int) -> Sequences:
        """Return the same with filler at the end, up to a number of units.

        Raises:
            ValueError: there are more already.
        """
        more = units - self.units
        if more < 0:
            raise ValueError(f"{self.units} units do not fit into a batch of {units}")
        ids = self.input_ids.new_zeros(more * self.per_unit, self.input_ids.shape[1])
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, 1] = True
        ids, mask = torch.cat([self.input_ids, ids]), torch.cat([self.loss_mask, mask])
        return Sequences(ids, mask, self.per_unit, self.filler + more)


class ClippingEngine(UnitClipping):
    """Exact clipping of whole units for causal language models of the GPT-2 and Llama families.

    Guarantee: that of `UnitClipping`.

    Args:
        model: a causal LM (or its `peft` wrapping), put in evaluation mode: no dropout.
        max_grad_norm: C. `math.inf` only for runs without privacy.
        execution: memory against time, and number formats.

    Raises:
        UnsupportedModule: a trained parameter lives in a module that has no rule, or the model
            does not compute its logits as output layer times last hidden state.
    """

    def __init__(self, model: nn.Module, max_grad_norm: float, execution: Execution = FAST) -> None:
        unwrap: Any = getattr(model, "get_base_model", None)
        plain: Any = unwrap() if unwrap else model
        self._backbone: nn.Module = plain.base_model
        self._head: Any = plain.get_output_embeddings()
        super().__init__(plain, max_grad_norm, execution, self._head)
        # The logits must be output layer times last hidden state, and no more.
        ids = torch.arange(4, device=next(plain.parameters()).device)[None]
        with torch.no_grad():
            with execution.casting(ids.device):
                expected = plain(input_ids=ids, use_cache=False).logits
                actual = self._hidden_states(ids) @ self._head.weight.t()
            # Relative: logits may be small.
            tolerance = 1e-3 if expected.dtype.itemsize >= 4 else 2e-2
            if (actual - expected).double().norm() > tolerance * expected.double().norm():
                self.close()
                raise UnsupportedModule(
                    f"{type(plain).__name__} scales or shifts its logits, which is not supported"
                )

    def add(
        self, sequences: Sequences, unit_loss: UnitLoss, limits: Tensor | None = None
    ) -> UnitReport:
        """Add the clipped gradients of B units to `sums`.

        Args:
            sequences: the units' rows.
            unit_loss: (B, K) mean token losses of the sequences and (B, K) numbers of tokens with
                loss → (B,) losses. It must not mix units.
            limits: (B,) norm that each unit is clipped to, at most C. `None`: C.
        """
        forward = partial(self._unit_losses, sequences, unit_loss)
        shape = sequences.input_ids.shape
        return self._clip(sequences.units, shape, forward, limits, sequences.filler)

    def _unit_losses(self, sequences: Sequences, unit_loss: UnitLoss) -> Tensor:
        """Return (B,) losses, in one forward pass."""
        mask, room = sequences.loss_mask, sequences.input_ids.numel()
        shifted = torch.zeros_like(mask)
        shifted[:, :-1] = mask[:, 1:]
        predicting = shifted.reshape(-1).nonzero().squeeze(1)  # (N,) places whose next token counts
        targets = sequences.input_ids[mask]  # (N,) those tokens, row by row
        tokens = len(targets)
        filled = (0, whole_pieces(tokens, room) - tokens)

        device = self.parameters[0].device
        hidden = self._hidden_states(sequences.input_ids.to(device)).flatten(0, 1)  # (B·K·T, d)
        positions = pad(predicting, filled).to(device)
        hidden = hidden.index_select(0, positions)  # (N, d), filled to whole pieces
        if not hidden.requires_grad:  # nothing below the output layer is trained
            hidden = hidden.detach().requires_grad_(True)
        weight, low = self._head.weight, self._execution.autocast
        hidden, used = (x if low is None else x.to(low) for x in (hidden, weight))

        units, counts = sequences.units, mask.sum(1)  # (B·K,) tokens with loss
        of_units = counts.view(units, -1).sum(1)  # (B,) likewise
        tied = self._model.get_input_embeddings().weight is weight  # type: ignore[operator]
        head = HeadUse(
            hidden.detach(),
            used,
            targets=pad(targets, filled).to(device),
            offsets=[0, *of_units.cumsum(0).tolist()],
            workspace=self._workspace,
            trained=id(weight) in self._trained,
            room=room,
            ids=sequences.input_ids.reshape(units, -1).to(device) if tied else None,
            scale=self._scales.get(id(weight), PLAIN),
        )
        if head.trained:
            self._uses[id(weight)].append(head)
        nll = TokenNLL.apply(hidden, used, head)[:tokens]  # (N,)

        # The mean loss of each row, (B·K,) → (B, K), and from these each unit's.
        row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        row, counts = row.to(nll.device), counts.to(nll.device)
        rows = torch.zeros(len(counts), dtype=nll.dtype, device=nll.device)
        means = rows.index_add(0, row, nll) / counts
        per_unit = (units, sequences.per_unit)
        return unit_loss(means.view(per_unit), counts.view(per_unit))

    def _hidden_states(self, ids: Tensor) -> Tensor:
        """(R, T) → (R, T, d). Right padding needs no mask: causal attention never looks ahead."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand(*ids.shape)
        with self._execution.casting(ids.device):
            output = self._backbone(input_ids=ids, position_ids=positions, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden


@dataclass(frozen=True)
class LabelledRows:
    """B units of K labelled rows, right-padded to T tokens. Unit i owns rows i·K … i·K+K-1.

    Args:
        input_ids: (B·K, T) token ids.
        attention_mask: (B·K, T) true where a token is not padding.
        labels: (B·K,) class of each row.
        per_unit: K.
    """

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    per_unit: int = 1


class ClassifierClipping(UnitClipping):
    """Exact clipping of whole units for an encoder with a classification head.

    Guarantee: that of `UnitClipping`. A unit's loss is the mean cross-entropy of its rows.

    Args:
        model: a sequence classifier of the BERT family, put in evaluation mode: no dropout.
        max_grad_norm: C. `math.inf` only for runs without privacy.
        execution: memory against time, and number formats.

    Raises:
        UnsupportedModule: a trained parameter lives in a module that has no rule.
    """

    def __init__(self, model: nn.Module, max_grad_norm: float, execution: Execution = FAST) -> None:
        super().__init__(model, max_grad_norm, execution, rows_only=True)
        tables = [m for name, m in model.named_modules() if name.endswith("position_embeddings")]
        padding = tables[0].padding_idx if tables else None
        self._first_position = 0 if padding is None else int(padding) + 1  # as in RoBERTa

    def add(self, rows: LabelledRows, limits: Tensor | None = None) -> UnitReport:
        """Add the clipped gradients of B units to `sums`.

        Args:
            rows: the units' rows.
            limits: (B,) norm that each unit is clipped to, at most C. `None`: C.
        """

        def forward() -> Tensor:
            # Positions and types are given per row, so that rows do not share them.
            device = self.parameters[0].device
            ids = rows.input_ids.to(device)  # (R, T)
            positions = torch.arange(ids.shape[1], device=ids.device) + self._first_position
            with self._execution.casting(ids.device):
                logits: Tensor = self._model(
                    input_ids=ids,
                    attention_mask=rows.attention_mask.to(device),
                    position_ids=positions.expand(*ids.shape),
                    token_type_ids=torch.zeros_like(ids),
                ).logits
            logits = logits.to(accumulation_dtype(logits))  # (R, classes)
            losses = cross_entropy(logits, rows.labels.to(logits.device), reduction="none")
            return losses.view(-1, rows.per_unit).mean(1)

        units = len(rows.labels) // rows.per_unit
        return self._clip(units, rows.input_ids.shape, forward, limits)
