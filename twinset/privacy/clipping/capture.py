"""What one forward and one backward pass leave behind: each trained parameter's uses.

Autograd forms no weight gradients here: trained parameters are switched off, the embeddings' outputs
become the leaves of the graph, and hooks keep each layer's input and output gradient instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from twinset.privacy.clipping.uses import (
    LayerUse,
    Rule,
    Use,
    bias,
    conv1d_weight,
    embedding_table,
    linear_weight,
    normalised_scale,
)


class UnsupportedModule(TypeError):
    """A trained parameter lives in a module whose per-unit gradient is not known."""


def is_rms_norm(module: nn.Module) -> bool:
    """Tell RMS normalisation (Llama family), which each model of transformers defines for itself."""
    return type(module).__name__.endswith("RMSNorm") and [*module._parameters] == ["weight"]


def rms_normalised(module: nn.Module, x: Tensor) -> Tensor:
    """Return the module's output before scaling, in the very arithmetic the module uses."""
    weight = module._parameters["weight"]
    assert weight is not None
    unscaled = functional_call(module, {"weight": torch.ones_like(weight)}, (x,))
    assert isinstance(unscaled, Tensor)
    return unscaled


def _rules(module: nn.Module) -> dict[str, Rule]:
    """Return parameter name → rule for a module whose type is known; else raise."""
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
            raise UnsupportedModule("an embedding with max_norm, sparse or scale_grad_by_freq")
        return {"weight": embedding_table(module.num_embeddings)}
    if isinstance(module, nn.Linear):
        return {"weight": linear_weight, "bias": bias}
    if isinstance(module, Conv1D):
        return {"weight": conv1d_weight, "bias": bias}
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return {"weight": normalised_scale, "bias": bias}
    if is_rms_norm(module):
        return {"weight": normalised_scale}
    raise UnsupportedModule(type(module).__name__)


def _rule_input(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, nn.LayerNorm):
        return nn.functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    return rms_normalised(module, x) if is_rms_norm(module) else x


class Capture:
    """Hooks on every module that owns a trained parameter, and what they caught.

    Args:
        model: the whole model. Its trainable parameters are switched off until `close`.
        head: the output layer, whose use is `vocabulary.HeadUse`; it gets no hook.
    """

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._trained = {id(p) for p in self.parameters}
        self._handles: list[Any] = []
        self.uses: dict[int, list[Use]] = {}
        self.units = 0
        self._check_and_hook(model, head)
        for parameter in self.parameters:
            parameter.requires_grad_(False)

    def trains(self, parameter: Tensor | None) -> bool:
        """Tell whether a parameter is among the trained ones."""
        return parameter is not None and id(parameter) in self._trained

    def begin(self, units: int) -> None:
        """Forget the last physical batch; hooks keep what they see from now on."""
        self.uses = {id(p): [] for p in self.parameters}
        self.units = units

    def end(self) -> None:
        """Stop keeping."""
        self.uses, self.units = {}, 0

    def close(self) -> None:
        """Remove all hooks and give the parameters back to autograd."""
        for handle in self._handles:
            handle.remove()
        for parameter in self.parameters:
            parameter.requires_grad_(True)

    def _check_and_hook(self, model: nn.Module, head: nn.Module) -> None:
        for name, module in model.named_modules():
            owned = [n for n, p in module._parameters.items() if self.trains(p)]
            if owned:
                self._check(name, module, owned)
            starts_graph = isinstance(module, nn.Embedding)
            if module is not head and (owned or starts_graph):
                self._handles.append(module.register_forward_hook(self._hook(owned)))

    @staticmethod
    def _check(name: str, module: nn.Module, owned: list[str]) -> None:
        try:
            unknown = [n for n in owned if n not in _rules(module)]
        except UnsupportedModule as error:
            raise UnsupportedModule(
                f"{name} is a {error}, whose per-record gradient is not known; train with LoRA "
                "(--method lora), which leaves it unchanged"
            ) from None
        if unknown:
            raise UnsupportedModule(f"{name} has unknown parameters {unknown}; use --method lora")

    def _hook(self, owned: list[str]) -> Callable[..., Tensor | None]:
        def forward(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if not self.units:
                return None
            starts_graph = isinstance(module, nn.Embedding)
            if starts_graph:
                output = output.detach().requires_grad_(True)
            if owned and output.requires_grad:
                x = args[0].detach()
                output.register_hook(lambda grad: self._keep(module, owned, x, grad))
            return output if starts_graph else None

        return forward

    def _keep(self, module: nn.Module, owned: list[str], x: Tensor, grad: Tensor) -> None:
        a = _rule_input(module, x)
        for use_of, rule in self._owned_rules(module, owned):
            self.uses[id(use_of)].append(LayerUse(rule, self._by_unit(a), self._by_unit(grad)))

    @staticmethod
    def _owned_rules(module: nn.Module, owned: list[str]) -> Iterator[tuple[Tensor, Rule]]:
        rules = _rules(module)
        for name in owned:
            parameter = module._parameters[name]
            assert parameter is not None
            yield parameter, rules[name]

    def _by_unit(self, x: Tensor) -> Tensor:
        """(B·K, T, …) → (B, K·T, …)."""
        if x.shape[0] % self.units:
            raise UnsupportedModule("a layer sees inputs shared by all rows; give each row its own")
        rest = x.shape[2:]
        return x.reshape(self.units, -1, *rest)
