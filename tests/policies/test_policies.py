"""The four policies: their equations, their noise, and what each form guarantees and says."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.helpers.commands import QUICK, call, fitted_scale, texts
from twinset.config import PolicyConfig, PrivacyConfig, RunConfig
from twinset.config.plan import make_plan
from twinset.models.base_model import load_base
from twinset.models.hidden_states import NATS_TOKENS_AT_ONCE, nats_per_token
from twinset.policies import MechanismParams
from twinset.policies.adaptive import Adaptive, AdaptiveOptions, PublishedAdaptive
from twinset.policies.importance import Importance, PublishedImportance
from twinset.policies.selective import MaskedPhase
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import IndividualGaussian, MaskedAccess, NonPrivateAccess
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import STATED_WEIGHTS
from twinset.release.verify import verify
from twinset.run import story as finetune

RELEASE_NOTHING_ELSE = ("--prompt", "generic", "--marginal-share", 0, "--teacher-share", 0)
ADAPTIVE = ("--noise-policy", "adaptive", "--epsilon", 60)
C, SIGMA = 2.0, 1.5
WEIGHTS = torch.tensor([0.0, 0.5, 1.0, 0.25], dtype=torch.float64)


def params(policy=None, **changes):
    made = MechanismParams(
        SIGMA, C, 0.1, Randomness.for_tests(0), policy or PolicyConfig(), 0.4, WEIGHTS
    )
    return replace(made, **changes)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "reviews.csv"
    rows = [f"{text} Call 555-01{i:02}." for i, text in enumerate(texts(60))]
    labels = ["good" if i % 3 else "bad" for i in range(60)]
    pd.DataFrame({"review": rows, "verdict": labels}).to_csv(path, index=False)
    return path


@pytest.fixture
def run(tmp_path, table, tiny_base):
    """Run a command that takes the table and makes the run folder `run`."""
    given = (table, "--base-model", tiny_base, "--run", tmp_path / "run", *QUICK)
    return lambda command, *more: call(command, *given, *more)


@pytest.fixture(scope="module")
def scale(tmp_path_factory, tiny_base):
    return fitted_scale(tmp_path_factory.mktemp("scale"), tiny_base)


# -- adaptive --------------------------------------------------------------------------------------


def test_norms_fall_linearly_from_c_to_its_least_share():
    limits = Adaptive(params()).limits([2, 0, 1, 3])
    assert limits.tolist() == pytest.approx([0.8, 2.0, 1.4, 1.7])


def test_adaptive_noise_itself_is_uniform_and_says_what_it_spent():
    (noisy,), event = Adaptive(params()).release([torch.zeros(300, 300)], [2])
    assert float(noisy.std()) == pytest.approx(SIGMA * C, rel=0.02)
    assert event == IndividualGaussian(SIGMA, 0.1, 1, 0.4)


def test_published_noise_is_the_mean_weight_of_the_batch_times_uniform():
    """By hand: γ_B of records 2 and 3 is (1 + 0.25) / 2."""
    policy = PublishedAdaptive(params())
    assert policy.noise_scale([2, 3]) == 0.625
    (noisy,), event = policy.release([torch.zeros(300, 300)], [2, 3])
    assert float(noisy.std()) == pytest.approx(0.625 * SIGMA * C, rel=0.02)
    assert isinstance(event, NonPrivateAccess)
    (silent,), _ = policy.release([torch.zeros(3)], [])
    assert silent.tolist() == [0.0, 0.0, 0.0]  # as published: nobody there, no noise
    nominal, unbounded = policy.nominal
    assert nominal.noise_multiplier == 0.625 * SIGMA
    assert epsilon([unbounded], 1e-5) == math.inf
    assert PublishedAdaptive(params(noise_multiplier=0.0)).nominal == []


def test_phase_one_adds_no_noise_and_says_so():
    quiet = replace(params(PolicyConfig(detector="entities")), noise_multiplier=0.0)
    (same,), event = MaskedPhase(quiet).release([torch.ones(3)], [0])
    assert same.tolist() == [1.0, 1.0, 1.0] and event == MaskedAccess("entities")
    with pytest.raises(ValueError, match="without noise"):
        MaskedPhase(params(PolicyConfig(detector="entities")))


# -- privacy weights: what a public model makes of a text alone, on a public scale -----------------

TEXTS = [[5, 9, 7, 3], [11, 2], list(range(1, 30)), [8] * 200]  # the last is longer than the model


@pytest.fixture(scope="module")
def base(tiny_base):
    return load_base(str(tiny_base))


def test_nats_are_the_mean_loss_of_each_text_alone(base):
    counted = []
    found = nats_per_token(base.model, TEXTS, 0, lambda done, _: counted.append(done))
    assert counted[-1] == len(TEXTS)
    for text, nats in zip(TEXTS, found, strict=True):
        row = torch.tensor([[0, *text]])[:, :128]
        with torch.no_grad():
            loss = base.model(input_ids=row, labels=row).loss
        assert float(nats) == pytest.approx(float(loss), rel=1e-5)


def test_a_text_s_nats_do_not_depend_on_its_neighbours_by_a_single_bit(base):
    alone = nats_per_token(base.model, TEXTS[:1], 0)
    many = [[i % 90 + 1] * (i % 40 + 1) for i in range(3 * NATS_TOKENS_AT_ONCE // 16)]
    beside = nats_per_token(base.model, [*many, TEXTS[0], *many], 0)[len(many)]
    assert torch.equal(alone[0], beside)


def test_a_tenth_of_the_texts_is_beyond_each_end_of_the_scale(
    tmp_path, tiny_base, base, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    sentences = [f"A sentence, number {i}, {'and so on ' * (i % 9)}." for i in range(50)]
    pd.DataFrame({"words": sentences}).to_csv("public.csv", index=False)
    fit = f"weight-scale public.csv --output scale.json --quiet --base-model {tiny_base}".split()
    assert call(*fit, "--text", "words", "--precision", "float32").code == 0
    scale = Adaptive.weight_scale(AdaptiveOptions(weight_scale="scale.json"), base)
    ids = base.tokenizer([f" {s}" for s in sentences], add_special_tokens=False)["input_ids"]
    end = base.tokenizer.eos_token_id
    nats = nats_per_token(base.model, [[*row, end][:256] for row in ids], end)
    weights = scale.weights(nats)
    assert sum(weights == 0) in range(4, 8) and sum(weights == 1) in range(4, 8)
    nearest = [min(STATED_WEIGHTS, key=lambda stated: abs(stated - w)) for w in weights.tolist()]
    assert scale.shares == pytest.approx([nearest.count(w) / 50 for w in STATED_WEIGHTS])
    assert scale.origin == "50 texts of public.csv"
    assert re.fullmatch("local folder, files [0-9a-f]{64}", scale.base_model)
    assert str(tiny_base) not in json.dumps(asdict(scale))
    again = call(*fit, "--text", "words")
    assert again.code == 2 and "exists" in again.err


# -- the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "highest"), [(4.0, None), (4.0, 20.0)])
def test_both_budgets_are_met_by_the_plan_s_own_events(epsilon, highest):
    config = RunConfig(PrivacyConfig(epsilon), PolicyConfig("adaptive", epsilon_max=highest))
    plan = make_plan(10_000, config)
    most = 2 * epsilon if highest is None else highest
    assert 0.995 * most < plan.epsilon <= most
    assert 0.99 * epsilon < plan.epsilon_after(plan.steps, weight=1.0) <= epsilon
    uniform = make_plan(10_000, RunConfig(PrivacyConfig(epsilon)))
    assert plan.noise_multiplier <= uniform.noise_multiplier
    assert plan.highest == most


# -- importance ------------------------------------------------------------------------------------

SHAPES = [(4, 6), (6,), (5, 3)]


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def importance_params(seed=1, sigma=0.8, **options):
    named = {f"importance_{name}": value for name, value in options.items()}
    return MechanismParams(sigma, 2.0, 0.1, Randomness.for_tests(seed), PolicyConfig(**named))


def policy(seed=1, sigma=0.8, kind=Importance, steps=0, **options):
    """A policy that has seen the gradients of some steps."""
    made = kind(importance_params(seed, sigma, **options))
    for step in range(steps):
        made.update_statistics(tensors(100), tensors(step))
    return made


def test_averages_follow_equations_3_and_4():
    updated = policy(beta1=0.5, beta2=0.25)
    theta, first, second = (torch.tensor([x]) for x in (2.0, -3.0, 1.0))
    updated.update_statistics([theta], [first])  # |g θ| = 6
    assert (updated._sensitivity[0].item(), updated._deviation[0].item()) == (3.0, 0.75 * 3.0)
    updated.update_statistics([theta], [second])  # |g θ| = 2, S̄ = 2.5
    assert updated._sensitivity[0].item() == 2.5
    assert updated._deviation[0].item() == pytest.approx(0.25 * 2.25 + 0.75 * 0.5)


def test_scales_follow_from_released_gradients():
    """Equal importance leaves the plain geometry."""
    assert policy().scales() == []  # nothing was released yet
    scales = policy(steps=3).scales()
    for scale, shape in zip(scales, SHAPES, strict=True):  # or it raises
        scale.times_(torch.ones(shape))
    assert len({round(float(scale.columns[0]), 6) for scale in scales}) > 1
    equal = policy()
    equal.update_statistics([torch.ones(4, 6)], [torch.zeros(4, 6)])
    (plain,) = equal.scales()
    assert torch.equal(plain.times_(torch.ones(4, 6)), torch.ones(4, 6))


def test_noise_is_that_of_the_geometry():
    """The release divided by s is the sum plus N(0, σ²C²): two thirds of it would be noticed."""
    updated = policy(sigma=1.5)
    updated.update_statistics([torch.randn(300, 200)], [torch.randn(300, 200)])
    (scale,) = updated.scales()
    (noisy,), event = updated.release([torch.zeros(300, 200)], [])
    z = noisy / scale.times_(torch.ones(300, 200))
    assert float(z.std()) == pytest.approx(3.0, rel=0.02)
    assert float(noisy.std()) != pytest.approx(3.0, rel=0.02)
    assert event.noise_multiplier == 1.5 and event.sample_rate == 0.1


def test_a_restored_policy_continues_as_if_nothing_had_happened():
    first, second, forgetful = policy(steps=3), policy(), policy()
    first.release(tensors(9), [])
    second.restore(first.state())  # which does not follow the policy it is from
    for updated in (first, second, forgetful):
        updated.update_statistics(tensors(100), tensors(7))
    for one, other in zip(first.scales(), second.scales(), strict=True):
        assert torch.equal(one.columns, other.columns)
    assert first.mean_noise == second.mean_noise
    assert not torch.equal(forgetful.scales()[0].columns, first.scales()[0].columns)


def test_published_noise_is_two_minus_equation_7_over_all_parameters_together():
    updated = policy(kind=PublishedImportance, beta1=0.0, beta2=0.0, alpha=0.0, bound=100.0)
    weights = [torch.ones(2), torch.ones(3)]
    updated.update_statistics(weights, [torch.zeros(2), torch.zeros(3)])
    # S̄ = 1 2 | 3 4 10 and Ū = |S - S̄| = 0 with β = 0, so the averages are set by hand
    updated._sensitivity = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 10.0])]
    updated._deviation = [torch.ones(2), torch.ones(3)]
    # median 3, quartiles 2 and 4: scaled -1 -½ 0 ½ 3½, mean ½; centred at one: -½ 0 ½ 1 4
    first, second = updated.noise_shapes(weights)
    assert first.tolist() == [2.5, 2.0]
    assert second.tolist() == pytest.approx([1.5, 1.0, 0.01])  # 2 - 4 is no scale
    assert updated.scales() == []  # clipped as ever


def test_published_noise_has_that_spread_and_spends_what_the_least_noisy_direction_spends():
    updated = policy(kind=PublishedImportance, sigma=1.5)
    updated._sensitivity, updated._deviation = [torch.rand(100, 2000)], [torch.rand(100, 2000)]
    (scales,) = updated.noise_shapes([torch.zeros(100, 2000)])
    (noisy,), event = updated.release([torch.zeros(100, 2000)], [])
    assert float((noisy / scales).std()) == pytest.approx(3.0, rel=0.01)
    assert event.noise_multiplier == 0.75  # σ / b
    (nominal,) = updated.nominal
    assert nominal.noise_multiplier == 1.5
    assert float(scales.min()) >= 0.5


# -- end to end ------------------------------------------------------------------------------------


KEYS = [
    "adaptive-sound",
    "adaptive-published",
    pytest.param("importance-published", marks=pytest.mark.slow),
    "selective-sound",
]


@pytest.mark.parametrize("key", KEYS)
def test_every_policy_makes_a_twin_that_verifies(tmp_path, run, scale, key):
    name, form = key.split("-")
    policy = ("--noise-policy", name, "--policy-form", form, "--epsilon", 60)
    extra = ("--weight-scale", scale, "--epsilon-max", 90) if key == "adaptive-sound" else ()
    outcome = run("generate", "--rows", 4, *policy, *extra)
    assert outcome.code == 0, outcome.err
    share, internal = tmp_path / "run" / "share", tmp_path / "run" / "internal"
    report, card = verify(tmp_path / "run"), (share / "README.md").read_text("utf-8")
    ledger = json.loads((share / "privacy.json").read_text("utf-8"))["ledger"]
    assert len(pd.read_csv(share / "twin.csv")) == 4
    sentence, spent = report.guarantee.sentence, report.guarantee.epsilon
    if key == "adaptive-published":
        assert spent is None and "NO privacy guarantee" in card
        assert "nominal" in outcome.err
    elif name == "adaptive":
        assert 60 < spent <= 90
        (_, strictest, _), *_, (_, loosest, _) = report.guarantee.by_weight
        assert strictest <= 60.01 and loosest == math.ceil(spent * 100) / 100
        assert "| 0.75 |" in card and "privacy weight" in sentence
        assert sum(share for *_, share in report.guarantee.by_weight) == pytest.approx(1)
    elif key == "importance-published":
        assert spent > 60 and "no theorem" in sentence and "nominal" in outcome.err
    else:
        assert spent <= 60
    if name == "selective":
        assert sentence.startswith("NOT PROTECTED")
        body = card.split("# Synthetic twin")[1].lstrip()
        assert body.startswith("**Only what a detector flagged")
        assert "differential-privacy" not in card.split("---")[1]  # a hub's tag
        kinds = [event["kind"] for event in ledger["events"]]
        once = "gaussian_release"  # label counts, token marginals; the teacher, at the end
        steps = "masked_access", "subsampled_gaussian"
        assert kinds == ["label_selection", once, once, *steps, once]
    if form == "published":
        assert all(caveat in outcome.err and caveat in card for caveat in ledger["caveats"])
        assert ledger["caveats"]
    if name == "importance":
        assert min(json.loads((internal / "noise.json").read_text()).values()) > 0


def test_redacted_texts_are_all_that_is_read(run, monkeypatch):
    seen, original = [], finetune.tokenise

    def tokenise(records, *rest):
        seen.append(records)
        return original(records, *rest)

    monkeypatch.setattr(finetune, "tokenise", tokenise)
    made = run("finetune", "--redact-only", "--epsilon", 60, *RELEASE_NOTHING_ELSE)
    assert made.code == 0, made.err
    (records,) = seen
    assert all("555" not in text and "Call ___." in text for text in records.texts)
    card = Path(made.out.strip().rpartition(": ")[2]).read_text("utf-8")
    assert "the detector 'patterns'" in card


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--noise-policy", "other"), "none of uniform, adaptive, importance, selective"),
        ((*ADAPTIVE, "--epsilon-max", 50), "--epsilon-max 50 is below"),
        (ADAPTIVE, "twinset weight-scale"),
        ((*ADAPTIVE, "--method", "qlora"), "--method lora"),  # its scale is of weights as they are
        (("--importance-alpha", 0.1), "--importance-alpha does nothing"),
    ],
)  # fmt: skip
def test_what_no_policy_can_work_with_is_refused_before_anything_is_made(
    tmp_path, run, arguments, said
):
    made = run("generate", *arguments)
    assert made.code == 2 and said in made.err
    assert not (tmp_path / "run").exists()
