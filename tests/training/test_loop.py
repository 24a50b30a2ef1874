"""The private loop: what it releases and records at each step, and what never reaches its noise."""

import math
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModelForCausalLM

from tests.helpers import oracle
from twinset.config import SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.models.adapters import add_lora
from twinset.policies import MechanismParams
from twinset.policies.policy import Uniform
from twinset.privacy.accounting.events import Event, NonPrivateAccess, SubsampledGaussian
from twinset.privacy.clipping import ClippingEngine, Scale
from twinset.privacy.clipping.engine import FAST
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.progress import StepReport
from twinset.table.tokenization import TokenisedRecords
from twinset.training.loop import StepContext, train

SIGMA, C, EXACT = 1.5, 0.7, 1e-9
LABELS = [(name,) for name in "abcde"]


def tokenised(count: int = 12) -> TokenisedRecords:
    draw = random.Random(0)
    texts = [[draw.randrange(1, 200) for _ in range(draw.randint(1, 9))] for _ in range(count)]
    labels = [LABELS[i % len(LABELS)] for i in range(count)]
    prompts = {label: [1, 2 + n, 9] for n, label in enumerate(LABELS)}
    return TokenisedRecords(texts, labels, prompts, 0, 128)


def plan(records: int = 12, batch: int = 12, steps: int = 1, **changes) -> Plan:
    made = Plan(records, 8.0, 1e-5, batch, steps, SIGMA, 1.0, 1e-3, 0.5)
    return replace(made, **changes)


@pytest.fixture
def model(tiny_base):
    return AutoModelForCausalLM.from_pretrained(tiny_base).double()


@pytest.fixture
def rerun(model):
    """Train from the weights that the model had first, as often as it is called."""
    start = {name: p.detach().clone() for name, p in model.state_dict().items()}

    def run(*given, **options) -> Run:
        model.load_state_dict(start)
        return run_training(model, *given, **options)

    return run


@dataclass
class Run:
    """What one run did, step by step."""

    sums: list[list[Tensor]] = field(default_factory=list)
    noisy: list[list[Tensor]] = field(default_factory=list)
    gradients: list[list[Tensor]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)

    def noise(self, step: int) -> Tensor:
        pairs = zip(self.noisy[step], self.sums[step], strict=True)
        return torch.cat([(after - before).flatten() for after, before in pairs])


class Watched(Uniform):
    """The uniform policy, with copies kept of what goes in and comes out."""

    def __init__(self, run: Run, setting: MechanismParams) -> None:
        super().__init__(setting)
        self._run = run

    def release(self, sums, records):
        self._run.sums.append([s.clone() for s in sums])
        noisy, event = super().release(sums, records)
        self._run.noisy.append([s.clone() for s in noisy])
        return noisy, event


def run_training(
    model,
    records: TokenisedRecords | None = None,
    the_plan: Plan | None = None,
    randomness: Randomness | None = None,
    physical: int = 4,
    mismatched: int = 2,
    seed: int = 0,
    watched: type[Watched] = Watched,
) -> Run:
    records, the_plan, run = records or tokenised(), the_plan or plan(), Run()
    randomness = randomness or Randomness.for_tests(0)
    sigma, rate = the_plan.noise_multiplier, the_plan.sample_rate
    policy = watched(run, MechanismParams(sigma, C, rate, randomness))
    batches = list(poisson_batches(len(records), rate, the_plan.steps, randomness))

    def before_step(optimizer, args, kwargs) -> None:
        assert len(run.events) == len(run.noisy), "a gradient was used before it was recorded"
        run.gradients.append([p.grad.clone() for p in optimizer.param_groups[0]["params"]])

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        context = StepContext(
            records=records,
            plan=the_plan,
            policy=policy,
            max_grad_norm=C,
            record_event=run.events.append,
            training=TrainingConfig(mismatch_prompts=mismatched, seed=seed),
            speed=SpeedConfig(physical_batch=physical),
            observe=run.reports.append,
        )
        train(model, batches, context, FAST)
    finally:
        handle.remove()
    return run


def same(left: list[Tensor], right: list[Tensor], bound: float = EXACT) -> bool:
    pairs = zip(left, right, strict=True)
    return all(oracle.relative_error(a, b) < bound for a, b in pairs)


# -- the clipped sum -------------------------------------------------------------------------------


def units_of(records: TokenisedRecords) -> list[oracle.Unit]:
    """Each record under its own prompt, and under all the wrong ones."""
    return [
        [(records.prompts[label], text)]
        + [(records.prompts[wrong], text) for wrong in LABELS if wrong != label]
        for text, label in zip(records.texts, records.labels, strict=True)
    ]


def test_the_sum_is_that_of_one_record_at_a_time(model):
    records = tokenised()
    expected = oracle.clipped(model, units_of(records), oracle.bounded(0.5), C)
    run = run_training(model, records, mismatched=4)
    assert same(run.sums[0], list(expected.sums.values()))
    report = run.reports[0]
    assert (report.records, report.non_finite) == (12, 0)
    assert report.clipped == pytest.approx(np.mean([n > C for n in expected.norms]))


class Stretched(Watched):
    """Asks for a geometry in which the first parameter counts double, and learns nothing."""

    def scales(self):
        return [Scale(torch.full((p.shape[-1],), 1.0 if i else 0.5)) for i, p in self.parameters]


def test_the_sum_is_taken_in_the_geometry_that_the_policy_asks_for(model):
    records, Stretched.parameters = tokenised(), list(enumerate(model.parameters()))
    loss = oracle.bounded(0.5)
    gradients = [oracle.unit_gradient(model, unit, loss) for unit in units_of(records)]
    stretched = [[2.0 * g[0], *g[1:]] for g in gradients]
    expected = oracle.clip_and_sum(stretched, list(oracle.trained(model)), C)
    run = run_training(model, records, mismatched=4, watched=Stretched)
    assert same(run.sums[0], list(expected.sums.values()))


class OwnLimits(Watched):
    """Clips record i to its own norm."""

    def limits(self, records):
        return C * torch.tensor([(i + 1) / 12 for i in records], dtype=torch.float64)


def test_each_record_is_clipped_to_the_norm_that_the_policy_gives_it(model):
    """In physical batches of records sorted by length, so that a mixed-up order would show."""
    records = tokenised()
    apart = [
        oracle.clipped(model, [unit], oracle.bounded(0.5), C * (i + 1) / 12).sums
        for i, unit in enumerate(units_of(records))
    ]
    expected = [sum(one[name] for one in apart) for name in apart[0]]
    run = run_training(model, records, mismatched=4, watched=OwnLimits)
    assert same(run.sums[0], expected)


def test_the_policy_sees_each_released_gradient_with_the_weights_it_was_taken_at(model):
    seen = []

    class Learning(Watched):
        def update_statistics(self, parameters, gradients):
            seen.append([[t.detach().clone() for t in group] for group in (parameters, gradients)])

    start = [p.detach().clone() for p in model.parameters()]
    run = run_training(model, watched=Learning)
    assert len(seen) == len(run.noisy) == len(run.gradients)
    assert all(map(torch.equal, seen[0][0], start))
    for (_, given), used in zip(seen, run.gradients, strict=True):
        assert all(map(torch.equal, given, used))


def test_physical_batches_change_nothing(rerun):
    one, *others = (rerun(physical=physical).sums[0] for physical in (1, 5, 100))
    assert all(same(one, other) for other in others)


@pytest.mark.parametrize("without", [0, 7, 11])
def test_one_record_more_moves_the_sum_by_its_own_clipped_gradient(rerun, without):
    """With one of four wrong prompts drawn: the other records' draws must stay what they were.

    Drawn one after another from one seeded generator, they moved the sum by up to 1.47 C (60
    records, λ = 3).
    """
    records, strong = tokenised(), {"mismatch_weight": 3.0}
    texts, labels = (
        [value for i, value in enumerate(values) if i != without]
        for values in (records.texts, records.labels)
    )
    fewer = replace(records, texts=texts, labels=labels)
    everyone = rerun(records, plan(**strong), mismatched=1)
    assert everyone.reports[0].clipped == 1
    others = rerun(fewer, plan(records=11, batch=11, **strong), mismatched=1)
    moved = [a - b for a, b in zip(everyone.sums[0], others.sums[0], strict=True)]
    assert oracle.norm(moved) == pytest.approx(C, rel=EXACT)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


def _failing(monkeypatch, error: Exception, largest: int) -> list[int]:
    """Let `add` fail, after it has added something, for more than `largest` units."""
    sizes: list[int] = []
    original = ClippingEngine.add

    def add(self, sequences, unit_loss, limits=None):
        sizes.append(sequences.units)
        report = original(self, sequences, unit_loss, limits)
        if sequences.units > largest:
            raise error
        return report

    monkeypatch.setattr(ClippingEngine, "add", add)
    return sizes


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_out_of_memory_halves_the_physical_batch_and_changes_nothing(rerun, monkeypatch, error):
    expected = rerun(physical=8, the_plan=plan(steps=2))
    sizes = _failing(monkeypatch, error, largest=3)
    actual = rerun(physical=8, the_plan=plan(steps=2))
    assert sizes == [8, 4] + [2] * 12
    assert all(same(actual.sums[step], expected.sums[step]) for step in (0, 1))
    assert len(actual.events) == 2


def test_where_one_unit_is_too_much_layers_keep_less_and_nothing_changes(rerun, monkeypatch):
    expected = rerun(physical=2, the_plan=plan(steps=2))
    original, sizes = ClippingEngine.add, []

    def add(self, sequences, *more):
        sizes.append((sequences.units, self._layers is not None))
        if self._layers is None:
            raise OUT_OF_MEMORY[0]
        return original(self, sequences, *more)

    monkeypatch.setattr(ClippingEngine, "add", add)
    actual = rerun(physical=2, the_plan=plan(steps=2))
    assert sizes == [(2, False), (1, False)] + [(1, True)] * 24
    assert all(same(actual.sums[step], expected.sums[step]) for step in (0, 1))


@pytest.mark.parametrize(
    ("error", "largest"), [(OUT_OF_MEMORY[0], 0), (RuntimeError("shapes do not match"), 100)]
)
def test_other_errors_and_hopeless_ones_end_the_run(model, monkeypatch, error, largest):
    if largest:
        monkeypatch.setattr(ClippingEngine, "add", lambda *_: (_ for _ in ()).throw(error))
    else:
        _failing(monkeypatch, error, largest)
    with pytest.raises(RuntimeError, match=str(error)):
        run_training(model)
    assert all(p.requires_grad for p in model.parameters())


def test_an_error_before_the_first_physical_batch_is_raised_as_it_is(model, monkeypatch):
    error = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    )
    monkeypatch.setattr(ClippingEngine, "zero", lambda self: (_ for _ in ()).throw(error))
    with pytest.raises(RuntimeError, match="allocate memory"):
        run_training(model)


# -- the release -----------------------------------------------------------------------------------


def test_every_step_is_recorded_with_its_noise_and_rate(model):
    run = run_training(model, the_plan=plan(batch=3, steps=5))
    assert run.events == [SubsampledGaussian(SIGMA, 0.25, 1)] * 5
    assert [r.step for r in run.reports] == [1, 2, 3, 4, 5]


def test_the_gradient_is_the_noisy_sum_over_the_expected_batch_size(model):
    run = run_training(model, the_plan=plan(batch=6, steps=8))
    sizes = [r.records for r in run.reports]
    assert any(size not in (0, 6) for size in sizes)
    for noisy, gradient, size in zip(run.noisy, run.gradients, sizes, strict=True):
        assert same(gradient, [n / 6 for n in noisy])
        if size not in (0, 6):  # the control: dividing by the realised size is off by 14 % or more
            assert not same(gradient, [n / size for n in noisy], bound=0.1)


def test_an_empty_batch_releases_noise_alone(model):
    run = run_training(model, the_plan=plan(batch=1, steps=12))
    empty = [i for i, r in enumerate(run.reports) if r.records == 0]
    assert empty and len(run.events) == 12
    for step in empty:
        assert not any(bool(s.any()) for s in run.sums[step])
        assert has_spread(run.noise(step), SIGMA * C)
        assert same(run.gradients[step], run.noisy[step])
        assert math.isnan(run.reports[step].loss)


def test_a_broken_model_releases_noise_alone(model):
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = math.nan
    run = run_training(model)
    assert run.reports[0].non_finite == run.reports[0].records == 12
    assert not any(bool(s.any()) for s in run.sums[0])
    assert has_spread(run.noise(0), SIGMA * C)


def has_spread(draws: Tensor, std: float) -> bool:
    """Kolmogorov–Smirnov: may these be draws from N(0, std²)?"""
    from scipy.stats import kstest

    return kstest(draws.numpy() / std, "norm").pvalue > 1e-4


def test_the_noise_is_gaussian_with_sigma_times_c(model):
    draws = run_training(model).noise(0)
    assert len(draws) == sum(p.numel() for p in model.parameters()) > 20_000
    assert draws.std().item() == pytest.approx(SIGMA * C, rel=0.02)
    assert has_spread(draws, SIGMA * C)
    assert not has_spread(draws, SIGMA * C * 2 / 3)
    assert not has_spread(draws, SIGMA * C * 3 / 2)


def correlation(one: Tensor, other: Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1]))


def test_noise_is_new_at_every_step(model):
    run = run_training(model, the_plan=plan(steps=2))
    assert correlation(run.noise(0), run.noise(1)) < 0.03


def test_without_noise_the_ledger_records_it(model):
    run = run_training(model, the_plan=plan(noise_multiplier=0.0))
    assert isinstance(run.events[0], NonPrivateAccess)
    assert not run.noise(0).any()


# -- randomness ------------------------------------------------------------------------------------


@pytest.fixture
def twice(rerun):
    """Train two times, with every global seed put back between."""

    def run(randomness, the_plan) -> list[Run]:
        runs = []
        for _ in range(2):
            random.seed(0)
            np.random.seed(0)
            torch.manual_seed(0)
            runs.append(rerun(the_plan=the_plan, randomness=randomness(), seed=7))
        return runs

    return run


def test_no_seed_reaches_the_noise(twice):
    first, second = twice(Randomness.from_os, plan())
    assert same(first.sums[0], second.sums[0])  # all records, the same wrong prompts: a seed's work
    assert correlation(first.noise(0), second.noise(0)) < 0.03


def test_no_seed_reaches_the_poisson_draws(twice):
    pairs = [twice(Randomness.from_os, plan(batch=6)) for _ in range(3)]
    sums = {float(run.sums[0][0].norm()) for pair in pairs for run in pair}
    assert len(sums) > 1  # six draws from 4096 sets


def test_randomness_for_tests_is_reproducible(twice):
    first, second = twice(lambda: Randomness.for_tests(3), plan(batch=6, steps=3))
    for step in range(3):
        assert same(first.noisy[step], second.noisy[step], bound=1e-12)


# -- learning --------------------------------------------------------------------------------------


def test_without_noise_the_loss_falls(model):
    run = run_training(model, the_plan=plan(steps=25, noise_multiplier=0.0, learning_rate=1e-2))
    assert run.reports[-1].loss < 0.8 * run.reports[0].loss


def test_lora_changes_its_adapters_only(model):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    adapted = add_lora(model, 2)
    trained = set(oracle.trained(adapted))
    run_training(adapted, the_plan=plan(steps=2))
    assert set(oracle.trained(adapted)) == trained
    for name, p in adapted.named_parameters():
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert ("lora_" in name) or torch.equal(p, before[plain])
    assert any(p.any() for n, p in adapted.named_parameters() if "lora_B" in n)
