"""The private loop: what it releases and records at each step, and what never reaches its noise."""

import math
import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModelForCausalLM

from tests.helpers import oracle
from twinset.config import SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.policies import MechanismParams
from twinset.policies.policy import Uniform
from twinset.privacy.accounting.events import Event, NonPrivateAccess, SubsampledGaussian
from twinset.privacy.clipping import ClippingEngine, Scale
from twinset.privacy.clipping.engine import FAST
from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.progress import StepReport
from twinset.table.tokenization import TokenisedRecords
from twinset.training import loop
from twinset.training.clipped_sum import MismatchLoss
from twinset.training.loop import StepContext

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
            gate=Gate(run.events.append),
            training=TrainingConfig(mismatch_prompts=mismatched, seed=seed),
            speed=SpeedConfig(physical_batch=physical),
            observe=run.reports.append,
        )
        loop.run_training(SimpleNamespace(model=model, execution=FAST), batches, context)
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


class Stretched(Watched):
    """Asks for a geometry in which the first parameter counts double, and learns nothing."""

    def scales(self):
        return [Scale(torch.full((p.shape[-1],), 1.0 if i else 0.5)) for i, p in self.parameters]


class OwnLimits(Watched):
    """Clips record i to its own norm."""

    def limits(self, records):
        return C * torch.tensor([(i + 1) / 12 for i in records], dtype=torch.float64)


@pytest.mark.parametrize("asked", [Watched, Stretched, OwnLimits])
def test_the_sum_is_that_of_one_record_at_a_time_as_the_policy_asks(rerun, model, asked):
    """In physical batches of records sorted by length, so that a mixed-up order would show."""
    records, Stretched.parameters = tokenised(), list(enumerate(model.parameters()))
    loss = oracle.bounded(0.5)
    gradients = [oracle.unit_gradient(model, unit, loss) for unit in units_of(records)]
    if asked is Stretched:
        gradients = [[2.0 * g[0], *g[1:]] for g in gradients]
    limits = [C * (i + 1) / 12 if asked is OwnLimits else C for i in range(12)]
    norms = [oracle.norm(g) for g in gradients]
    factors = [min(1.0, (1 - 1e-5) * limit / n) for limit, n in zip(limits, norms, strict=True)]
    weighed = [[f * part for part in g] for f, g in zip(factors, gradients, strict=True)]
    expected = [sum(parts) for parts in zip(*weighed, strict=True)]
    for physical in (1, 5, 100):
        run = rerun(records, mismatched=4, physical=physical, watched=asked)
        assert same(run.sums[0], expected)
        report = run.reports[0]
        assert (report.records, report.non_finite) == (12, 0)
        assert report.clipped == pytest.approx(np.mean([f < 1 for f in factors]))


@pytest.mark.parametrize("without", [0, 7])
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
    assert oracle.norm(moved) == pytest.approx((1 - 1e-5) * C, rel=EXACT)


@pytest.mark.parametrize(
    ("most", "physical", "attempts"),  # of each: its units, and whether layers keep less
    [
        (3, 8, [(8, False), (4, False)] + [(2, False)] * 12),
        (0, 2, [(2, False), (1, False)] + [(1, True)] * 24),
    ],
)
def test_out_of_memory_takes_less_at_once_and_changes_nothing(
    rerun, monkeypatch, most, physical, attempts
):
    expected = rerun(physical=physical, the_plan=plan(steps=2))
    original, seen = ClippingEngine.add, []

    def add(self, sequences, *more):
        keeps_less = bool(self._layers)
        seen.append((sequences.units, keeps_less))
        report = original(self, sequences, *more)  # fails after it has added something
        if sequences.units > most and not keeps_less:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return report

    monkeypatch.setattr(ClippingEngine, "add", add)
    actual = rerun(physical=physical, the_plan=plan(steps=2))
    assert seen == attempts and len(actual.events) == 2
    assert all(same(actual.sums[step], expected.sums[step]) for step in (0, 1))


# -- the release -----------------------------------------------------------------------------------


def test_each_step_is_recorded_and_divided_by_the_expected_batch_size(model):
    run = run_training(model, the_plan=plan(batch=6, steps=8))
    assert run.events == [SubsampledGaussian(SIGMA, 0.5, 1)] * 8
    assert [r.step for r in run.reports] == list(range(1, 9))
    sizes = [r.records for r in run.reports]
    assert any(size not in (0, 6) for size in sizes)
    for noisy, gradient, size in zip(run.noisy, run.gradients, sizes, strict=True):
        assert same(gradient, [n / 6 for n in noisy])
        if size not in (0, 6):  # the control: dividing by the realised size is off by 14 % or more
            assert not same(gradient, [n / size for n in noisy], bound=0.1)


def has_spread(draws: Tensor, std: float) -> bool:
    """Kolmogorov–Smirnov: may these be draws from N(0, std²)?"""
    return kstest(draws.numpy() / std, "norm").pvalue > 1e-4


def test_an_empty_batch_releases_noise_alone(model):
    run = run_training(model, the_plan=plan(batch=1, steps=12))
    empty = [i for i, r in enumerate(run.reports) if r.records == 0]
    assert empty and len(run.events) == 12
    for step in empty:
        assert not any(bool(s.any()) for s in run.sums[step])
        assert has_spread(run.noise(step), SIGMA * C)
        assert same(run.gradients[step], run.noisy[step])
        assert math.isnan(run.reports[step].loss)


def test_without_noise_the_ledger_records_it_and_the_loss_falls(model):
    run = run_training(model, the_plan=plan(steps=25, noise_multiplier=0.0, learning_rate=1e-2))
    assert isinstance(run.events[0], NonPrivateAccess)
    assert not run.noise(0).any()
    assert run.reports[-1].loss < 0.8 * run.reports[0].loss


# -- randomness ------------------------------------------------------------------------------------


def test_no_seed_reaches_the_noise(rerun):
    runs = []
    for _ in range(2):  # with every global seed put back between
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        runs.append(rerun(the_plan=plan(), randomness=Randomness.from_os(), seed=7))
    first, second = runs
    assert same(first.sums[0], second.sums[0])  # all records, the same wrong prompts: a seed's work
    both = torch.stack([first.noise(0), second.noise(0)])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.03


# -- the loss --------------------------------------------------------------------------------------


MEANS = torch.tensor([[2.0, 2.5, 1.5], [3.0, 1.0, 1.0]], dtype=torch.float64)
COUNTS = torch.tensor([[4, 4, 4], [10, 10, 10]])


@pytest.mark.parametrize("form", ["published", "bounded"])
def test_the_loss_is_the_oracles_and_sees_no_other_unit(form):
    loss, written_again = MismatchLoss(0.3, form), getattr(oracle, form)(0.3)
    together = loss(MEANS, COUNTS)
    theirs = [written_again(list(m), int(c[0])) for m, c in zip(MEANS, COUNTS, strict=True)]
    assert together.tolist() == pytest.approx([float(t) for t in theirs], rel=1e-12)
    assert together.tolist() == [loss(MEANS[i : i + 1], COUNTS[i : i + 1]).item() for i in (0, 1)]
    jacobian = torch.autograd.functional.jacobian(lambda means: loss(means, COUNTS), MEANS)
    assert not jacobian[0, 1].any() and not jacobian[1, 0].any()
    plain = [MismatchLoss(0.0, form)(MEANS, COUNTS), loss(MEANS[:, :1], COUNTS[:, :1])]
    assert all(torch.equal(found, MEANS[:, 0]) for found in plain)


def test_control_the_authors_batch_mean_sees_others():
    def batch_mean(means: torch.Tensor) -> torch.Tensor:
        return means[:, 0] - 0.7 * means[:, 1:].mean()

    jacobian = torch.autograd.functional.jacobian(batch_mean, MEANS)
    assert jacobian[0, 1].abs().max() > 0.1
