"""On a real GPU, by `make gpu`; skipped where there is none, where `test_device` pretends one."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.clipped import C
from tests.helpers.commands import arguments, call
from tests.training.test_device import OPTIONS, fitted
from twinset.models.base_model import load_base
from twinset.models.hidden_states import Questions, states_of_records
from twinset.models.layers import BatchShape, batch_interference, fuse
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.clipping.engine import FAST
from twinset.privacy.mechanism.noise import _add_there, add_gaussian_to_each_
from twinset.privacy.mechanism.randomness import Randomness
from twinset.sampling.twin_model import TwinModel

pytestmark = pytest.mark.gpu
GPU = "cuda"
SHAPES = [BatchShape(12, 1, 16), BatchShape(5, 2, 32), BatchShape(1, 2, 48)]


@pytest.mark.parametrize("low", [None, torch.bfloat16])
@pytest.mark.parametrize("folder", ["tiny_base", "tiny_llama"])
def test_no_record_changes_a_bit_of_another_gradient(request, folder, low):
    """Under autocast too. If not so, a run says it and computes in float32."""
    model = AutoModelForCausalLM.from_pretrained(request.getfixturevalue(folder)).to(GPU)
    engine = ClippingEngine(fuse(model), C, replace(FAST, autocast=low))
    assert batch_interference(engine, model.config.vocab_size, SHAPES) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e9, 1e-44])
def test_noise_is_rounded_there_as_a_processor_rounds_it(dtype, scale):
    """The same numbers, drawn ahead by processor threads, in three steps in a row."""
    sums = (torch.linspace(-3, 3, 300_001).double() * scale).to(dtype)
    scales = torch.linspace(0.5, 2, len(sums), dtype=torch.float64)
    there, here = Randomness.for_tests(5), Randomness.for_tests(5)
    for _ in range(3):
        on_gpu, on_processor = sums.to(GPU), sums.clone()
        add_gaussian_to_each_([on_gpu], 0.7, there, [scales.to(GPU)])
        _add_there([on_processor], [0.7 * scales], here)
        assert torch.equal(on_gpu.cpu(), on_processor) and not torch.equal(on_processor, sums)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("folder", ["tiny_base", "tiny_llama"])
def test_a_whole_run(request, tmp_path, folder, options):
    made = fitted(request.getfixturevalue(folder), **OPTIONS[options])
    assert made.model.model.device.type == GPU and len(made.sample(6)) == 6
    made.save(tmp_path)
    assert TwinModel.load(tmp_path, "cpu").model.device.type == "cpu"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_make_one_run(tiny_base, good_table):
    given = arguments(tiny_base, ("t.csv", "--run", "r", "--rows", "40", "--steps", "3"))
    made = call(*given, "--epsilon", "20", "--processes", "2", "--device", GPU)
    assert made.code == 0, made.err
    assert call("verify", "r").code == 0


@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("folder", ["tiny_base", "tiny_llama"])
def test_records_in_a_batch_change_no_bit_of_each_other(request, folder, low):
    base = load_base(str(request.getfixturevalue(folder)), dtype=low, device=GPU)
    questions = Questions(fuse(base.model), base.tokenizer, ["mood"])
    records = [[5 + i % 50] * (3 + i % 70) for i in range(300)]
    together = dict(states_of_records(questions, records))
    assert len(questions.alone) > 2 and all(questions.alone.values())
    some = dict(states_of_records(questions, records[7:90]))
    assert all((some[i] == together[i + 7]).all() for i in some)
    rounded = 1e-4 if low is torch.float32 else 0.1
    assert together[4] == pytest.approx(questions.states_of_batch([records[4]])[0], abs=rounded)
