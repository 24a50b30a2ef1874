"""The audit of steps and releases: right about known mechanisms, and it catches broken ones."""

import json

import numpy as np
import pytest
import torch

import cli
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

PUBLISHED = [PolicyConfig(name, "published") for name in ("adaptive", "importance")]
ADAPTIVE = PolicyConfig("adaptive")
DELTA, TRIALS = 0.05, 1000
# Of what is broken least, a step moves the sum by 1.38 C and a release moves by 1.73 σ. An audit of
# so many outputs misses that two or three times in a hundred, and four audits hardly ever.
ENOUGH, ATTEMPTS, ENOUGH_DELTA = 2000, 4, 0.1


@pytest.fixture(scope="module")
def neighbours():
    return worst_case()


def gaussian_bound(shift, seed, trials=6000):
    rng = np.random.default_rng(seed)
    return epsilon_lower_bound(rng.normal(shift, 1, trials), rng.normal(0, 1, trials), DELTA)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_bound_stays_below_the_truth_as_often_as_it_says(shift):
    """One in twenty may lie above; they hardly do, since each probability is bounded apart."""
    bounds = [gaussian_bound(shift, seed) for seed in range(60)]
    if shift == 0:  # two equal mechanisms
        assert max(bounds) < 0.2
        return
    truth = epsilon([GaussianRelease(1 / shift, "known")], DELTA)
    assert sum(bound > truth for bound in bounds) <= 3
    assert np.median(bounds) > 0.5 * truth


@pytest.mark.parametrize(
    ("kind", "target", "by"),
    [
        (Step, Target(), 1.0),
        (FAULTS["cross-term-left-out"], Target(), 1.38),
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
    audit = MechanismAudit(PolicyConfig(policy), trials=TRIALS, steps=2, delta=ENOUGH_DELTA)
    findings = audit.run_steps()
    assert all(finding.holds for finding in findings)
    assert max(f.lower_bound / f.claimed for f in findings) > 0.15  # it can see


@pytest.mark.parametrize("policy", PUBLISHED, ids=lambda p: p.noise_policy)
def test_published_forms_exceed_their_nominal_epsilon(policy):
    """Adaptive through the length of the noise, importance through the least noisy direction."""
    findings = MechanismAudit(policy, trials=TRIALS, steps=2).run_steps()
    assert not any(finding.holds for finding in findings)
    assert all(finding.lower_bound <= finding.guaranteed for finding in findings)


def is_refuted(step):
    """Attack a step until it is refuted, a few times at most."""
    try:
        found = (audit_step(step, ENOUGH, ENOUGH_DELTA, lambda: None) for _ in range(ATTEMPTS))
        return any(not finding.theorem_holds for finding in found)
    finally:
        step.engine.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_step_is_caught(neighbours, fault):
    assert is_refuted(FAULTS[fault](neighbours, Target()))


def test_a_record_that_is_clipped_as_if_it_were_ordinary_is_caught(neighbours, monkeypatch):
    """Without its own norm, a record of privacy weight 1 has the ε of one of weight 0."""

    monkeypatch.setattr("twinset.policies.adaptive.Adaptive.limits", lambda policy, records: None)
    assert is_refuted(Step(neighbours, Target(ADAPTIVE)))


def test_a_policy_that_records_less_than_it_spends_is_caught(neighbours, monkeypatch):
    """What is claimed is what `release` returned, so a wrong event is a wrong claim."""
    from twinset.policies.importance import PublishedImportance

    # The event gets σ instead of σ / b.
    monkeypatch.setattr(PublishedImportance, "least_noise", classmethod(lambda cls, options: 1.0))
    assert is_refuted(Step(neighbours, Target(PolicyConfig("importance", "published"))))


@pytest.mark.parametrize("fault", [None, "known-seed"])
def test_noise_that_is_made_on_a_gpu_is_attacked_too(neighbours, monkeypatch, fault):
    def add(numbers, std, randomness):
        calls.append(std)
        noise._add_there([torch.from_numpy(numbers)], std, randomness)

    calls: list[float] = []
    monkeypatch.setattr(noise, "_add", add)
    step = FAULTS.get(fault, Step)(neighbours, Target())
    found = audit_step(step, 400, 0.1, lambda: None)
    step.engine.close()
    assert len(calls) >= 2 * found.trials and found.holds == (fault is None)


def test_real_releases_hold():
    for finding in MechanismAudit(trials=ENOUGH, delta=ENOUGH_DELTA).run_releases():
        assert finding.what in RELEASES and finding.holds
        assert finding.lower_bound > 0.15 * finding.claimed  # it can see


@pytest.mark.parametrize("fault", RELEASE_FAULTS)
def test_a_broken_release_is_caught(fault):
    audit = MechanismAudit(fault=fault, trials=ENOUGH, delta=ENOUGH_DELTA)
    assert any(not finding.holds for _ in range(ATTEMPTS) for finding in audit.run())


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
def test_audits_hold_and_each_fault_is_caught_every_time(neighbours, attempt):
    del attempt  # none has a seed
    for policy in map(PolicyConfig, policy_names()):
        assert all(finding.holds for finding in MechanismAudit(policy, trials=2000).run_steps())
    for policy in PUBLISHED:
        assert not any(f.holds for f in MechanismAudit(policy, trials=2000).run_steps())
    assert all(is_refuted(fault(neighbours, Target())) for fault in FAULTS.values())
    for fault in (None, *RELEASE_FAULTS):
        audit = MechanismAudit(fault=fault, trials=8000, delta=ENOUGH_DELTA)
        assert all(finding.holds == (fault is None) for finding in audit.run_releases())


def test_the_command_tells_and_exits(capsys):
    few = ["audit", "mechanism", "--trials", "300", "--steps", "2", "--quiet"]
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
