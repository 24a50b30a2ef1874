"""A private run stays on its device, without a GPU: on one that is pretended."""

import __future__

import inspect
import textwrap
from contextlib import nullcontext

import pandas as pd
import pytest
import torch

from tests.helpers import oracle
from tests.helpers.clipped import EXACT, LOSSES, C, build, random_units, run_engine, with_adapters
from tests.helpers.pretended import DEVICE, Mixed, Pretended, pretended_gpu, pretending
from twinset import Twinset
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.clipping.engine import UnitClipping
from twinset.privacy.clipping.gradient_uses import EmbeddingUse, repeatable_kernels
from twinset.sampling import decoding, token_sampling
from twinset.sampling.twin_model import TwinModel


def on_device(model: torch.nn.Module, units, place: torch.device) -> oracle.Clipped:
    """Return what the engine makes of a model there, moved back."""
    with pretending() if place == DEVICE else nullcontext():
        found = run_engine(model.to(place), units, LOSSES["bounded"][0], physical=3)
        return oracle.Clipped(found.norms, {n: total.cpu() for n, total in found.sums.items()})


@pytest.mark.parametrize(
    "place", [DEVICE, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=str
)
@pytest.mark.parametrize(("family", "method"), [("gpt2-tied", "full"), ("llama-untied", "lora")])
def test_the_clipped_sum_on_a_device_is_that_of_one_record_at_a_time(family, method, place):
    model, units = build(family), random_units(0, 7, 2)
    model = with_adapters(model) if method == "lora" else model
    expected = oracle.clipped(model, units, LOSSES["bounded"][1], C)
    assert oracle.largest_error(on_device(model, units, place), expected) < EXACT


OPTIONS = {
    "lora": {},
    "full": {"method": "full", "precision": "float32"},
    "importance": {"noise_policy": "importance"},
    "adaptive": {"noise_policy": "adaptive", "policy_form": "published"},
    "selective": {"noise_policy": "selective"},
    "teacher": {"teacher_share": 0.1},
}


def fitted(base, **options) -> Twinset:
    words = ["bad", "good"]
    rows = [(f"The film {i} was {words[i % 2]}.", words[i % 2]) for i in range(24)]
    frame = pd.DataFrame(rows, columns=["review", "verdict"])
    quick = {"steps": 1, "batch_size": 8, "max_tokens": 8, "device": "cuda"}
    made = Twinset(base_model=str(base), **quick, **options)
    return made.fit(frame, "review", labels={"verdict": words})


@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("tiny_llama", "lora"),
        pytest.param("tiny_base", "lora", marks=pytest.mark.slow),
        *(pytest.param("tiny_llama", name, marks=pytest.mark.slow) for name in [*OPTIONS][1:]),
    ],
)
def test_a_whole_run_stays_on_its_device(request, monkeypatch, tmp_path, base, options):
    """Base model, check of batch invariance, steps, noise, tilt, rows; and it is saved whole."""
    with pretended_gpu(monkeypatch):
        made = fitted(request.getfixturevalue(base), **OPTIONS[options])
        assert all(isinstance(p, Pretended) for p in made.model.model.parameters())
        assert len(made.sample(2)) == 2
        made.model.model.to(torch.device("cpu"))
    made.save(tmp_path)
    assert TwinModel.load(tmp_path, "cpu").model.device.type == "cpu"


# Where a forgotten device would be met: (owner, function, what stands there, what is planted).
PLANTED = {
    "norms": (UnitClipping, "_norms", ", device=self._sums[0].device", ""),
    "limits": (UnitClipping, "_clip", "limit.to(norms.device)", "limit"),
    "losses of rows": (ClippingEngine, "_unit_losses", "row.to(nll.device)", "row"),
    "tokens": (ClippingEngine, "_unit_losses", "input_ids.to(device)", "input_ids"),
    "rows of an embedding": (EmbeddingUse, "squared_norms", ", device=self.ids.device", ""),
    "mask": (decoding.TokenStep, "compute", "self.dtype, device=at.device", "self.dtype"),
    "draws": (token_sampling, "_any_token", "draw.to(weights.device)", "draw"),
    "tilt": (TwinModel, "sampler", "bias.to(self.model.device)", "bias"),
}


def plant(monkeypatch, owner, name: str, there: str, instead: str) -> None:
    """Put other source text into a function."""
    function = inspect.unwrap(getattr(owner, name))
    source = textwrap.dedent(inspect.getsource(function))
    assert there in source
    found: dict = {}
    annotations = __future__.annotations.compiler_flag
    code = compile(source.replace(there, instead), "planted", "exec", annotations)
    exec(code, function.__globals__ | {"__class__": owner}, found)
    monkeypatch.setattr(owner, name, found[name])


@pytest.mark.parametrize("fault", PLANTED.values(), ids=list(PLANTED))
def test_a_forgotten_device_is_caught(monkeypatch, tiny_base, fault):
    plant(monkeypatch, *fault)
    with pretended_gpu(monkeypatch), pytest.raises(Exception, match="of the processor") as caught:
        fitted(tiny_base, **OPTIONS["full"]).sample(2)
    # drawing is tried before training, and says what failed
    assert isinstance(caught.value.__cause__ or caught.value, Mixed)


def test_a_gpu_repeats_its_sums_and_multiplies_whole_float32(monkeypatch):
    def settings() -> tuple:
        memory = torch.utils.deterministic.fill_uninitialized_memory
        return (torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision(), memory)

    before = settings()
    torch.set_float32_matmul_precision("high")
    try:
        with repeatable_kernels(torch.zeros(1)):
            assert settings() == (before[0], "high", before[2])  # the processor's are left alone
        with pretending(), repeatable_kernels(torch.zeros(1, device=DEVICE)):
            assert settings() == (2, "highest", False)
        assert settings() == (before[0], "high", before[2])
    finally:
        torch.set_float32_matmul_precision(before[1])


def test_a_step_outside_of_the_engine_may_not_mix_either(tiny_base):
    """The control of the pretended device itself."""
    with pretending():
        there = torch.zeros(3, device=DEVICE)
        assert (there + torch.ones(())).tolist() == [1, 1, 1]
        for wrong in (lambda: there + torch.zeros(3), lambda: torch.cat([there, torch.zeros(1)])):
            with pytest.raises(Mixed):
                wrong()
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()
