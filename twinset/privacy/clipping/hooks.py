"""What one forward and one backward pass leave behind: each trained parameter's uses.

Autograd forms no weight gradients here: trained parameters are switched off, the embeddings'
outputs become the leaves of the graph, and hooks keep every layer's input and output gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from twinset.privacy.clipping.gradient_uses import (
    PLAIN,
    EmbeddingUse,
    ParameterUse,
    Scale,
    Workspace,
    accumulation_dtype,
    bias_use,
    matrix_use,
    scale_use,
)

# (input a (B, S, …), output gradient b (B, S, p), scale, workspace, name of the use) → use
Rule = Callable[[Tensor, Tensor, Scale, Workspace, object], ParameterUse]


class UnsupportedModule(TypeError):
    """A trained parameter lives in a module whose per-unit gradient is not known."""


def is_rms_norm(module: nn.Module) -> bool:
    """Return whether it is an RMS norm (Llama family).

    Each model of transformers has a class of its own, so the name decides, and that it has a weight
    and nothing else.
    """
    return type(module).__name__.endswith("RMSNorm") and [*module._parameters] == ["weight"]


def rms_normalised(module: nn.Module, x: Tensor, scale: float = 1.0) -> Tensor:
    """Return the module's output for a constant scale, in the very arithmetic the module uses.

    Args:
        module: an RMS norm.
        x: its input.
        scale: what the whole weight is set to.
    """
    weight = torch.full_like(module._parameters["weight"], scale)  # type: ignore[arg-type]
    output = functional_call(module, {"weight": weight}, (x,))
    assert isinstance(output, Tensor)
    return output


def _bias(a: Tensor, b: Tensor, scale: Scale, workspace: Workspace, name: object) -> ParameterUse:
    return bias_use(scale.per_column(b))


def _factor(a: Tensor, b: Tensor, scale: Scale, workspace: Workspace, name: object) -> ParameterUse:
    return scale_use(a, scale.per_column(b))


def _linear(a: Tensor, b: Tensor, scale: Scale, workspace: Workspace, name: object) -> ParameterUse:
    """`nn.Linear`: y = a Wᵀ, W (p, d)."""
    return matrix_use(scale.per_row(b), scale.per_column(a), workspace, name)


def _conv1d(a: Tensor, b: Tensor, scale: Scale, workspace: Workspace, name: object) -> ParameterUse:
    """GPT-2's `Conv1D`: y = a W, W (d, p)."""
    return matrix_use(scale.per_row(a), scale.per_column(b), workspace, name)


def _table(size: int, padding: int | None) -> Rule:
    """A table of `size` rows; as in autograd, the padding's row gets no gradient."""

    def rule(
        a: Tensor, b: Tensor, scale: Scale, workspace: Workspace, name: object
    ) -> ParameterUse:
        kept = b if padding is None else b.masked_fill((a == padding)[..., None], 0.0)
        kept = kept.to(accumulation_dtype(kept))
        return EmbeddingUse(a, scale.per_row_of(a, scale.per_column(kept)), size)

    return rule


def _rules(module: nn.Module) -> dict[str, Rule]:
    """Return parameter name → rule for a module whose type is known; else raise.

    Types are compared exactly: a subclass may compute something else, as scaled embeddings do.
    """
    if type(module) is nn.Embedding:
        if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
            raise UnsupportedModule("an embedding with max_norm, sparse or scale_grad_by_freq")
        return {"weight": _table(module.num_embeddings, module.padding_idx)}
    if type(module) is nn.Linear:
        return {"weight": _linear, "bias": _bias}
    if type(module) is Conv1D:
        return {"weight": _conv1d, "bias": _bias}
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        return {"weight": _factor, "bias": _bias}
    if is_rms_norm(module):
        weight = module._parameters["weight"]
        assert weight is not None
        # The weight must be the factor itself. Gemma's normalisation has 1 + weight.
        if not rms_normalised(module, torch.ones_like(weight)[None], scale=0.0).any():
            return {"weight": _factor}
    raise UnsupportedModule(type(module).__name__)


def _is_compiled(module: nn.Module) -> bool:
    by_call = module._compiled_call_impl is not None  # `module.compile()`
    return by_call or hasattr(module.forward, "_torchdynamo_orig_callable")


class Capture:
    """Hooks on every module that owns a trained parameter, and what they caught.

    Args:
        model: the whole model. Its trainable parameters are switched off until `close`.
        head: the output layer, whose use is `output_head.HeadUse`; it gets no hook.
        workspace: gives the uses their memory.
        rows_only: whether a layer may see (B·K, d), one vector a row. Not where a layer could see
            as many tokens of other rows instead, as an expert can.
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Module | None,
        workspace: Workspace,
        rows_only: bool = False,
    ) -> None:
        self._workspace, self._rows_only = workspace, rows_only
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._trained = {id(p) for p in self.parameters}
        self._handles: list[Any] = []
        self.uses: dict[int, list[ParameterUse]] = {}
        self.scales: dict[int, Scale] = {}
        self.units, self._shape = 0, torch.Size()
        if any(map(_is_compiled, model.modules())):
            raise UnsupportedModule(
                "a compiled model: its gradients would be wrong without an error; pass the "
                "model that `torch.compile` was given"
            )
        # All rules are found before the first hook is set: a refused model keeps none.
        rules = {module: self._known_rules(name, module) for name, module in model.named_modules()}
        for module, known in rules.items():
            if module is not head and known:
                self._handles.append(module.register_forward_hook(self._hook(known)))
        for parameter in self.parameters:
            parameter.requires_grad_(False)

    def trains(self, parameter: Tensor | None) -> bool:
        """Return whether a parameter is among the trained ones."""
        return parameter is not None and id(parameter) in self._trained

    def scale_of(self, parameter: Tensor | None) -> Scale:
        """Return the scale that a parameter's gradient is divided by."""
        return self.scales.get(id(parameter), PLAIN)

    def begin(self, units: int, shape: torch.Size) -> None:
        """Forget the last physical batch; hooks keep what they see from now on.

        Args:
            units: B.
            shape: (B·K, T) of the rows that the model reads.
        """
        self._workspace.begin()
        self.uses = {id(p): [] for p in self.parameters}
        self.units, self._shape = units, shape

    def end(self) -> None:
        """Stop keeping."""
        self.uses, self.units = {}, 0

    def close(self) -> None:
        """Remove all hooks and give the parameters back to autograd."""
        for handle in self._handles:
            handle.remove()
        for parameter in self.parameters:
            parameter.requires_grad_(True)

    def _known_rules(self, name: str, module: nn.Module) -> dict[str, Rule]:
        """Return the rules of the module's own trained parameters, or refuse it."""
        owned = [n for n, p in module._parameters.items() if self.trains(p)]
        try:
            known = _rules(module) if owned else {}
        except UnsupportedModule as error:
            raise UnsupportedModule(
                f"{name} is a {error}, whose per-record gradient is not known; train with LoRA "
                "(`method=lora`), which leaves it unchanged"
            ) from None
        unknown = [n for n in owned if n not in known]
        if unknown:
            raise UnsupportedModule(f"{name} has unknown parameters {unknown}; use `method=lora`")
        return {n: known[n] for n in owned}

    def _hook(self, rules: dict[str, Rule]) -> Callable[..., Tensor | None]:
        def forward(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if not self.units or not torch.is_grad_enabled():
                return None
            starts_graph = not output.requires_grad
            if starts_graph:  # nothing below it is trained: no gradient is wanted there
                output = output.detach().requires_grad_(True)
            x = args[0].detach()
            output.register_hook(lambda grad: self._keep(module, rules, x, grad))
            return output if starts_graph else None

        return forward

    def _keep(self, module: nn.Module, rules: dict[str, Rule], x: Tensor, grad: Tensor) -> None:
        if isinstance(module, nn.LayerNorm):
            x = nn.functional.layer_norm(x, module.normalized_shape, eps=module.eps)
        elif is_rms_norm(module):
            x = rms_normalised(module, x)
        a, b = self._by_unit(x), self._by_unit(grad)
        for name, rule in rules.items():
            parameter = module._parameters[name]
            uses = self.uses[id(parameter)]
            key = (id(parameter), len(uses))
            uses.append(rule(a, b, self.scale_of(parameter), self._workspace, key))

    def _by_unit(self, x: Tensor) -> Tensor:
        """(B·K, T) → (B, K·T), (B·K, T, …, d) → (B, K·T·…, d) and (B·K, d) → (B, K, d)."""
        if self._rows_only and x.dim() == 2 and len(x) == self._shape[0] and x.is_floating_point():
            return x.reshape(self.units, -1, x.shape[1])
        if x.shape[:2] != self._shape:
            raise UnsupportedModule(
                "a trained layer sees its rows shared or in another order (as experts do), so "
                "its per-record gradient is not known; train with LoRA (`method=lora`)"
            )
        return x.reshape(self.units, -1, *x.shape[2:][-1:])
