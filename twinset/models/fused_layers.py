"""Layers of the Llama family with fewer passes over memory; the mathematics is transformers' own.

On a processor with fast bfloat16 products, three quarters of a step were spent elsewhere: in
normalisation, rotation and attention written as chains of elementwise operations, with casts to
float32 and back, and in copies of keys and values for the query heads that share them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn.functional import scaled_dot_product_attention

_LLAMA = "transformers.models.llama.modeling_llama"


def fuse_llama(model: nn.Module) -> None:
    """Give the norms and attention layers of a Llama (and no subclass) forward passes from here."""
    passes: dict[str, Callable[..., Any]] = {
        f"{_LLAMA}.LlamaRMSNorm": _rms_norm,
        f"{_LLAMA}.LlamaAttention": _attention,
    }
    for module in model.modules():
        kind = type(module)  # known by name: other models are not to wait for this import
        forward = passes.get(f"{kind.__module__}.{kind.__qualname__}")
        if forward is not None:
            module.forward = partial(forward, module)


class RmsNorm(Function):
    """y = weight · x / √(mean x² + ε) over the last dimension; statistics in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Return y (…, d); x (…, d), weight (d)."""
        exact = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact)
        inverse = torch.rsqrt(norm.square_().div_(x.shape[-1]).add_(epsilon)).to(x.dtype)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Return the gradients of x and, if it is trained, of the weight."""
        (x, weight, inverse), (grad,) = ctx.saved_tensors, grads
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (grad * x).mul_(inverse).flatten(0, -2).sum(0)
        exact = torch.promote_types(x.dtype, torch.float32)
        grad = grad * weight
        along = (grad * x).sum(-1, keepdim=True, dtype=exact)
        along = along.mul_(inverse.to(exact) ** 3).div_(x.shape[-1]).to(x.dtype)
        return grad.mul_(inverse).addcmul_(x, along, value=-1), of_weight, None


class Rotation(Function):
    """Rotary position embedding: pairs (x[j], x[j + d/2]) turned by an angle of the position."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x (B, T, H, d) turned; cos and sin (B or 1, T, 1, d)."""
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Turn the gradient back."""
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, sin, -1), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-direction)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:], value=direction)
    return turned


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    y: Tensor = RmsNorm.apply(x, norm.weight, norm.variance_epsilon)
    return y


def _attention(
    layer: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of (B, T, D) to itself and what is cached; heads of a group share keys and values.

    The G query heads of a group stand below one another, so that a product with their keys is one
    of (G·T, d) with (d, W) for each of H groups, and nothing is copied G times.
    """
    batch, tokens, _ = hidden_states.shape
    size = layer.head_dim
    cos, sin = (x[:, :, None] for x in position_embeddings)

    def heads(projected: Tensor) -> Tensor:
        return projected.view(batch, tokens, -1, size)

    query = Rotation.apply(heads(layer.q_proj(hidden_states)), cos, sin)
    keys = Rotation.apply(heads(layer.k_proj(hidden_states)), cos, sin).transpose(1, 2)
    values = heads(layer.v_proj(hidden_states)).transpose(1, 2)
    if past_key_values is not None:
        keys, values = past_key_values.update(keys, values, layer.layer_idx)
    if attention_mask is None and tokens > 1:  # causal, to all whose kernel knows what that is
        seen = scaled_dot_product_attention(
            query.transpose(1, 2),
            keys,
            values,
            is_causal=True,
            scale=layer.scaling,
            enable_gqa=True,
        ).transpose(1, 2)
    else:
        seen = _grouped(query, keys, values, attention_mask, layer.scaling)
    return layer.o_proj(seen.reshape(batch, tokens, -1)), None


def _grouped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """Return what (B, T, H·G, d) queries see of (B, H, W, d); mask (B or 1, 1, T, W) is added."""
    (batch, tokens, _, size), (_, groups, width, _) = query.shape, keys.shape
    query = query.view(batch, tokens, groups, -1, size).permute(0, 2, 3, 1, 4)  # (B, H, G, T, d)
    query = query.reshape(batch * groups, -1, size)
    keys, values = (x.flatten(0, 1) for x in (keys, values))
    if tokens == 1 and keys.is_cpu:  # few queries are multiplied faster from the right
        scores = torch.bmm(keys, query.transpose(1, 2)).transpose(1, 2).contiguous()
    else:
        scores = torch.bmm(query, keys.transpose(1, 2))
    scores.mul_(scaling)
    if mask is not None:
        scores.view(batch, groups, -1, tokens, width).add_(mask[:, :, None])
    seen = torch.bmm(scores.softmax(-1), values)  # a softmax in bfloat16 adds in float32
    return seen.view(batch, groups, -1, tokens, size).permute(0, 3, 1, 2, 4)
