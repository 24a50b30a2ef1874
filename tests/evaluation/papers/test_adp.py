"""Paper 000: its privacy weights, its noise, and a run from the command to its files."""

import math
from itertools import product

import pytest
import torch

from evaluation.audit.mechanism import LEAST_SHARE
from evaluation.leakage.exposure import UNKNOWN
from evaluation.papers import adp
from evaluation.papers.adp import (
    ADAPTIVE,
    CLIPPED,
    DP_SGD,
    EQUAL,
    LARGEST,
    LOGARITHMIC,
    MEAN,
    MODELS,
    NOMINAL,
    PLANTED,
    PUBLISHED,
    SIGMAS,
    SOUND,
)
from evaluation.papers.language_model import noise_for, plan_of
from evaluation.papers.noise import ATTACK
from evaluation.papers.study import read_size
from evaluation.papers.study_rows import Results
from evaluation.utility.dp_fitting import Recipe
from tests.helpers.study_runs import notes_of, stopped_and_finished
from twinset.policies import MechanismParams
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import (
    IndividualGaussian,
    NonPrivateAccess,
    SubsampledGaussian,
    event_from_dict,
    event_to_dict,
)
from twinset.privacy.accounting.rounding import up_decimals
from twinset.privacy.mechanism.privacy_weight import WeightScale
from twinset.privacy.mechanism.randomness import Randomness

SCALE = WeightScale("made up", 2.0, 4.0, "made up", (0.2,) * 5)


@pytest.fixture
def options(options_of, sentences, tiny_base):
    names = ("public", "private-train", "private-test")
    files = {name: f"{sentences(100, seed)}\nno. {seed}" for seed, name in enumerate(names)}
    return options_of(files, "--public-model", tiny_base)


def test_the_full_size_is_the_papers():
    size = read_size("adp", "full")
    assert (size["shape"]["layers"], size["shape"]["width"]) == (12, 1024)
    assert Recipe(**size["recipe"]) == Recipe(4096, 20, 5e-5, 1e-3)
    assert adp.canary(1).text == "My ID is 955320"


def test_the_notes_say_what_the_accountant_says_of_the_paper():
    """Of 1,165,029 lines, 20 epochs of batches of 4,096."""
    notes, lines = notes_of("adp"), 1_165_029
    for sigma in SIGMAS:
        event = SubsampledGaussian(sigma, 4096 / lines, round(20 * lines / 4096))
        assert f"{up_decimals(epsilon([event], adp.DELTA))} at σ = {sigma:g}" in notes
        for model in (DP_SGD, adp.ADP):
            assert f"{adp.TABLE_1[model, sigma]['paper: ε']} at σ = {sigma:g}" in notes
    for line in adp.TABLE_1.values():
        loss, perplexity = (float(line[f"paper: {name}"]) for name in ("loss", "PPL"))
        if perplexity < 20_000:
            base = math.exp(math.log(perplexity) / loss)
            assert f"{perplexity:.2f} = {base:.2f} to the {loss:.2f}" in notes


def test_canaries_come_after_the_lines(tmp_path):
    for name, lines in (("public", "a b My ID is\n" * 3), ("train", "a b\n b a \n")):
        (tmp_path / f"{name}.txt").write_text(lines)
    paths = {"public": tmp_path / "public.txt", "private_train": tmp_path / "train.txt"}
    study = adp.Adp("tiny", paths)
    records = study.records(10)
    assert len(records) == 12 and len(study.records(0)) == 2
    assert study.tokens.tokenizer.decode(records.texts[-1]) == " My ID is 955320"
    assert records.texts[2:] == [records.texts[-1]] * 10


def test_each_form_weighs_in_its_own_way():
    nats = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    weights = {form: adp.weights_of(form, nats, SCALE) for form, _ in MODELS}
    assert {form for form, known in weights.items() if known is not None} == set(ADAPTIVE)
    assert weights[LOGARITHMIC].tolist() == [0, 0.5, 1] == weights[SOUND].tolist()
    middle = (math.e**3 - math.e) / (math.e**5 - math.e)
    assert weights[PUBLISHED].tolist() == pytest.approx([0, middle, 1])
    # the sound form's weights do not depend on who else is there; the published ones do
    alone, scale = nats[:2], SCALE
    assert torch.equal(adp.weights_of(SOUND, alone, scale), weights[SOUND][:2])
    assert not torch.equal(adp.weights_of(PUBLISHED, alone, scale), weights[PUBLISHED][:2])


@pytest.mark.parametrize("form", [DP_SGD, *ADAPTIVE])
def test_a_text_of_weight_1_has_the_stated_noise_in_every_form(form):
    weights = torch.tensor([1.0, 1.0, 0.0]).double() if form in ADAPTIVE else None
    maker, sigma = adp.policy_maker(form, weights), 2.0
    norm, randomness = 3.0, Randomness.from_os()
    multiplier = adp.multiplier_of(form, sigma)
    policy = maker(MechanismParams(multiplier, norm, 0.1, randomness))
    zeros = [torch.zeros(40_000)]
    (noisy,), event = policy.release(zeros, [0, 1])
    limits = policy.limits([0, 1, 2])
    most, least = (norm, norm) if limits is None else (limits[0].item(), limits[2].item())
    assert noisy.std().item() / most == pytest.approx(sigma, rel=0.03)
    mean = adp.mean_noise(policy, multiplier, sigma) * sigma
    assert noisy.std().item() / least == pytest.approx(mean, rel=0.03)
    guaranteed = [epsilon([event], adp.DELTA, weight) for weight in (1.0, 0.0)]
    alone = [SubsampledGaussian(s * sigma, 0.1, 1) for s in (1, LEAST_SHARE)]
    expected = {
        DP_SGD: [epsilon(alone[:1], adp.DELTA)] * 2,
        SOUND: [epsilon([one], adp.DELTA) for one in alone],
    }
    assert guaranteed == expected.get(form, [math.inf] * 2)
    published = form in (PUBLISHED, LOGARITHMIC)
    assert maker.nominal(adp.DELTA) == (epsilon(alone[:1], adp.DELTA) if published else None)


RECIPE = Recipe(60, 4, 1e-3)
PLAN = plan_of(600, RECIPE, 1.0)


EVENT = SubsampledGaussian(2.0, 0.1, 5)


def spent_by(sigma):
    return epsilon([SubsampledGaussian(sigma, PLAN.sample_rate, PLAN.steps)], adp.DELTA)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_dp_sgd_spends_what_the_other_form_spends(sigma, weight):
    """All records of one weight: largest, mean and nominal ε are known."""
    weights = torch.full((600,), weight, dtype=torch.float64)
    share = 1 - weight * (1 - LEAST_SHARE)
    noise = {LARGEST: sigma * LEAST_SHARE, MEAN: sigma * LEAST_SHARE / share}
    noise |= {NOMINAL: sigma * weight} if weight else {}
    for form, expected in noise.items():
        matched = adp.matched_epsilon(form, sigma, weights, PLAN)
        assert matched == pytest.approx(spent_by(expected), rel=2e-3)
        found = noise_for(600, RECIPE, matched, adp.DELTA)
        assert found == pytest.approx(expected, rel=2e-3)
        assert spent_by(found) <= matched


def test_the_mean_epsilon_is_that_of_the_records():
    weights = torch.rand(40, dtype=torch.float64)
    event = IndividualGaussian(0.5, PLAN.sample_rate, PLAN.steps, LEAST_SHARE)
    each = [epsilon([event], adp.DELTA, weight) for weight in weights.tolist()]
    assert adp.mean_epsilon(event, weights) == pytest.approx(sum(each) / 40, rel=5e-3)


def test_what_is_left_at_equal_epsilon_is_compared_with_its_own_reference(tmp_path):
    results = Results(tmp_path / "adp.json", {})
    for number, (form, sigma) in enumerate(MODELS):
        for copies, seed in product(PLANTED, range(2)):
            results.rows[form, sigma, copies, seed] = {
                "perplexity_test": 100.0 + number,
                "exposure": number / 10,
                "epsilon_matched": 1.5 if form in EQUAL else None,
                "events": [event_to_dict(NonPrivateAccess("none") if form == CLIPPED else EVENT)],
                "epsilon_nominal": 9.0,
            }
    rows = {(row["compared with"], row["σ"]): row for row in adp.at_equal_epsilon(results)}
    assert set(rows) == {(form, f"{s:g}") for form in (CLIPPED, *EQUAL) for s in SIGMAS}
    for (reference, sigma), row in rows.items():
        theirs = (reference, float(sigma) if reference in EQUAL else 0.0)
        ours = (EQUAL.get(reference, PUBLISHED), float(sigma))
        a, b = MODELS.index(ours), MODELS.index(theirs)
        assert row["trained with"] == ours[0]
        assert row["perplexity ÷"].value == pytest.approx((100 + a) / (100 + b))
        assert row["ε, adaptive"] == ("9.00" if reference == CLIPPED else "1.50")
        every = "none" if reference == CLIPPED else up_decimals(epsilon([EVENT], adp.DELTA))
        assert row["ε, compared with"] == every
        less = row.get("exposure less, 100×")
        assert (less is None) == (reference in (MEAN, NOMINAL))
        if less:
            assert less.startswith(f"{(a - b) / 10:.1f} [")


@pytest.mark.parametrize(("bare", "compared"), [((1.0, 5.0, 12.0), 2), ((0.5, 0.9, 1.0), 0)])
def test_protection_is_measured_only_where_the_secret_is_known(tmp_path, bare, compared):
    """Where training without noise does not learn the canary, there is nothing to hide."""
    results = Results(tmp_path / "adp.json", {})
    for form, sigma in MODELS:
        for copies, bits in zip(PLANTED[1:], bare, strict=True):
            for seed in range(3):
                shown = bits + seed / 10 - (3.0 if form == SOUND else 0.0)
                results.rows[form, sigma, copies, seed] = {"exposure": max(0.0, shown)}
    rows = adp.less_exposed(results)
    assert sum(bits > UNKNOWN for bits in bare) == compared
    assert len(rows) == len(ADAPTIVE) * compared * len(SIGMAS)
    for row in rows:
        less = -3.0 if row["trained with"] == SOUND else 0.0
        assert row["less No-DP"] == row["less DP-SGD"] == f"{less:.1f} [{less:.1f}, {less:.1f}]"


@pytest.mark.slow
def test_from_the_command_to_its_files(options, monkeypatch):
    done = stopped_and_finished(adp.Adp, options, monkeypatch, adp.Adp, "_train_row", after=3)
    assert done.before == len(adp.ATTACKED) * len(SIGMAS) + 3
    assert done.calls == sum(len(adp.planted_in(form)) for form, _ in MODELS)
    for row in done.found["rows"]:
        (check_attack if row["key"][0] == ATTACK else check_spending)(row)


def check_attack(row):
    """The published form's nominal ε is refuted by its own noise; the sound form's theorem is not.

    A bound of 95 % confidence may fail once in a while; over all findings less than half do.
    """
    refuted = [found["lower_bound"] > found["claimed"] for found in row["findings"]]
    if row["key"][1] == PUBLISHED:
        assert any(refuted) and all(found["guaranteed"] == "none" for found in row["findings"])
    else:
        assert sum(refuted) < len(refuted) / 2
        assert all(found["guaranteed"] is None for found in row["findings"])


def check_spending(row):
    """ε is the accountant's, of exactly the steps that the row took."""
    form, sigma, copies, _ = row["key"]
    (event,) = [event_from_dict(event) for event in row["events"]]
    lines = 101 + copies
    assert 0 <= row["exposure"] <= adp.LARGEST_EXPOSURE
    if form in (DP_SGD, SOUND):
        assert event.steps == round(2 * lines / 64)
        assert event.sample_rate == pytest.approx(64 / lines)
        assert event.noise_multiplier == adp.multiplier_of(form, sigma)
        same = SubsampledGaussian(sigma, event.sample_rate, event.steps)
        assert row["epsilon_most_protected"] == epsilon([same], adp.DELTA)
        assert row["epsilon_least_protected"] == epsilon([event], adp.DELTA)
    elif form in EQUAL:
        assert 0.99 * row["epsilon_matched"] < row["epsilon_least_protected"]
        assert row["epsilon_least_protected"] <= row["epsilon_matched"]
        assert event.noise_multiplier == pytest.approx(row["mean_noise"] * sigma)
    else:
        assert row["epsilon_most_protected"] is row["epsilon_least_protected"] is None
    assert (row["epsilon_matched"] is not None) == (form in EQUAL)
    if form == LARGEST:
        assert event.noise_multiplier == pytest.approx(LEAST_SHARE * sigma, rel=2e-3)
    assert (row["epsilon_nominal"] is not None) == (form in (PUBLISHED, LOGARITHMIC))
    assert (row["weights"] is not None) == (form in ADAPTIVE)
    if form in ADAPTIVE:
        assert ("canary" in row["weights"]) == (copies > 0)
        assert 0 < row["mean_noise"] < 1
