"""Frozen layers whose weights lie in memory in four bits each: NormalFloat of QLoRA (NF4).

Each product is that of an ordinary layer with the weights that the four bits stand for, made anew
in the forward and in the backward pass, and dropped. bitsandbytes has faster products, whose
arithmetic depends on how many rows come together or whether they ask for gradients; a record's
gradient must not. So only its number format is used here (and not LLM.int8, whose outlier columns
are chosen by the whole batch). Source: Dettmers et al. 2023, section 3.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from transformers.pytorch_utils import Conv1D

from twinset.config import TrainingConfig
from twinset.errors import InputError
from twinset.models.hub import no_fetched_code


class Nf4Linear(nn.Module):
    """A frozen linear layer whose weights take 4.1 bits, their scales included.

    Args:
        layer: `nn.Linear`, or GPT-2's `Conv1D`, whose weights must not be trained.
    """

    codes: Tensor

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        from bitsandbytes.functional import quantize_4bit

        self._is_conv1d = isinstance(layer, Conv1D)
        self.bias = layer.bias
        weight = layer.weight.detach()
        codes, self._state = quantize_4bit(
            weight.contiguous(), quant_type="nf4", compress_statistics=True
        )
        self.register_buffer("codes", codes, persistent=False)

    def weights(self) -> Tensor:
        """Return the weights that the four bits stand for, (p, d) of y = x Wᵀ."""
        from bitsandbytes.functional import dequantize_4bit

        weight: Tensor = dequantize_4bit(self.codes, self._state)
        return weight.t() if self._is_conv1d else weight

    def forward(self, x: Tensor) -> Tensor:
        """(…, d) → (…, p)."""
        y: Tensor = _Product.apply(x, self)
        return y if self.bias is None else y + self.bias

    def plain(self) -> Any:
        """Return an ordinary layer of the same weights and kind."""
        weight = self.weights()
        outputs, inputs = weight.shape
        if self._is_conv1d:
            layer: Any = Conv1D(outputs, inputs)
            layer.weight = nn.Parameter(weight.t().contiguous(), requires_grad=False)
        else:
            layer = nn.Linear(inputs, outputs, bias=self.bias is not None, device="meta")
            layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = self.bias
        return layer


class _Product(Function):
    """x Wᵀ that keeps neither x nor W for the way back: W is frozen, and made again from codes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Nf4Linear) -> Tensor:
        ctx.layer = layer
        return x @ layer.weights().to(x.dtype).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.weights().to(gradient.dtype), None


@no_fetched_code()
def quantised(model: Any) -> Any:
    """Swap each frozen linear layer but the output's for one in four bits, in place.

    Args:
        model: with adapters, so that what is trained is known.
    """
    head = model.get_output_embeddings()
    for parent, name, layer in _children(model, (nn.Linear, Conv1D)):
        if layer is not head and not any(p.requires_grad for p in layer.parameters()):
            setattr(parent, name, Nf4Linear(layer))
    return model


def plain(model: Any) -> Any:
    """Undo `quantised` in place: ordinary layers of the weights that training computed with."""
    for parent, name, layer in _children(model, (Nf4Linear,)):
        setattr(parent, name, layer.plain())
    return model


def check_method(training: TrainingConfig) -> None:
    """Refuse, before anything slow, a method whose library is missing.

    Raises:
        InputError: it is.
    """
    if training.method == "qlora" and find_spec("bitsandbytes") is None:
        raise InputError("`method=qlora` needs pip install 'twinset[qlora]'")


def _children(model: nn.Module, kinds: tuple[type, ...]) -> list[tuple[nn.Module, str, Any]]:
    """Return parent, name and layer of every layer that is exactly of one of these kinds."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in kinds
    ]
