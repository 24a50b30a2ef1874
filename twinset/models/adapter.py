"""A trained low-rank adapter as a file: two factors for each layer, and the sum with its base.

The file holds no copy of the base, and its folder no configuration that a library would follow: the
facts of the adapter's pre-training name the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twinset.bounds import bounded, check_options
from twinset.errors import InputError, first_line


@dataclass(frozen=True)
class Adapter:
    """What an adapter belongs to, and what it is: scaling · B A is added to each linear layer.

    Args:
        base_model: name of a built-in model.
        base_origin: what that model stated of itself when the adapter was trained.
        rank: of each layer's factors.
        scaling: of their product.
    """

    base_model: str
    base_origin: str
    rank: int = bounded(low=1, high=10_000)
    scaling: float = bounded(low=1e-6, high=1e6)

    def __post_init__(self) -> None:
        """Refuse what is no adapter."""
        check_options(self)

    @classmethod
    def stated(cls, facts: Mapping[str, Any] | None, name: str) -> Adapter:
        """Return the adapter of a folder's facts.

        Raises:
            InputError: they describe none.
        """
        try:
            return cls(**(facts or {})["adapter"])
        except (InputError, KeyError, TypeError):
            raise InputError(f"{name}: its facts describe no adapter; copy it again") from None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    def add(self, model: Any, file: Path, name: str) -> None:
        """Add scaling · B A into the weights of the base, in place and in their format.

        Args:
            model: the base; float32.
            file: of `write`.
            name: what the user called the adapter.

        Raises:
            InputError: the file is damaged or belongs to a model of other layers.
        """
        factors = self._read(model, file, name)
        with torch.no_grad():
            for own in model.parameters():  # to write into a mapped file's pages is far slower
                own.data = own.clone()
            for layer, weight in _weights(model).items():
                a, b = (factors[f"{layer}.{which}"].to(weight.dtype) for which in "AB")
                weight.addmm_(b, a, alpha=self.scaling)  # no product of its own in memory

    def _read(self, model: Any, file: Path, name: str) -> dict[str, Tensor]:
        """Return the factors, whose shapes are compared before any of them is read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as opened:
                shapes = {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}
                if shapes != _shapes(model, self.rank):
                    raise InputError(
                        f"{name}: its adapter does not fit {self.base_model}; train it again"
                    )
                return {key: opened.get_tensor(key) for key in shapes}
        except (OSError, SafetensorError) as error:
            raise InputError(f"{name} cannot be loaded: {first_line(error)}") from error


def factors_of(adapted: Any) -> dict[str, Tensor]:
    """Return "layer.A" (r, in) and "layer.B" (out, r) of a model of `lora.with_lora`, bfloat16."""
    from peft.tuners.lora import LoraLayer

    found: dict[str, Any] = {}
    for name, layer in adapted.get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            (a,), (b,) = layer.lora_A.values(), layer.lora_B.values()
            found |= {f"{name}.A": a.weight, f"{name}.B": b.weight}
    return {key: factor.detach().to(torch.bfloat16).cpu() for key, factor in found.items()}


def scaling_of(adapted: Any) -> float:
    """Return what the products of factors are multiplied by in a model of `lora.with_lora`."""
    from peft.tuners.lora import LoraLayer

    layers = (layer for layer in adapted.modules() if isinstance(layer, LoraLayer))
    (scaling,) = next(layers).scaling.values()
    return float(scaling)


def _shapes(model: Any, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all factors."""
    found: dict[str, tuple[int, ...]] = {}
    for name, weight in _weights(model).items():
        out, inputs = weight.shape
        found |= {f"{name}.A": (rank, inputs), f"{name}.B": (out, rank)}
    return found


def _weights(model: Any) -> dict[str, Tensor]:
    """Return the weights (out, in) of all linear layers but the output's, by the layers' names."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)}
    return {
        name: layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
        for name, layer in linear.items()
        if layer is not head
    }
