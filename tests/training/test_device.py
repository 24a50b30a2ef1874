"""A private run stays on its device, without a GPU: on one that is pretended."""

import __future__

import inspect
import re
import textwrap
from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import AutoModelForCausalLM

from tests.helpers import oracle
from tests.helpers.clipped import (
    CONTEXT,
    EXACT,
    LOSSES,
    C,
    build,
    random_units,
    run_engine,
    with_adapters,
)
from tests.helpers.pretended import DEVICE, Mixed, Pretended, pretended_gpu, pretending
from tests.training.test_loop import plan, tokenised
from twinset import Twinset
from twinset.config import PolicyConfig, RunConfig, SpeedConfig
from twinset.config.options import run_config
from twinset.models.base_model import load_base
from twinset.models.hidden_states import nats_per_token
from twinset.policies import MechanismParams, make_policy
from twinset.privacy.clipping import ClippingEngine, Scale, output_head
from twinset.privacy.clipping.engine import UnitClipping, repeatable_kernels
from twinset.privacy.clipping.gradient_uses import EmbeddingUse
from twinset.privacy.clipping.models import BatchShape, batch_interference
from twinset.privacy.mechanism import noise
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import Silent
from twinset.run.plan import measure_step
from twinset.sampling import decoding, token_sampling
from twinset.sampling.twin_model import TwinModel
from twinset.table.tokenization import TokenisedRecords
from twinset.training.clipped_sum import Batch, BatchShapes, ClippedSum, WrongPrompts
from twinset.training.distributed import DistributedSum, follow
from twinset.training.loop import StepContext, train

FAMILIES = ["gpt2-tied", "llama-untied"]  # the second with grouped heads
READS_A_BATCH = 40  # of values, in a physical batch of a model of two layers
READS_A_TOKEN = 5


def on_device(model: torch.nn.Module, units, place: torch.device) -> oracle.Clipped:
    """Return what the engine makes of a model there, moved back."""
    with pretending() if place == DEVICE else nullcontext():
        found = run_engine(model.to(place), units, LOSSES["bounded"][0], physical=3)
        return oracle.Clipped(found.norms, {n: total.cpu() for n, total in found.sums.items()})


@pytest.mark.parametrize(
    "place", [DEVICE, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=str
)
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_clipped_sum_on_a_device_is_that_of_one_record_at_a_time(family, method, place):
    model, units = build(family), random_units(0, 7, 2)
    model = with_adapters(model) if method == "lora" else model
    expected = oracle.clipped(model, units, LOSSES["bounded"][1], C)
    assert oracle.largest_error(on_device(model, units, place), expected) < EXACT


def test_a_physical_batch_reads_few_values_and_copies_none(monkeypatch):
    with pretending() as reads:
        model, units = build("gpt2-tied").to(DEVICE), random_units(0, 12, 2)
        run_engine(model, units[:1], LOSSES["bounded"][0])
        reads.clear()
        run_engine(model, units, LOSSES["bounded"][0])
        assert 0 < reads["values"] <= READS_A_BATCH  # and not some for each of the units
        assert reads["copies"] == 0
        plant(monkeypatch, *COPIED)
        run_engine(model, units, LOSSES["bounded"][0])
        assert reads["copies"] > 0


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
    quick = {"steps": 2, "batch_size": 8, "max_tokens": 8, "device": "cuda"}
    return Twinset(base_model=str(base), **quick, **options).fit(frame, "review", "verdict")


@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("tiny_base", "lora"),
        ("tiny_llama", "full"),
        *(pytest.param("tiny_llama", name, marks=pytest.mark.slow) for name in OPTIONS),
        *(pytest.param("tiny_base", name, marks=pytest.mark.slow) for name in list(OPTIONS)[2:]),
    ],
)
def test_a_whole_run_stays_on_its_device(request, monkeypatch, tmp_path, base, options):
    """Base model, check of batch invariance, steps, noise, tilt, rows; and it is saved whole."""
    with pretended_gpu(monkeypatch) as reads:
        made = fitted(request.getfixturevalue(base), **OPTIONS[options])
        assert all(isinstance(p, Pretended) for p in made.model.model.parameters())
        forwards = counted(monkeypatch)
        reads.clear()
        assert len(made.sample(6)) == 6
        assert 0 < reads["values"] <= READS_A_TOKEN * len(forwards)
        made.model.model.to(torch.device("cpu"))
    made.save(tmp_path)
    assert TwinModel.load(tmp_path, "cpu").model.device.type == "cpu"


def counted(monkeypatch) -> list[int]:
    """Return a list that gets longer with each forward pass of the sampler."""
    seen: list[int] = []
    plain = decoding._Batch.logits
    monkeypatch.setattr(decoding._Batch, "logits", lambda self: seen.append(1) or plain(self))
    return seen


# Where a forgotten device would be met: (owner, function, what stands there, what is planted).
PLANTED = {
    "norms": (UnitClipping, "_norms", ", device=self._sums[0].device", ""),
    "limits": (UnitClipping, "_clip", "limit.to(norms.device)", "limit"),
    "losses of rows": (ClippingEngine, "add", "row.to(nll.device)", "row"),
    "tokens": (
        ClippingEngine,
        "_token_losses",
        "sequences.input_ids.to(device)",
        "sequences.input_ids",
    ),
    "rows of an embedding": (EmbeddingUse, "squared_norms", ", device=self.ids.device", ""),
    "mask": (decoding.TokenStep, "compute", "self.dtype, device=at.device", "self.dtype"),
    "draws": (token_sampling, "_any_token", "draw.to(weights.device)", "draw"),
    "tilt": (TwinModel, "_biases", ".to(device)", ""),
}
# No error on a GPU either, but a copy for each piece.
COPIED = (output_head, "residuals", ", device=q.device", "")


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
    assert isinstance(caught.value, Mixed)


def test_short_memory_halves_the_check_and_the_probe_too(monkeypatch, tiny_base):
    """As it halves the physical batches of the run that they are made for."""
    plain, sizes = ClippingEngine.add, []

    def add(self, sequences, *more):
        sizes.append(sequences.units)
        if sequences.units > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(self, sequences, *more)

    monkeypatch.setattr(ClippingEngine, "add", add)
    base = load_base(str(tiny_base))
    engine = ClippingEngine(base.model, C)
    assert batch_interference(engine, base.model.config.vocab_size, [BatchShape(8, 1, 16)]) == 0
    engine.close()
    assert sizes == [8, 4, 2, 2]
    sizes.clear()
    config = RunConfig(speed=SpeedConfig(physical_batch=8, precision="float32"))
    assert measure_step(base, config, plan(24, mismatch_weight=0.0), 16, Silent())[0] > 0
    assert sizes == [1, 1, 8, 4, 2]


def test_the_probe_of_a_plan_and_perplexities_are_measured_there(tiny_llama, monkeypatch):
    texts = [[5, 6, 7], [8], [9, 10, 11, 12]]
    expected = nats_per_token(load_base(str(tiny_llama)).model, texts, 0)
    options = {"base_model": str(tiny_llama), "device": "cuda"}
    with pretended_gpu(monkeypatch):
        base = load_base(str(tiny_llama), device="cuda")
        torch.testing.assert_close(nats_per_token(base.model, texts, 0), expected)
        assert min(measure_step(base, run_config(options), plan(records=24), 16, Silent())) > 0


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


def refused_operations() -> set[str]:
    """Return what PyTorch says it has no repeatable kernel for, in letters alone."""
    said = torch.use_deterministic_algorithms.__doc__.rpartition("will throw a\n")[2]
    names = re.findall(r"`torch\.(?:\w+\.)*(\w+)`", said.partition("In addition")[0])
    return {name.replace("_", "").lower() for name in names}


class Seen(TorchDispatchMode):
    """Keeps the names of operations on numbers of the device; whole ones add in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Pretended)]
        if any(x.is_floating_point() for x in given):
            self.names.add(func.overloadpacket.__name__.replace("_", ""))
        return func(*args, **(kwargs or {}))


def test_no_operation_of_a_step_is_refused_for_want_of_a_repeatable_kernel(monkeypatch):
    def refused() -> set[str]:
        with pretending(), Seen() as seen:
            for family in FAMILIES:
                for adapted in (False, True):
                    model = with_adapters(build(family)) if adapted else build(family)
                    run_engine(model.to(DEVICE), random_units(0, 7, 2), LOSSES["bounded"][0])
        assert {"bmm", "indexadd", "scatteradd"} <= seen.names
        return seen.names & refused_operations()

    assert refused() == set()
    plant(monkeypatch, UnitClipping, "_norms", "squared.sqrt()", "squared.cumsum(0).sqrt()")
    assert refused() == {"cumsum"}


class Alone:
    """A process group of one process, which looks where tensors are."""

    rank, size, messages = 0, 1, []

    def broadcast_message(self, message=None):
        return self.messages.pop() if message is None else self.messages.append(message)

    def broadcast(self, tensors) -> None:
        assert all(isinstance(t, Pretended) for t in tensors)

    reduce = broadcast

    def gather(self, part, columns):
        assert not isinstance(part, Pretended)  # a rank without units has no other
        return [part]


@pytest.mark.parametrize("units", [[[0], [1, 2]], []])
def test_processes_exchange_sums_on_the_device_and_figures_on_the_processor(units):
    with pretending():
        engine = ClippingEngine(build("gpt2-tied").to(DEVICE), C)
        prompts = {("a",): [1, 5], ("b",): [1, 6]}
        records = TokenisedRecords([[7, 8]] * 3, [("a",), ("b",), ("a",)], prompts, 0, CONTEXT)
        wrong = WrongPrompts(1.0, "bounded", 1, 0)
        own = ClippedSum(engine, records, wrong, wrong.shapes(records, SpeedConfig(), 4))
        scales = [Scale(torch.ones(p.shape[-1], device=DEVICE)) for p in engine.parameters]
        report = DistributedSum(own, Alone()).compute_clipped_sum(Batch(1, units, scales=scales))
        assert len(report.norms) == len(units)
        group = Alone()
        asked = group.messages[0]
        group.messages[:] = ["end", asked]
        follow(own, group)
    engine.close()


def stepped(model, seed: int, state: dict | None = None) -> dict:
    """Take a step with the noise of a seed, from a state or from nothing; return the next one."""
    options = PolicyConfig(noise_policy="importance")
    params = MechanismParams(1.0, C, 1.0, Randomness.for_tests(seed), options)
    kept = []
    context = StepContext(
        records=tokenised(),
        plan=plan(steps=2),
        policy=make_policy(params),
        max_grad_norm=C,
        record_event=lambda event: None,
        resume_state=state,
        checkpoints=lambda step, state, is_end: kept.append(deepcopy(state())),
    )
    train(model, [np.arange(12)], context)
    return kept[-1]


def test_a_run_that_began_on_the_processor_goes_on_on_a_device(tiny_base, monkeypatch):
    """With the averages of its policy and of Adam, which a checkpoint brings to the processor."""

    def model():
        return AutoModelForCausalLM.from_pretrained(tiny_base)

    begun = stepped(model(), seed=1)
    expected = stepped(model(), 2, deepcopy(begun))["parameters"]

    def add_here(flat, std, randomness):  # the same streams, and each tensor by itself
        for numbers in flat:
            noise.add_gaussian_(numbers, std, randomness)

    monkeypatch.setattr(noise, "_add_there", add_here)
    with pretended_gpu(monkeypatch):
        found = stepped(model().to(DEVICE), 2, begun)["parameters"]
        assert all(isinstance(p, Pretended) for p in found)
        pairs = zip(found, expected, strict=True)
        assert all(torch.allclose(a.cpu(), b, rtol=1e-4, atol=1e-6) for a, b in pairs)


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


def test_a_gpu_has_few_large_physical_batches(monkeypatch):
    """It waits for the start of each kernel; on a processor there are 16 of a step's records."""

    def sizes(**options):
        return [BatchShapes(SpeedConfig(**options), 400, 2).units(1, n) for n in (16, 64, 256)]

    assert sizes() == [25, 16, 4]  # of 400 records 16 batches, or 2,048 tokens
    with pretended_gpu(monkeypatch):
        assert sizes() == [200, 128, 32]  # 2 batches, or 16,384 tokens
        assert sizes(physical_tokens=2048) == [64, 16, 4]
        assert sizes(physical_batch=7) == [7, 7, 7]
        assert sizes(device="cpu") == [25, 16, 4]
