"""Models whose per-unit gradients the engine does not know are refused, by name."""

import pytest
import torch
from torch import nn

from tests.helpers.clipped import (
    LOSSES,
    C,
    assert_exact,
    build,
    random_model,
    random_units,
    run_engine,
    to_sequences,
    with_adapters,
)
from tests.helpers.models import LLAMA
from twinset.models.layers import fuse
from twinset.privacy.clipping import ClippingEngine, Sequences, hooks
from twinset.privacy.clipping.hooks import UnsupportedModule


def _refusal(model: nn.Module) -> str:
    """Return how the model is refused, or fail."""
    with pytest.raises(UnsupportedModule) as refused:
        clipper = ClippingEngine(model, C)
        clipper.add(to_sequences(random_units(15, 2, 1)), LOSSES["plain"][0])
    return str(refused.value)


def test_an_unknown_module_is_refused_by_name_and_the_model_left_as_it_was():
    model = build("gpt2-tied")
    model.transformer.h[0].mlp.act = nn.PReLU().double()
    assert "h.0.mlp.act is a PReLU" in _refusal(model)
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


def compiled_by_call(model: nn.Module) -> None:
    model.model.compile(backend="eager")


def compiled_forward(model: nn.Module) -> None:
    model.model.forward = torch.compile(model.model.forward, backend="eager")


def wrapped(model: nn.Module) -> None:
    model.model = torch.compile(model.model, backend="eager")


@pytest.mark.parametrize("compiled", [compiled_by_call, compiled_forward, wrapped])
def test_a_compiled_model_is_refused(compiled):
    model = build("llama-tied")
    compiled(model)
    assert "a compiled model" in _refusal(model)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_it_would_be_wrong_without_an_error(monkeypatch):
    """The control, and why there is no such option."""
    units = random_units(0, 7, 2)

    def norms(model: nn.Module) -> torch.Tensor:
        return torch.tensor(run_engine(model, units, LOSSES["plain"][0]).norms)

    model = fuse(with_adapters(build("llama-tied")))  # as runs have it
    expected = norms(model)
    compiled_by_call(model.get_base_model())
    monkeypatch.setattr(hooks, "_is_compiled", lambda module: False)
    assert not torch.allclose(norms(model), expected, rtol=0.01)


def test_a_subclass_may_compute_something_else_and_is_refused():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = build("llama-tied")
    model.model.layers[0].mlp.up_proj = Doubled(16, 24, bias=False).double()
    assert "layers.0.mlp.up_proj is a Doubled" in _refusal(model)


@pytest.mark.parametrize("factor", [1.0, 1e-3], ids=["", "small logits hide nothing"])
def test_scaled_logits_are_refused(factor):
    scaled = random_model("GraniteConfig", logits_scaling=1.05, **LLAMA)
    with torch.no_grad():
        scaled.get_output_embeddings().weight.mul_(factor)
    assert "GraniteForCausalLM scales or shifts" in _refusal(scaled)


@pytest.mark.parametrize(
    ("train_embedding", "message"),
    [
        (True, "embed_tokens is a GemmaTextScaledWordEmbedding"),
        (False, "input_layernorm is a GemmaRMSNorm"),  # it normalises by one plus weight
    ],
)
def test_layers_of_gemma_are_refused(train_embedding, message):
    gemma = random_model("GemmaConfig", head_dim=4, **LLAMA)
    gemma.get_input_embeddings().weight.requires_grad_(train_embedding)
    assert message in _refusal(gemma)


def test_normalised_heads_are_exact():
    """Qwen3 normalises every head, so one token uses a scale several times."""
    model = random_model("Qwen3Config", head_dim=4, **LLAMA)
    assert_exact(model, random_units(16, 4, 2), "published")


def test_a_layer_that_loses_sight_of_the_rows_is_refused():
    """Experts see tokens of all rows in one list: grouped as units they would mix records."""

    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16).double()

        def forward(self, x):
            return self.inner(x.flatten(0, 1).flip(0)).flip(0).view(x.shape)

    model = build("gpt2-tied")
    model.transformer.h[0].mlp = Expert()
    assert "rows shared or in another order" in _refusal(model)


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameter"):
        ClippingEngine(build("gpt2-tied").requires_grad_(False), C)


def test_a_trained_parameter_without_part_in_the_loss_is_refused():
    model = build("gpt2-tied")
    model.spare = nn.Linear(2, 2).double()
    assert "took no part in the loss" in _refusal(model)


@pytest.mark.parametrize("mask", [[[True, True]], [[False, False]]])
def test_sequences_without_usable_loss_are_refused(mask):
    with pytest.raises(ValueError, match="token with loss"):
        Sequences(torch.zeros(1, 2, dtype=torch.long), torch.tensor(mask), 1)
