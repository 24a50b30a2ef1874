"""Paper 000's experiment, from the command line to its files, on made-up text."""

import math

import numpy as np
import pytest
import torch
from experiments import run, stopped_and_finished

from evaluation.audit.mechanism import LEAST_SHARE
from evaluation.exposure import UNKNOWN
from evaluation.papers.adp import experiment
from evaluation.papers.adp.__main__ import app
from evaluation.papers.adp.cases import ADAPTIVE, ATTACK, ATTACKED, MODELS, PLANTED, cases
from evaluation.papers.adp.claim import guarantee, protection, utility
from evaluation.papers.adp.corpora import Corpora, canary
from evaluation.papers.adp.experiment import Adp
from evaluation.papers.adp.found import LARGEST_EXPOSURE, Found
from evaluation.papers.adp.noise import (
    DP_SGD,
    LOGARITHMIC,
    NO_DP,
    PUBLISHED,
    SOUND,
    Maker,
    multiplier_of,
    policy_of,
    weights_of,
)
from evaluation.papers.adp.published import COPIES, SIGMAS, TABLE_1, relative
from evaluation.papers.adp.readings import readings
from evaluation.papers.adp.sizes import DELTA, SIZES
from evaluation.papers.intervals import Interval
from evaluation.papers.page import as_markdown
from evaluation.papers.rows import Rows
from evaluation.papers.verdict import Word
from twinset.errors import InputError
from twinset.policies import Setting
from twinset.privacy.accountant import epsilon
from twinset.privacy.events import SubsampledGaussian, event_from_dict
from twinset.privacy.randomness import Randomness
from twinset.privacy.weightscale import WeightScale

SUBJECTS = "dogs cats birds boats trains people children teachers".split()
VERBS = "like chase watch hear follow draw paint love".split()
PLACES = "here there everywhere outside inside downtown".split()
SCALE = WeightScale("made up", 2.0, 4.0, "made up", (0.2,) * 5)


def sentences(count, seed):
    rng = np.random.default_rng(seed)
    parts = (SUBJECTS, VERBS, SUBJECTS, PLACES)
    lines = [" ".join(part[rng.integers(len(part))] for part in parts) for _ in range(count)]
    return "\n".join([*lines, f"no. {rng.integers(10**9)}"])


@pytest.fixture
def options(tmp_path, tiny_base):
    found = []
    for seed, name in enumerate(("public", "private-train", "private-test")):
        path = tmp_path / f"{name}.txt"
        path.write_text(sentences(100, seed))
        found += [f"--{name}", str(path)]
    found += ["--public-model", str(tiny_base), "--size", "tiny", "--seeds", "1"]
    return [*found, "--output", str(tmp_path / "out")]


def test_a_plan_reads_no_scored_text_and_trains_nothing(options, tmp_path):
    (tmp_path / "private-test.txt").unlink()
    plan = run(app, *options, "--dry-run")
    for form, sigma in MODELS:
        assert f"  {form}: " in plan and f"σ = {sigma:g}" in plan
    assert str(tmp_path) not in plan
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_needs_no_files(size):
    plan = run(app, "--size", size, "--seeds", "2", "--dry-run")
    rows = 2 * len(MODELS) * len(PLANTED) + len(ATTACKED) * len(SIGMAS)
    assert plan.endswith(f"{rows} rows with 2 seeds\n")


def test_the_full_plan_has_the_papers_sizes():
    plan = run(app, "--size", "full", "--dry-run")
    for said in ("12 layers of 1024", "steps of 4096", "C = 0.001", "learning rate 5e-05"):
        assert said in plan
    assert "5,689 steps" in plan  # 20 epochs of 1,165,029 lines


@pytest.mark.parametrize(("more", "option"), [([], "--public"), (["--public", "a.txt"], "--priv")])
def test_files_are_asked_for(more, option):
    with pytest.raises(InputError, match=f"{option}.*: name a file"):
        run(app, *more)


def test_published_numbers_are_the_papers():
    assert relative(1.0) == pytest.approx(4426.05 / 7582.65)
    assert relative(5.0) == pytest.approx(8635.66 / 20815.23)
    assert TABLE_1[NO_DP, 0.0].epsilon is None
    assert canary(1).text == "My ID is 955320"
    said = " ".join(readings(SIZES["full"]))
    for number in ("4.22 at σ = 1", "0.1 at σ = 5", "6.35", "2.47", "256.66"):
        assert number in said


def test_canaries_come_after_the_lines():
    corpora = Corpora(["a b My ID is"] * 3, ["a b", " b a "], [], SIZES["tiny"])
    records = corpora.records(10)
    assert len(records) == 12 and len(corpora.records(0)) == 2
    assert corpora.tokens.tokenizer.decode(records.texts[-1]) == " My ID is 955320"
    assert records.texts[2:] == [records.texts[-1]] * 10


def test_each_form_weighs_in_its_own_way():
    nats = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    weights = {form: weights_of(form, nats, SCALE) for form, _ in MODELS}
    assert weights[NO_DP] is None and weights[DP_SGD] is None
    assert weights[LOGARITHMIC].tolist() == [0, 0.5, 1] == weights[SOUND].tolist()
    middle = (math.e**3 - math.e) / (math.e**5 - math.e)
    assert weights[PUBLISHED].tolist() == pytest.approx([0, middle, 1])
    # the sound form's weights do not depend on who else is there; the published ones do
    alone, scale = nats[:2], SCALE
    assert torch.equal(weights_of(SOUND, alone, scale), weights[SOUND][:2])
    assert not torch.equal(weights_of(PUBLISHED, alone, scale), weights[PUBLISHED][:2])


@pytest.mark.parametrize("form", [form for form, _ in MODELS[1:5]])
def test_a_text_of_weight_1_has_the_stated_noise_in_every_form(form):
    weights = torch.tensor([1.0, 1.0, 0.0]).double() if form in ADAPTIVE else None
    maker, sigma = Maker(form, weights), 2.0
    norm, randomness = 3.0, Randomness.from_os()
    policy = maker(Setting(multiplier_of(form, sigma), norm, 0.1, randomness))
    zeros = [torch.zeros(40_000)]
    (noisy,), event = policy.release(zeros, [0, 1])
    limits = policy.limits([0, 1, 2])
    most, least = (norm, norm) if limits is None else (limits[0].item(), limits[2].item())
    assert noisy.std().item() / most == pytest.approx(sigma, rel=0.03)
    assert noisy.std().item() / least == pytest.approx(maker.mean_noise() * sigma, rel=0.03)
    guaranteed = [epsilon([event], DELTA, weight) for weight in (1.0, 0.0)]
    alone = [SubsampledGaussian(s * sigma, 0.1, 1) for s in (1, LEAST_SHARE)]
    expected = {
        DP_SGD: [epsilon(alone[:1], DELTA)] * 2,
        SOUND: [epsilon([one], DELTA) for one in alone],
    }
    assert guaranteed == expected.get(form, [math.inf] * 2)
    published = form in (PUBLISHED, LOGARITHMIC)
    assert maker.nominal(DELTA) == (epsilon(alone[:1], DELTA) if published else None)
    assert policy.form == policy_of(form).policy_form


def interval(low, high):
    return Interval((low + high) / 2, low, high, 3)


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        (((0.5, 0.9), (0.4, 0.6)), Word.HELD),
        (((1.1, 1.2), (1.4, 1.6)), Word.NOT_HELD),
        (((0.5, 0.9), (1.4, 1.6)), Word.PARTLY),
        (((0.8, 1.1), (0.9, 1.6)), Word.UNDECIDED),
    ],
)
def test_utility_is_judged_by_intervals(bounds, word):
    ratios = {sigma: interval(*pair) for sigma, pair in zip(SIGMAS, bounds, strict=True)}
    judged = utility(SOUND, ratios)
    assert judged.word == word and len(judged.details) == len(SIGMAS)


@pytest.mark.parametrize(
    ("bounds", "word"),
    [((4.0, 4.0), Word.NOT_HELD), ((4.0, 0.5), Word.UNDECIDED), ((1.0, 1.0), Word.UNDECIDED)],
)
def test_a_nominal_epsilon_falls_by_a_larger_bound_alone(bounds, word):
    attacks = {
        sigma: [{"what": "one step", "claimed": 2.0, "lower_bound": bound, "delta": 0.05}]
        for sigma, bound in zip(SIGMAS, bounds, strict=True)
    }
    judged = guarantee(attacks)
    assert judged.word == word
    assert all("guaranteed ε: none" in sentence for sentence in judged.details)


def made_up(tmp_path, exposures, seeds=3, size="tiny"):
    """Rows in which a model's exposures are as given, and perplexities fall with less noise."""
    rows = Rows.open(tmp_path / "adp.json", {"size": size, "sources": {}}, "command")
    corpora = Corpora(["a b"], ["a b"], ["a b"], SIZES["tiny"])
    rows.facts = corpora.facts()
    share = {NO_DP: 0.5, DP_SGD: 1.0, PUBLISHED: 0.7, LOGARITHMIC: 0.8, SOUND: 0.9}
    finding = {"what": "one step", "claimed": 2.0, "delta": 0.05, "trials": 100}
    for case in cases(seeds):
        if case.key[0] == ATTACK:
            theorem, bound = ("none", 4.0) if case.form == PUBLISHED else (None, 1.0)
            found = finding | {"lower_bound": bound, "guaranteed": theorem}
            rows.rows[case.key] = {"findings": [found]}
            continue
        form, sigma, copies, seed = case.key
        perplexity = 100 * (1 + sigma) * share[form] * (1 + seed / 1000)
        none = form != DP_SGD and form != SOUND
        weights = dict.fromkeys(("10 %", "median", "90 %", "mean", "canary"), 0.5)
        rows.rows[case.key] = {
            "perplexity_test": perplexity,
            "exposure": exposures[form][PLANTED.index(copies)] + seed / 10,
            "method": "exact rank",
            "epsilon_most_protected": None if none else 1.0,
            "epsilon_least_protected": None if none else 1.0 + (form == SOUND),
            "epsilon_nominal": 7.5 if form in (PUBLISHED, LOGARITHMIC) else None,
            "mean_noise": 0.5,
            "weights": weights if form in ADAPTIVE else None,
            "records_per_second": 10.0,
        }
    return rows


KNOWN = (1.4, 5.0, 12.0, 19.0)
HIDDEN = (1.4, 1.4, 2.0, 6.0)


@pytest.mark.parametrize(
    ("bare", "ours", "word"),
    [
        (KNOWN, HIDDEN, Word.HELD),
        (KNOWN, (1.4, 9.0, 15.0, 19.5), Word.NOT_HELD),
        (KNOWN, (1.4, 1.0, 12.5, 19.5), Word.PARTLY),
        ((1.0, 0.9, 1.0, 1.2), HIDDEN, Word.UNDECIDED),  # nothing to protect
    ],
)
def test_protection_is_judged_where_the_secret_is_known(tmp_path, bare, ours, word):
    exposures = dict.fromkeys((DP_SGD, *ADAPTIVE), ours) | {NO_DP: bare}
    judged = protection(SOUND, Found(made_up(tmp_path, exposures)))
    assert judged.word == word
    compared = sum(bits > UNKNOWN for bits in bare[1:])
    assert len(judged.details) == compared * len(SIGMAS) + len(COPIES) - compared


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_says_all_of_it(tmp_path, seeds):
    exposures = dict.fromkeys((DP_SGD, *ADAPTIVE), HIDDEN) | {NO_DP: KNOWN}
    rows = made_up(tmp_path, exposures, seeds)
    adp = Adp("tiny", SIZES["tiny"], None)
    report = adp.report(rows)
    page = as_markdown(adp.paper, report, rows, "adp.png")
    for said in ("7582.65", "0.584", "955320", "nominal", "ε guaranteed", "none", "19.93"):
        assert said in page
    line = next(x for x in page.splitlines() if x.startswith("| adaptive, published | 1 | "))
    assert [cell.strip() for cell in line.split("|")][7:10] == ["7.50", "none", "none"]
    line = next(x for x in page.splitlines() if x.startswith("| adaptive, sound | 1 | "))
    assert [cell.strip() for cell in line.split("|")][7:10] == ["", "1.00", "2.00"]
    whole = Word.PARTLY if seeds > 1 else Word.UNDECIDED  # the nominal ε fell
    assert report.summary(adp.paper).word == whole
    words = {verdict.because: verdict.word for verdict in report.verdicts}
    expected = Word.HELD if seeds > 1 else Word.UNDECIDED  # one seed decides nothing
    assert words["the canary is exposed less than without noise"] == expected
    assert words["it costs less perplexity than DP-SGD at the same σ"] == expected
    assert adp.figure(rows).axes


@pytest.mark.slow
def test_from_the_command_line_to_its_files(options, tmp_path, monkeypatch):
    done = stopped_and_finished(app, options, monkeypatch, experiment, "train", after=3)
    assert done.before == len(ATTACKED) * len(SIGMAS) + 3
    assert done.calls == len(MODELS) * len(PLANTED)
    assert [tuple(row["key"]) for row in done.found["rows"]] == [case.key for case in cases(1)]
    for row in done.found["rows"]:
        (check_attack if row["key"][0] == ATTACK else check_spending)(row)
    assert str(tmp_path) not in done.page.split("command")[0]


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
    assert 0 <= row["exposure"] <= LARGEST_EXPOSURE
    if form in (DP_SGD, SOUND):
        assert event.steps == round(2 * lines / 64)
        assert event.sample_rate == pytest.approx(64 / lines)
        assert event.noise_multiplier == multiplier_of(form, sigma)
        same = SubsampledGaussian(sigma, event.sample_rate, event.steps)
        assert row["epsilon_most_protected"] == epsilon([same], DELTA)
        assert row["epsilon_least_protected"] == epsilon([event], DELTA)
    else:
        assert row["epsilon_most_protected"] is row["epsilon_least_protected"] is None
    assert (row["epsilon_nominal"] is not None) == (form in (PUBLISHED, LOGARITHMIC))
    assert (row["weights"] is not None) == (form in ADAPTIVE)
    if form in ADAPTIVE:
        assert ("canary" in row["weights"]) == (copies > 0)
        assert 0 < row["mean_noise"] < 1
