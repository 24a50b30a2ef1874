"""What is trained of a model: low-rank adapters (LoRA) through `peft`, or factors of features.

Few trained numbers need little noise, and the frozen rest needs no gradients. An adapter can also
be a file. It holds two factors for each layer and no copy of its base, which its facts name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from twinset.bounds import bounded
from twinset.config import TrainingConfig
from twinset.errors import InputError, first_line
from twinset.models.assets import no_fetched_code, quiet
from twinset.models.layers import dequantise, quantise_frozen
from twinset.privacy.clipping import FeatureFactors

# Queries and values, as in the LoRA paper (Hu et al. 2021, section 4.2). GPT-2 fuses them with the
# keys. They are a fifth of the numbers of "all-linear", so the squared noise is a fifth as well.
ATTENTION = ("q_proj", "v_proj", "c_attn")
ALL_LINEAR = ()


def prepare_trainable(model: Any, training: TrainingConfig) -> Any:
    """Return a model ready for a training method. The run's seed decides how adapters start."""
    if training.method == "full":
        return model
    if training.method == "ia3":
        return add_factors(model)
    with torch.random.fork_rng(devices=[]):  # adapters are drawn on the processor
        torch.manual_seed(training.seed)
        adapted = add_lora(model, training.lora_rank)
    return quantise_frozen(adapted) if training.method == "qlora" else adapted


@torch.no_grad()
def merge_trained(model: Any) -> Any:
    """Return a trained model with its adapters or factors in its weights, by float32."""
    if hasattr(model, "merge_and_unload"):
        return dequantise(model).float().merge_and_unload()
    for parent in list(model.modules()):
        for name, pair in parent.named_children():
            if isinstance(pair, nn.Sequential) and any(type(x) is FeatureFactors for x in pair):
                layer, factors = cast("list[Any]", [*pair.float()])
                if type(layer) is FeatureFactors:
                    layer, factors = factors, layer
                    inputs_first(layer).mul_(factors.weight[:, None])
                else:
                    inputs_first(layer).mul_(factors.weight)
                    if layer.bias is not None:
                        layer.bias.mul_(factors.weight)
                setattr(parent, name, layer)
    return model


def inputs_first(layer: Any) -> Tensor:
    """Return the weights (in, out) of a linear layer, which Conv1D keeps so."""
    weight: Tensor = layer.weight
    return weight if isinstance(layer, Conv1D) else weight.t()


# --- factors of features ------------------------------------------------------------------------


def add_factors(model: Any) -> Any:
    """Return the model with trainable factors of features, and everything else frozen: (IA)³.

    Keys, values and the inputs of the last layer of each block have them. `peft` knows which layers
    these are. Fewer numbers are trained than those of adapters of rank 8. Source: Liu et al. 2022,
    "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning".
    """
    wanted, on_inputs = names_of_factored(model)
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if name.endswith(wanted):
            parent, _, last = name.rpartition(".")
            inputs, outputs = inputs_first(layer).shape
            first = name.endswith(on_inputs)
            pair = (FeatureFactors(inputs), layer) if first else (layer, FeatureFactors(outputs))
            setattr(model.get_submodule(parent), last, nn.Sequential(*pair))
    return model


def names_of_factored(model: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return how the names end of layers with factors, and of those with factors of their inputs.

    Raises:
        InputError: `peft` does not know this kind of model.
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as ON_INPUTS
    from peft.utils import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING as WANTED

    kind = model.config.model_type
    if kind not in WANTED:
        raise InputError(
            f"`method=ia3` is not known for models of type {kind}. Take `method=lora`."
        )
    wanted, on_inputs = (tuple(f".{each}" for each in m[kind]) for m in (WANTED, ON_INPUTS))
    return wanted, on_inputs


# --- adapters -----------------------------------------------------------------------------------


@no_fetched_code()
def add_lora(model: Any, rank: int, targets: Sequence[str] = ATTENTION) -> Any:
    """Return the model with trainable low-rank adapters, and everything else frozen.

    `targets` are last parts of names of layers. A model that has none of them gets adapters on
    every linear layer except the output layer.
    """
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer

    leaves = {name.rpartition(".")[2]: module for name, module in model.named_modules()}
    found = [name for name in targets if name in leaves]
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=found or "all-linear",
        fan_in_fan_out=any(isinstance(leaves[name], Conv1D) for name in found or leaves),
        task_type="CAUSAL_LM",
    )
    with quiet():  # peft reads what transformers is about to rename
        adapted = get_peft_model(model, config)
    for layer in adapted.modules():
        if isinstance(layer, LoraLayer):
            layer.forward = partial(multiply_adapted, layer)
            for adapter in (*layer.lora_A.values(), *layer.lora_B.values()):
                adapter.forward = partial(multiply_factor, adapter)
    return adapted


def multiply_adapted(layer: Any, x: Tensor) -> Tensor:
    """Return layer(x) + B (α/r · A x), with all products in the input's format.

    peft casts x to the adapters' float32 and multiplies by α/r after B. These are passes over the
    widest numbers there are.
    """
    y: Tensor = layer.base_layer(x)
    for name in layer.active_adapters:
        y = y + layer.lora_B[name](layer.lora_A[name](x) * layer.scaling[name])
    return y


def multiply_factor(adapter: Any, x: Tensor) -> Tensor:
    """Return x Wᵀ in the format of x. W itself stays float32, because noise is added to it."""
    return linear(x, adapter.weight.to(x.dtype))


# --- an adapter as a file -----------------------------------------------------------------------


@dataclass(frozen=True)
class Adapter:
    """What an adapter belongs to. It adds scaling · B A to the weight of each linear layer."""

    base_model: str  # name of a built-in model
    base_origin: str  # what that model stated about itself when the adapter was trained
    rank: int = bounded(low=1, high=10_000)
    scaling: float = bounded(low=1e-6, high=1e6)

    def add_to(self, model: Any, file: Path, name: str) -> None:
        """Add scaling · B A to the weights of the base, in place and in float32."""
        from safetensors import SafetensorError, safe_open

        for own in model.parameters():  # to write into the pages of a mapped file is far slower
            own.data = own.detach().clone()
        # Weights (out, in) of all linear layers but the output's. Conv1D keeps them transposed.
        weights: dict[str, Tensor] = {
            name: layer.weight.detach().t() if isinstance(layer, Conv1D) else layer.weight.detach()
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear | Conv1D) and layer is not model.get_output_embeddings()
        }
        wanted = {f"{layer}.A": (self.rank, w.shape[1]) for layer, w in weights.items()}
        wanted |= {f"{layer}.B": (w.shape[0], self.rank) for layer, w in weights.items()}
        try:
            with safe_open(file, framework="pt") as opened:
                # Shapes are compared before any tensor is read.
                shapes = {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}
                if shapes != wanted:
                    raise InputError(
                        f"{name}: its adapter does not fit {self.base_model}. Train it again."
                    )
                factors = {key: opened.get_tensor(key) for key in shapes}
        except (OSError, SafetensorError) as error:
            raise InputError(f"{name} cannot be loaded: {first_line(error)}") from error
        for layer, weight in weights.items():
            a, b = (factors[f"{layer}.{which}"].to(weight.dtype) for which in "AB")
            weight.addmm_(b, a, alpha=self.scaling)  # needs no memory for the product itself


def read_factors(adapted: Any) -> tuple[dict[str, Tensor], float]:
    """Return the contents of an adapter's file, and the scaling α/r of the products.

    These are "layer.A" (r, in) and "layer.B" (out, r) in bfloat16, of a model of `add_lora`.
    """
    from peft.tuners.lora import LoraLayer

    found: dict[str, Any] = {}
    scaling: Any = 0
    for name, layer in adapted.get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            (a,), (b,), (scaling,) = (
                part.values() for part in (layer.lora_A, layer.lora_B, layer.scaling)
            )
            found |= {f"{name}.A": a.weight, f"{name}.B": b.weight}
    factors = {key: factor.detach().to(torch.bfloat16).cpu() for key, factor in found.items()}
    return factors, float(scaling)
