"""The audit of steps and releases: right about known mechanisms, and it catches broken ones.

How often these tests are wrong by chance, in one run of them all:

- A sound claim is refuted with a probability of at most 1 - SURE, as an exact bound of Clopper and
  Pearson says, for each of some twenty-five findings: below 1 in 10,000.
- A fault is missed with less than 1 in 10,000: `test_the_power_of_an_audit` computes it exactly for
  the least broken mechanism.
"""

import json

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

import cli
from evaluation.audit import mechanism
from evaluation.audit.faults import FAULTS, RELEASE_FAULTS
from evaluation.audit.mechanism import (
    MAX_GRAD_NORM,
    RELEASES,
    Step,
    Target,
    audit_step,
    epsilon_lower_bound,
    worst_case,
)
from evaluation.audit.report import MechanismAudit
from twinset.config import PolicyConfig
from twinset.policies import policy_names
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism import noise

SURE = 1 - 3e-6
DELTA, TRIALS, RELEASED = 0.2, 8000, 4000
# Of the mean in standard deviations, of the step and of the release that are broken least. Claimed
# is 1.
LEAST_SHIFT, LEAST_OF_RELEASES = 1.39, 3**0.5
PUBLISHED = [PolicyConfig(name, "published") for name in ("adaptive", "importance")]
ADAPTIVE = PolicyConfig("adaptive")


@pytest.fixture(autouse=True)
def surely(monkeypatch):
    monkeypatch.setattr(mechanism, "CONFIDENCE", SURE)


@pytest.fixture(scope="module")
def neighbours():
    return worst_case()


def gaussian_bound(shift, seed, trials=6000, delta=0.05):
    rng = np.random.default_rng(seed)
    return epsilon_lower_bound(rng.normal(shift, 1, trials), rng.normal(0, 1, trials), delta)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_bound_stays_below_the_truth_as_often_as_it_says(shift, monkeypatch):
    """One in twenty may lie above; they hardly do, since each probability is bounded apart."""
    monkeypatch.setattr(mechanism, "CONFIDENCE", 0.95)
    bounds = [gaussian_bound(shift, seed) for seed in range(60)]
    if shift == 0:  # two equal mechanisms
        assert max(bounds) < 0.2
        return
    truth = epsilon([GaussianRelease(1 / shift, "known")], 0.05)
    assert sum(bound > truth for bound in bounds) <= 3
    assert np.median(bounds) > 0.5 * truth


def chance_of_a_miss(shift, trials, threshold):
    """Exactly, of N(shift, 1) claimed to be N(1, 1), by the outputs above a threshold."""
    claimed = epsilon([GaussianRelease(1.0, "claimed")], DELTA)
    n, each = trials // 2, (1 - SURE) / 2
    counts = np.arange(n + 1)
    least = np.nan_to_num(beta.ppf(each, counts, n - counts + 1))
    most = np.where(counts == n, 1.0, beta.ppf(1 - each, counts + 1, n - counts))
    # How many outputs with the target refute the claim, by how many lie there without it.
    needed = np.searchsorted(least, DELTA + np.exp(claimed) * most, "right")
    missed = binom.cdf(needed - 1, n, norm.sf(threshold - shift))
    return binom.pmf(counts, n, norm.sf(threshold)) @ missed


@pytest.mark.parametrize(
    ("shift", "trials", "best"), [(LEAST_SHIFT, TRIALS, 1.3), (LEAST_OF_RELEASES, RELEASED, 1.4)]
)
def test_the_power_of_an_audit(shift, trials, best):
    """The threshold is what the other half of the outputs says, so near the best one."""
    near = [chance_of_a_miss(shift, trials, best + off) for off in np.linspace(-0.2, 0.2, 9)]
    assert min(near) < 1e-5 and max(near) < 1e-4
    assert chance_of_a_miss(1.0, trials, best) > SURE  # a claim that is true


@pytest.mark.parametrize(
    ("kind", "target", "by"),
    [
        (Step, Target(), 1.0),
        (FAULTS["cross-term-left-out"], Target(), LEAST_SHIFT),
        (FAULTS["sequences-apart"], Target(), 2.0),
        (Step, Target(PolicyConfig("importance")), 1.0),
        (Step, Target(ADAPTIVE, weight=1.0), 0.5),
    ],
)
def test_how_far_the_target_moves_the_sum_in_c(neighbours, kind, target, by):
    step = kind(neighbours, target)
    difference = step.noiseless(step.everyone) - step.noiseless(step.others)
    step.engine.close()
    assert float(difference.norm()) / MAX_GRAD_NORM == pytest.approx(by, abs=0.01)
    spread = float(step.noise_shape.max() / step.noise_shape.min())
    # Importance is attacked in a geometry of its own, as far apart as it goes.
    assert spread == (16.0 if target.policy.noise_policy == "importance" else 1.0)


@pytest.mark.parametrize("policy", policy_names())
def test_the_real_step_holds(policy):
    audit = MechanismAudit(PolicyConfig(policy), trials=TRIALS, steps=2, delta=DELTA)
    findings = audit.run_steps()
    assert all(finding.holds for finding in findings)
    assert any(f.lower_bound > 0.1 * f.claimed > 0 for f in findings)  # it can see


@pytest.mark.parametrize("policy", PUBLISHED, ids=lambda p: p.noise_policy)
def test_published_forms_exceed_their_nominal_epsilon(policy):
    """Adaptive through the length of the noise, importance through the least noisy direction."""
    findings = MechanismAudit(policy, trials=TRIALS, steps=2, delta=DELTA).run_steps()
    assert not any(finding.holds for finding in findings)
    assert all(finding.lower_bound <= finding.guaranteed for finding in findings)


def theorem_holds(step):
    try:
        return audit_step(step, TRIALS, DELTA).theorem_holds
    finally:
        step.engine.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_step_is_caught(neighbours, fault):
    assert not theorem_holds(FAULTS[fault](neighbours, Target()))


def test_a_record_that_is_clipped_as_if_it_were_ordinary_is_caught(neighbours, monkeypatch):
    """Without its own norm, a record of privacy weight 1 has the ε of one of weight 0."""

    monkeypatch.setattr("twinset.policies.adaptive.Adaptive.limits", lambda policy, records: None)
    assert not theorem_holds(Step(neighbours, Target(ADAPTIVE)))


def test_a_policy_that_records_less_than_it_spends_is_caught(neighbours, monkeypatch):
    """What is claimed is what `release` returned, so a wrong event is a wrong claim."""
    from twinset.policies.importance import PublishedImportance

    # The event gets σ instead of σ / b.
    monkeypatch.setattr(PublishedImportance, "least_noise", classmethod(lambda cls, options: 1.0))
    assert not theorem_holds(Step(neighbours, Target(PolicyConfig("importance", "published"))))


@pytest.mark.parametrize("fault", [None, "known-seed"])
def test_noise_that_is_made_on_a_gpu_is_attacked_too(neighbours, monkeypatch, fault):
    def add(tensors, std, randomness, scales=()):
        calls.append(std)
        noise._add_there([tensor.view(-1) for tensor in tensors], std, randomness)

    calls: list[float] = []
    monkeypatch.setattr(noise, "add_gaussian_to_each_", add)
    monkeypatch.setattr("evaluation.audit.faults.add_gaussian_to_each_", add)
    step = FAULTS.get(fault, Step)(neighbours, Target())
    assert theorem_holds(step) == (fault is None)
    assert len(calls) * mechanism.AT_ONCE >= 2 * TRIALS


def test_real_releases_hold():
    for finding in MechanismAudit(trials=RELEASED, delta=DELTA).run_releases():
        assert finding.what in RELEASES and finding.holds


@pytest.mark.parametrize("fault", RELEASE_FAULTS)
def test_a_broken_release_is_caught(fault):
    audit = MechanismAudit(fault=fault, trials=RELEASED, delta=DELTA)
    assert not any(finding.holds for finding in audit.run_releases())


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
def test_audits_hold_and_each_fault_is_caught_every_time(neighbours, attempt):
    """With four times as many outputs: an error too small for the others may show."""
    del attempt  # none has a seed
    many = {"trials": 4 * TRIALS, "delta": DELTA}
    for policy in map(PolicyConfig, policy_names()):
        assert all(finding.holds for finding in MechanismAudit(policy, **many).run_steps())
    for policy in PUBLISHED:
        assert not any(finding.holds for finding in MechanismAudit(policy, **many).run_steps())
    assert not any(theorem_holds(fault(neighbours, Target())) for fault in FAULTS.values())
    for fault in (None, *RELEASE_FAULTS):
        found = MechanismAudit(fault=fault, trials=4 * RELEASED, delta=DELTA).run_releases()
        assert all(finding.holds == (fault is None) for finding in found)


def test_the_command_tells_and_exits(capsys):
    few = ["audit", "mechanism", "--trials", "500", "--steps", "2", "--quiet"]
    assert cli.main([*few, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [finding["holds"] for finding in found["findings"]] == [True] * (2 + len(RELEASES))
    assert cli.main([*few, "--fault", "known-seed"]) == 1
    shown = capsys.readouterr()
    assert "REFUTED" in shown.out and "more than is claimed" in shown.err
    published = ["--noise-policy", "adaptive", "--policy-form", "published", "--json"]
    capsys.readouterr()
    assert cli.main([*few, *published]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {finding["guaranteed"] for finding in found["findings"][: -len(RELEASES)]} == {"none"}
