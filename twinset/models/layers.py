"""Layers with fewer passes over memory, frozen layers in four bits, and the formats of numbers.

Three parts, none of which changes a model's mathematics, and a check of the machine:

- `fuse` swaps the slow layers of GPT-2 and of the Llama family for fused ones.
- `PackedLinears` stores frozen weights in the layout of the CPU's library.
- `quantise_frozen` keeps frozen weights in four bits (QLoRA).
- `batch_interference` measures, on made-up tokens, whether a unit's gradient is the same to the bit
  for any other units in its batch (`twinset.privacy.clipping.engine` says why).

Trained weights are always float32, because noise is added to them. This module knows no record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers.pytorch_utils import Conv1D

from twinset.config import RunConfig
from twinset.models.assets import no_fetched_code
from twinset.models.device import device_of, has_bfloat16, is_cpu, is_out_of_memory
from twinset.privacy.clipping import ClippingEngine, Execution, Sequences
from twinset.privacy.clipping.engine import KEPT_BYTES

# Rows that a packed layout is made for. Products with more or fewer rows read it as well.
PACKED_ROWS = 128


# --- number formats -----------------------------------------------------------------------------


def choose_execution(config: RunConfig) -> tuple[torch.dtype, Execution]:
    """Return the format of a frozen model, and how steps are computed.

    Products are in bfloat16 if requested, or if it is fast. So is a frozen model under adapters.
    If all weights are trained, they stay float32 and are cast for each product (autocast).
    """
    speed, frozen = config.speed, torch.float32
    cast: torch.dtype | None = None
    automatic = speed.precision == "auto" and has_bfloat16(device_of(speed.device))
    if automatic or speed.precision == "bfloat16":
        if config.training.method == "full":
            cast = torch.bfloat16
        else:
            frozen = torch.bfloat16
    kept = 0 if speed.low_memory else KEPT_BYTES
    return frozen, Execution(kept, speed.gradient_checkpointing, cast)


def copy_in(model: Any, dtype: torch.dtype) -> Any:
    """Return a copy of a model in a number format.

    Tensors that already have the format are shared, so weights must not be changed in place.
    Weights are cast one by one, because copying all of them first would double the memory.
    """
    cast = {id(p): nn.Parameter(p.detach().to(dtype), p.requires_grad) for p in model.parameters()}
    return deepcopy(model, cast).to(dtype)  # `.to` casts the buffers


# --- whether units keep apart -------------------------------------------------------------------

SUM_ROUNDING = 1e-4  # of C: sums are float32, and their order is the batch's
LITTLE = 1e-9  # of C: largest effect of others when one unit's part of the sum is measured


class BatchShape(NamedTuple):
    """B units of K rows of T tokens."""

    units: int
    per_unit: int
    tokens: int


def is_batch_invariant(
    model: Any, max_grad_norm: float, how: Execution, shapes: Sequence[BatchShape]
) -> bool:
    """Return whether no record changes a bit of another's gradient, in batches of these shapes."""
    engine = ClippingEngine(model, max_grad_norm, how)
    try:
        return batch_interference(engine, model.config.vocab_size, shapes) == 0
    finally:
        engine.close()


def batch_interference(
    engine: ClippingEngine, vocabulary: int, shapes: Sequence[BatchShape]
) -> float:
    """Return the largest change of a unit's gradient by others, over C. 0 means not by a bit.

    The units are made up. Each shape is computed twice. The second time the units are in other
    places, a third of them are others, and a third filler. If memory is short, a shape is reduced
    as a run would do it: to half the units.

    The engine is over the model as it will be trained. Its sums are left at zero. `vocabulary` is
    the number of token ids.
    """
    generator, found = torch.Generator().manual_seed(0), [0.0]

    def clipped(ids: Tensor, one: int, units: int) -> tuple[Tensor, Tensor]:
        """Return norms, and the sum to which all units (B, K, T) but one add next to nothing."""
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, :, : max(1, ids.shape[2] // 4)] = False  # as after a prompt
        limits = torch.full((len(ids),), LITTLE * engine.max_grad_norm)
        limits[one] = engine.max_grad_norm
        engine.zero()
        batch = Sequences(ids.flatten(0, 1), mask.flatten(0, 1), ids.shape[1]).filled(units)
        report = engine.add(batch, lambda means, counts: means.sum(1), limits)
        return report.norms.cpu(), torch.cat([total.flatten().double() for total in engine.sums])

    waiting = deque(shapes)
    while waiting:
        units, per_unit, tokens = shape = waiting.popleft()
        ids = torch.randint(vocabulary, (2 * units, per_unit, tokens), generator=generator)
        order = torch.randperm(units, generator=generator)[: units - units // 3]  # who stays, where
        others = order[: units // 3]  # replaced by another unit
        second = torch.where(torch.isin(order, others), order + units, order)
        stays = second < units
        try:
            norms, part = clipped(ids[:units], int(order[-1]), units)  # one that stays, so its part
            again, part_again = clipped(ids[second], len(order) - 1, units)
        except RuntimeError as error:
            if not is_out_of_memory(error) or (units == 1 and not engine.checkpoint_layers()):
                raise
            waiting.appendleft(shape._replace(units=max(1, units // 2)))
            continue
        found.append(float((norms[order[stays]] - again[stays]).abs().max()) / engine.max_grad_norm)
        moved = float((part - part_again).norm()) / engine.max_grad_norm
        found.append(0.0 if moved <= SUM_ROUNDING else moved)
    engine.zero()
    return torch.tensor(found, dtype=torch.float64).max().item()  # Python's max would lose a NaN


# --- fused layers -------------------------------------------------------------------------------


def fuse(model: Any) -> Any:
    """Swap layers for fused ones in place, choose the attention kernel, and return the model.

    On a CPU with fast bfloat16 products, three quarters of a step were spent outside them: in
    normalisation, rotation, activations and attention as chains of elementwise operations, with
    casts to float32 and back. Layers of the Llama family and GPT-2's activation are swapped.
    Parameters keep their names.
    """
    from transformers.activations import NewGELUActivation

    llama = "transformers.models.llama.modeling_llama"
    passes: dict[str, Callable[..., Any]] = {
        f"{llama}.LlamaRMSNorm": normalise,
        f"{llama}.LlamaAttention": attend,
    }
    for module in list(model.modules()):
        kind = type(module)  # compared by name: other models need not wait for the import of Llama
        if forward := passes.get(f"{kind.__module__}.{kind.__qualname__}"):
            module.forward = partial(forward, module)  # a partial is copied with its module
        for name, child in module.named_children():
            # GELU by its tanh formula is eight elementwise operations forwards and eight backwards.
            if type(child) is NewGELUActivation:
                setattr(module, name, nn.GELU(approximate="tanh"))
    if model.dtype is torch.bfloat16 and is_cpu(model.device):
        # Flash attention on a CPU is slow here, even at 256 tokens. For 32 rows of 48 tokens and
        # nine heads, forward and backward pass take 31 ms instead of 6.
        model.set_attn_implementation("eager")
    return model


class _RmsNorm(Function):
    """y = weight · x / √(mean x² + ε) of x (…, d) and weight (d), with statistics in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact)  # (…, 1)
        inverse = torch.rsqrt(norm.square_().div_(x.shape[-1]).add_(epsilon)).to(x.dtype)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (x, weight, inverse), (grad,) = ctx.saved_tensors, grads
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (grad * x).mul_(inverse).flatten(0, -2).sum(0)  # (d,)
        exact = torch.promote_types(x.dtype, torch.float32)
        grad = grad * weight
        along = (grad * x).sum(-1, keepdim=True, dtype=exact)  # the part of grad along x
        along = along.mul_(inverse.to(exact) ** 3).div_(x.shape[-1]).to(x.dtype)
        return grad.mul_(inverse).addcmul_(x, along, value=-1), of_weight, None


def normalise(norm: Any, x: Tensor) -> Tensor:
    """Llama's normalisation, in one operation."""
    y: Tensor = _RmsNorm.apply(x, norm.weight, norm.variance_epsilon)
    return y


class _Rotation(Function):
    """Rotary position embedding: pairs (x[j], x[j + d/2]) turned by an angle of the position.

    Of x (B, T, H, d), cos and sin (B or 1, T, 1, d). The gradient is turned back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        half = x.shape[-1] // 2
        turned = x * cos
        turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-direction)
        turned[..., half:].addcmul_(x[..., :half], sin[..., half:], value=direction)
        return turned

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _Rotation.apply(grads[0], *ctx.saved_tensors, -1), None, None, None


def attend(
    layer: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of (B, T, D) to itself and to the cache. G query heads share keys and values.

    The query heads of a group are stacked. So a product with their keys is one of (G·T, d) with
    (d, W) for each of H groups, and nothing is copied G times.
    """
    batch, tokens, _ = hidden_states.shape
    size = layer.head_dim
    shape = (batch, tokens, -1, size)
    cos, sin = (x[:, :, None] for x in position_embeddings)
    query = _Rotation.apply(layer.q_proj(hidden_states).view(shape), cos, sin, 1)  # (B, T, H·G, d)
    keys = _Rotation.apply(layer.k_proj(hidden_states).view(shape), cos, sin, 1).transpose(1, 2)
    values = layer.v_proj(hidden_states).view(shape).transpose(1, 2)  # (B, H, T, d)
    if past_key_values is not None:
        keys, values = past_key_values.update(keys, values, layer.layer_idx)  # (B, H, W, d)
    if attention_mask is None and tokens > 1:  # causal: the kernel needs no mask for that
        how = {"is_causal": True, "scale": layer.scaling, "enable_gqa": True}
        seen = scaled_dot_product_attention(query.transpose(1, 2), keys, values, **how)
        return layer.o_proj(seen.transpose(1, 2).reshape(batch, tokens, -1)), None

    groups, width = keys.shape[1:3]
    query = query.view(batch, tokens, groups, -1, size).permute(0, 2, 3, 1, 4)  # (B, H, G, T, d)
    query = query.reshape(batch * groups, -1, size)  # (B·H, G·T, d)
    keys, values = (x.flatten(0, 1) for x in (keys, values))  # (B·H, W, d)
    if tokens == 1 and keys.is_cpu:  # a few queries are multiplied faster from the right
        scores = torch.bmm(keys, query.transpose(1, 2)).transpose(1, 2).contiguous()
    else:
        scores = torch.bmm(query, keys.transpose(1, 2))  # (B·H, G·T, W)
    scores.mul_(layer.scaling)
    if attention_mask is not None:  # (B or 1, 1, T, W)
        scores.view(batch, groups, -1, tokens, width).add_(attention_mask[:, :, None])
    seen = torch.bmm(scores.softmax(-1), values)  # a softmax in bfloat16 adds in float32
    seen = seen.view(batch, groups, -1, tokens, size).permute(0, 3, 1, 2, 4)  # (B, T, H, G, d)
    return layer.o_proj(seen.reshape(batch, tokens, -1)), None


# --- packed layers ------------------------------------------------------------------------------


class PackedLinears:
    """Copies of a model's weights, in the layout of the CPU's matrix library.

    Without them the library converts each weight for every product: 57 MB per token for the
    vocabulary of SmolLM2, a quarter of the time of 64 rows. Products in bfloat16 are the same bit
    for bit. Those in float32 are oneDNN's then and may differ from PyTorch's in the last bits.
    Weights must not change while the copies are in use.
    """

    def __init__(self, model: nn.Module) -> None:
        self._forward: dict[Any, Callable[[Tensor], Tensor]] = {}
        for layer in packable_layers(model):
            weight = layer.weight.detach()
            weight = weight.t().contiguous() if isinstance(layer, Conv1D) else weight  # (out, in)
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
            given = {"W": packed, "B": layer.bias, "attr": "none", "scalars": [], "algorithm": ""}
            self._forward[layer] = partial(torch.ops.mkldnn._linear_pointwise, **given)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the model multiply by the copies inside the block only."""
        for layer, forward in self._forward.items():
            layer.forward = forward
        try:
            yield
        finally:
            for layer in self._forward:
                del layer.forward


def packable_layers(model: nn.Module) -> list[Any]:
    """Return the linear layers that the CPU's library can convert, Conv1D of GPT-2 among them.

    Layers in bfloat16 are among them where the CPU multiplies in bfloat16.
    """
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return []
    layers: list[Any] = [m for m in model.modules() if type(m) in (nn.Linear, Conv1D)]
    layers = [layer for layer in layers if is_cpu(layer.weight.device)]
    slow = {torch.float32: False, torch.bfloat16: layers and not has_bfloat16(device_of("cpu"))}
    return [layer for layer in layers if not slow.get(layer.weight.dtype, True)]


# --- four bits ----------------------------------------------------------------------------------


class Nf4Linear(nn.Module):
    """A frozen linear layer whose weights take 4.1 bits each, scales included: NF4 of QLoRA.

    Each product is that of an ordinary layer with the weights that the four bits represent. They
    are restored in the forward and in the backward pass, and dropped. bitsandbytes has faster
    products. But their arithmetic depends on the number of rows and on whether they need gradients,
    and a record's gradient must not. So only its number format is used, and not LLM.int8, whose
    outlier columns are chosen by the whole batch. Source: Dettmers et al. 2023, "QLoRA", section 3.
    """

    codes: Tensor

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        from bitsandbytes.functional import quantize_4bit

        self._is_conv1d = isinstance(layer, Conv1D)
        self.bias = layer.bias
        codes, self._state = quantize_4bit(
            layer.weight.detach().contiguous(), quant_type="nf4", compress_statistics=True
        )
        self.register_buffer("codes", codes, persistent=False)

    def weights(self) -> Tensor:
        """Return the weights that the four bits represent: (p, d) of y = x Wᵀ."""
        from bitsandbytes.functional import dequantize_4bit

        weight: Tensor = dequantize_4bit(self.codes, self._state)
        return weight.t() if self._is_conv1d else weight  # Conv1D keeps (d, p)

    def forward(self, x: Tensor) -> Tensor:
        """(…, d) → (…, p)."""
        y: Tensor = _Nf4Product.apply(x, self)
        return y if self.bias is None else y + self.bias


class _Nf4Product(Function):
    """x Wᵀ that keeps neither x nor W for the backward pass: W is frozen and restored."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Nf4Linear) -> Tensor:
        ctx.layer = layer
        return x @ layer.weights().to(x.dtype).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.weights().to(gradient.dtype), None


@no_fetched_code()
def quantise_frozen(model: Any) -> Any:
    """Swap each frozen linear layer except the output layer for one in four bits, in place.

    The model must have its adapters already, which decide the trained weights.
    """
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            is_frozen = not any(p.requires_grad for p in layer.parameters())
            if type(layer) in (nn.Linear, Conv1D) and layer is not head and is_frozen:
                setattr(parent, name, Nf4Linear(layer))
    return model


def dequantise(model: Any) -> Any:
    """Undo `quantise_frozen` in place: ordinary layers of the weights that training used."""
    for parent in list(model.modules()):
        for name, coded in parent.named_children():
            if type(coded) is not Nf4Linear:
                continue
            weight = coded.weights()  # (p, d)
            with torch.device("meta"):  # no memory for weights that are replaced at once
                layer: Any = Conv1D(*weight.shape) if coded._is_conv1d else nn.Linear(1, 1)
            if coded._is_conv1d:
                weight = weight.t().contiguous()  # (d, p)
            else:
                layer.out_features, layer.in_features = weight.shape
            layer.weight = nn.Parameter(weight, requires_grad=False)
            layer.bias = coded.bias
            setattr(parent, name, layer)
    return model
