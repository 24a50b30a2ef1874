"""Other engines, each through its own interface: model and work in, a step out.

Where an engine needs help with these models it is given it, and the help is said in a note.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from transformers.pytorch_utils import Conv1D

from evaluation.bench.cases import ORDINARY
from evaluation.bench.ours import UNIT_LOSS, Made, Work, ordinary, our_kernels, ours

ROWS_APART = "clips rows apart"


class Unavailable(Exception):
    """An engine cannot be imported, or does not know this model."""


class Engine(NamedTuple):
    """How a step is made, the library that has to be there, and whether it is tried in autocast."""

    make: Callable[[Any, Work], Made]
    library: str = "torch"
    autocast: bool = False

    def load(self) -> None:
        """Import the library.

        Raises:
            Unavailable: it is not installed.
        """
        try:
            importlib.import_module(self.library)
        except ModuleNotFoundError as error:
            raise Unavailable(f"not installed (no module {error.name})") from None


def _row_losses(model: Any, work: Work) -> Tensor:
    """(R,) mean token loss of every row."""
    logits = model(input_ids=work.input_ids, position_ids=work.position_ids).logits[:, :-1]
    losses = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), work.input_ids[:, 1:].flatten(), reduction="none"
    )
    return losses.view(len(work.input_ids), -1).mean(1)


def _notes(*notes: str, work: Work) -> str:
    said = [note for note in notes if note] + [ROWS_APART] * (work.per_unit > 1)
    return "; ".join(said)


def _untie(model: Any) -> str:
    """Give the output layer a weight of its own, where it shares a trained one."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight is not table.weight or not head.weight.requires_grad:
        return ""
    head.weight = nn.Parameter(head.weight.detach().clone())
    return "weights untied, so one more table is trained"


def _refuse_unknown(model: nn.Module, known: Iterable[type]) -> None:
    """Raise where a trained parameter's module would be left out in silence."""
    known = set(known)
    for module in model.modules():
        if any(p.requires_grad for p in module.parameters(recurse=False)):
            if type(module) not in known:
                raise Unavailable(f"does not know {type(module).__name__}")


# -- Opacus ----------------------------------------------------------------------------------------


def _conv1d_gradients(layer: Conv1D, inputs: list[Tensor], b: Tensor) -> dict[Any, Tensor]:
    return {layer.weight: torch.einsum("nti,ntj->nij", inputs[0], b), layer.bias: b.sum(1)}


def _conv1d_norms(layer: Conv1D, inputs: list[Tensor], b: Tensor) -> dict[Any, Tensor]:
    a = inputs[0]
    squared = (a @ a.transpose(1, 2) * (b @ b.transpose(1, 2))).sum((1, 2))
    return {layer.weight: squared.clamp(min=0).sqrt(), layer.bias: b.sum(1).norm(dim=1)}


def opacus_hooks(model: Any, work: Work) -> Made:
    """`GradSampleModule` and `DPOptimizer`: every row's gradient, kept."""
    from opacus.grad_sample import GradSampleModule, register_grad_sampler
    from opacus.optimizers import DPOptimizer

    register_grad_sampler(Conv1D)(_conv1d_gradients)
    wrapped = GradSampleModule(model.train(), strict=False, loss_reduction="sum")
    optimizer = _opacus_optimizer(DPOptimizer, wrapped, work)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        _row_losses(wrapped, work).sum().backward()
        optimizer.clip_and_accumulate()
        optimizer.add_noise()

    return Made(step, _notes(work=work))


def opacus_ghost(model: Any, work: Work) -> Made:
    """Ghost clipping: one backward for the norms, a second for the sums."""
    from opacus.grad_sample import (
        GradSampleModuleFastGradientClipping,
        register_grad_sampler,
        register_norm_sampler,
    )
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    register_grad_sampler(Conv1D)(_conv1d_gradients)
    register_norm_sampler(Conv1D)(_conv1d_norms)
    untied = _untie(model)
    wrapped = GradSampleModuleFastGradientClipping(
        model.train(), strict=False, loss_reduction="mean", max_grad_norm=work.max_grad_norm
    )
    optimizer = _opacus_optimizer(DPOptimizerFastGradientClipping, wrapped, work)
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(), "mean")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        logits = wrapped(input_ids=work.input_ids, position_ids=work.position_ids).logits[:, :-1]
        targets = work.input_ids[:, 1:].flatten()
        criterion(logits.flatten(0, 1), targets, shape=logits.shape).backward()
        optimizer.accumulate()
        optimizer.add_noise()

    sampler = any(type(m) is Conv1D for m in model.modules())
    return Made(step, _notes(untied, "norm sampler for Conv1D is ours" * sampler, work=work))


def _opacus_optimizer(kind: Any, wrapped: nn.Module, work: Work) -> Any:
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    return kind(
        torch.optim.SGD(trained, lr=0.0),
        noise_multiplier=work.noise_multiplier,
        max_grad_norm=work.max_grad_norm,
        expected_batch_size=len(work.input_ids),
        loss_reduction="sum" if kind.__name__ == "DPOptimizer" else "mean",
    )


# -- torch.func ------------------------------------------------------------------------------------


def vmap_grad(model: Any, work: Work) -> Made:
    """`vmap(grad)`: every unit's gradient, kept. The only other one that can clip whole units."""
    model.set_attn_implementation("eager")  # `vmap` cannot batch the fused attention
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    detached = {name: p.detach() for name, p in trained.items()}
    length = work.input_ids.shape[1]
    units = work.input_ids.view(-1, work.per_unit, length)
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(length, length, dtype=model.dtype)
    mask = mask.masked_fill(ahead, torch.finfo(model.dtype).min)[None, None]
    counts = torch.full((1, work.per_unit), length - 1)

    def unit_loss(parameters: dict[str, Tensor], ids: Tensor) -> Tensor:
        given = {"input_ids": ids, "attention_mask": mask.expand(len(ids), -1, -1, -1)}
        logits = functional_call(model, parameters, (), given).logits[:, :-1].float()
        losses = nn.functional.cross_entropy(
            logits.transpose(1, 2), ids[:, 1:], reduction="none"
        )  # (K, T-1)
        return UNIT_LOSS(losses.mean(1)[None], counts)[0]

    per_unit = vmap(grad(unit_loss), in_dims=(None, 0))

    def step() -> None:
        model.zero_grad()
        gradients = per_unit(detached, units)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        scales = (work.max_grad_norm / norms).clamp(max=1.0)
        for name, parameter in trained.items():
            total = torch.einsum("n,n...->...", scales, gradients.pop(name))
            parameter.grad = total.add_(torch.randn_like(total), alpha=work.noise)

    return Made(step, "attention not fused")


# -- fastDP and private-transformers ---------------------------------------------------------------


def _leave_forward(library: str, model: nn.Module) -> str:
    """Keep both from replacing GPT-2's forward by one written for older transformers."""
    support = importlib.import_module(f"{library}.transformers_support")
    support.forward_swapper = lambda module: None  # type: ignore[attr-defined]
    gpt2 = any(type(module) is Conv1D for module in model.modules())
    return "its rewritten forward, for older transformers, is left out" if gpt2 else ""


def _engine_options(work: Work) -> dict[str, Any]:
    """What the engines of fastDP and private-transformers both want to know."""
    rows = len(work.input_ids)
    return {
        "batch_size": rows,
        "sample_size": 1000 * rows,
        "epochs": 1,
        "noise_multiplier": work.noise_multiplier,
        "max_grad_norm": work.max_grad_norm,
    }


def fast_dp(model: Any, work: Work) -> Made:
    """FastDP's book-keeping: one backward, whose layer gradients are kept."""
    from fastDP import PrivacyEngine
    from fastDP.supported_layers_grad_samplers import (
        _supported_layers_norm_sample_AND_clipping as known,
    )

    _refuse_unknown(model, known)
    kept = _leave_forward("fastDP", model)
    table = model.get_input_embeddings().weight
    tied = table.requires_grad and table is model.get_output_embeddings().weight
    engine = PrivacyEngine(
        model.train(),
        **_engine_options(work),
        clipping_fn="Abadi",
        loss_reduction="sum",
        origin_params=["wte", "wpe", "embed_tokens"] if table.requires_grad else None,
    )

    def step() -> None:
        model.zero_grad()
        _row_losses(model, work).sum().backward()
        engine._create_noisy_clipped_gradient()  # what its optimiser's step does first
        engine.unlock()

    wrong = "norm wrong: of a tied table's two uses one is left out" if tied else ""
    return Made(step, _notes(wrong, kept, work=work))


def private_transformers(model: Any, work: Work) -> Made:
    """Li et al.'s ghost clipping: two backward passes."""
    from private_transformers import PrivacyEngine
    from private_transformers.supported_layers_grad_samplers import (
        _supported_layers_grad_samplers as known,
    )

    _refuse_unknown(model, known)
    kept = _leave_forward("private_transformers", model)
    untied = _untie(model)
    engine = PrivacyEngine(
        model.train(),
        **_engine_options(work),
        clipping_mode="ghost",
        record_snr=False,
        skip_checks=True,
    )
    engine.attach(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0))

    def step() -> None:
        engine.zero_grad()
        engine.step(loss=_row_losses(model, work))
        engine.unlock()

    return Made(step, _notes(untied, kept, work=work))


ENGINES = {
    ORDINARY: Engine(ordinary, autocast=True),
    "ours": Engine(ours, autocast=True),
    "ours-low-memory": Engine(partial(ours, kept_bytes=0), autocast=True),
    "ours-kernels": Engine(our_kernels, autocast=True),
    "opacus-hooks": Engine(opacus_hooks, "opacus"),
    "opacus-ghost": Engine(opacus_ghost, "opacus"),
    "vmap": Engine(vmap_grad),
    "fastdp": Engine(fast_dp, "fastDP"),
    "private-transformers": Engine(private_transformers, "private_transformers"),
}
