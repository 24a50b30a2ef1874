"""Layers in four bits, packed and fused: exact gradients, and no batch interference."""

import sys
import types

import pytest
import torch
from peft.utils import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from tests.helpers import oracle
from tests.helpers.clipped import (
    C,
    build,
    random_units,
    run_engine,
    with_adapters,
    with_factors,
)
from tests.helpers.commands import arguments, call
from twinset.config import TrainingConfig
from twinset.models.adapters import merge_trained, prepare_trainable
from twinset.models.assets import no_fetched_code
from twinset.models.base_model import load_base
from twinset.models.device import has_bfloat16
from twinset.models.layers import (
    BatchShape,
    Nf4Linear,
    PackedLinears,
    dequantise,
    fuse,
    is_batch_invariant,
    packable_layers,
    quantise_frozen,
)
from twinset.privacy.clipping.engine import FAST, Execution
from twinset.training.clipped_sum import MismatchLoss

LOSS = MismatchLoss(0.7, "bounded"), oracle.bounded(0.7)
ROUNDING = 1e-4  # float32, against autograd in float32


def in_four_bits(family: str) -> nn.Module:
    return quantise_frozen(with_adapters(build(family, torch.float32)))


def layers(model: nn.Module) -> list[Nf4Linear]:
    return [m for m in model.modules() if isinstance(m, Nf4Linear)]


@pytest.mark.parametrize("family", ["gpt2-tied", "llama-untied"])
@pytest.mark.parametrize("execution", [FAST, Execution(gradient_checkpointing=True)])
def test_clipped_sums_are_those_of_plain_layers_with_the_same_weights(family, execution):
    model, units = in_four_bits(family), random_units(5, 4, 2)
    assert layers(model)
    mine = run_engine(model, units, LOSS[0], 3, execution=execution)
    theirs = oracle.clipped(dequantise(model), units, LOSS[1], C)
    assert oracle.largest_error(mine, theirs) < ROUNDING


def test_the_comparison_sees_rounded_weights_and_gradients_follow_a_pass_without_them():
    model, units = in_four_bits("gpt2-tied"), random_units(5, 4, 2)
    with torch.no_grad():  # the library's own layer packs its weights then, and ends gradients
        model(torch.tensor([[1, 2, 3]]))
    mine = run_engine(model, units, LOSS[0], 3)
    assert oracle.largest_error(mine, oracle.clipped(dequantise(model), units, LOSS[1], C)) < 1e-4
    # negative control: against the base model as it was, the same comparison fails
    theirs = oracle.clipped(with_adapters(build("gpt2-tied", torch.float32)), units, LOSS[1], C)
    assert oracle.largest_error(mine, theirs) > 100 * ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_records_leave_one_another_alone_where_those_of_lora_do(tiny_base, dtype):
    models = (
        prepare_trainable(load_base(str(tiny_base)).model.to(dtype), TrainingConfig(method=method))
        for method in ("lora", "qlora", "ia3")
    )
    shapes = [BatchShape(4, 2, 16), BatchShape(2, 2, 48)]
    alike = [is_batch_invariant(model, C, FAST, shapes) for model in models]
    assert alike == [True, True, True]


@pytest.mark.parametrize(
    ("family", "dtype"), [("gpt2-tied", torch.float32), ("llama-tied", torch.bfloat16)]
)
@pytest.mark.parametrize("prepare", [lambda m: quantise_frozen(with_adapters(m)), with_factors])
def test_the_saved_model_is_the_one_that_was_trained(family, dtype, prepare):
    names = [name for name, _ in build(family, dtype).named_parameters()]
    model = prepare(build(family, dtype)).float()
    ids = torch.tensor([[1, 2, 3, 4]])
    before = model(ids).logits
    after = merge_trained(model)
    assert not layers(after) and [name for name, _ in after.named_parameters()] == names
    torch.testing.assert_close(after(ids).logits, before, rtol=1e-4, atol=1e-4)


def test_a_library_that_fetches_code_is_hidden(monkeypatch):
    fetcher = types.ModuleType("kernels")
    monkeypatch.setitem(sys.modules, "kernels", fetcher)
    with no_fetched_code(), pytest.raises(ImportError):
        import kernels  # noqa: F401
    assert sys.modules["kernels"] is fetcher


@pytest.mark.parametrize("method", ["qlora", "ia3"])
def test_a_run(tiny_base, good_table, method):
    more = ("--rows", 4, "--max-new-tokens", 6, "--method", method, "--output", "twin.csv")
    made = call(*arguments(tiny_base, ("t.csv", *more)))
    assert made.code == 0, made.err
    assert (good_table / "twin.csv").read_text().startswith('"review","label"')


def test_a_model_without_known_factors_is_refused_before_anything_is_spent(
    tiny_base, good_table, monkeypatch
):
    monkeypatch.delitem(TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING, "gpt2")
    made = call(*arguments(tiny_base, ("t.csv", "--budget", 10, "--method", "ia3")))
    assert made.code == 2 and "method lora" in made.err and made.err.count("\n") == 1
    assert [path.name for path in good_table.iterdir()] == ["t.csv"]


def transposed(layer):
    """Return the same layer as GPT-2 keeps it."""
    found = Conv1D(layer.out_features, layer.in_features)
    found.weight.data = layer.weight.data.t().contiguous()
    return found


@pytest.mark.parametrize("rows", [1, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [lambda layer: layer, transposed], ids=["linear", "conv1d"])
def test_packed_layers_multiply_by_their_copies(rows, dtype, kept):
    """Products in bfloat16 have the same bits, those in float32 about the same."""
    if dtype is torch.bfloat16 and not has_bfloat16(torch.device("cpu")):
        pytest.skip("needs a processor with bfloat16")
    torch.manual_seed(0)
    layers = kept(nn.Linear(24, 70)), nn.Linear(70, 33, bias=False)
    model = nn.Sequential(*layers).to(dtype)
    x = torch.randn(rows, 1, 24).to(dtype)
    with torch.inference_mode():
        packed, plain = PackedLinears(model), model(x)
        assert packable_layers(model) == list(model)
        model[1].weight.zero_()  # so that it is the copy that is multiplied by
        with packed.in_use():
            most = 1e-6 if dtype is torch.float32 else 0.0
            assert (model(x) - plain).abs().max() <= most < plain.abs().max()
        assert not model(x).any()


IDS = torch.arange(1, 25).view(2, 12)


@pytest.mark.parametrize("folder", ["tiny_base", "tiny_llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_stay(request, folder, dtype):
    plain = AutoModelForCausalLM.from_pretrained(request.getfixturevalue(folder)).to(dtype)
    with torch.no_grad():
        expected = plain(input_ids=IDS).logits
        fused = fuse(plain)
        rounding = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(fused(input_ids=IDS).logits, expected, rtol=0, atol=rounding)
    assert fused is plain
    assert (fused.config._attn_implementation == "eager") == (dtype is torch.bfloat16)
