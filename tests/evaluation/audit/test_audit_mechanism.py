"""The audit of steps and releases: right about known mechanisms, and it catches broken ones."""

import json

import numpy as np
import pytest
import torch

import cli
from evaluation.audit import table as audit_table
from evaluation.audit.faults import FAULTS, RELEASE_FAULTS
from evaluation.audit.mechanism import (
    MAX_GRAD_NORM,
    RELEASES,
    Step,
    Target,
    audit_release,
    audit_step,
    epsilon_lower_bound,
    worst_case,
)
from evaluation.audit.report import MechanismAudit
from twinset.config import PolicyConfig
from twinset.errors import InputError
from twinset.policies import policy_names
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import GaussianRelease
from twinset.privacy.mechanism import noise

POLICIES = [PolicyConfig(noise_policy=name) for name in policy_names()]
PUBLISHED = [
    PolicyConfig(noise_policy=n, policy_form="published") for n in ("adaptive", "importance")
]
DELTA, TRIALS = 0.05, 2000
# For the smallest fault of a step, which moves the sum by 1.38 C. At δ = 0.01 and 20,000 outputs 6
# of 100 audits missed it; here it lies four standard deviations away. So it does for releases: the
# smallest fault moves one by 1.73 σ, which 7 of 1,000 audits of 2,000 outputs miss.
ENOUGH, ENOUGH_DELTA = 8000, 0.1


def gaussian_bound(shift, seed, trials=6000):
    rng = np.random.default_rng(seed)
    return epsilon_lower_bound(rng.normal(shift, 1, trials), rng.normal(0, 1, trials), DELTA)


@pytest.mark.parametrize("shift", [0.3, 1.0, 2.0])
def test_the_bound_stays_below_the_truth_as_often_as_it_says(shift):
    """Five in a hundred may lie above; they hardly do, since each probability is bounded apart."""
    truth = epsilon([GaussianRelease(1 / shift, "known")], DELTA)
    bounds = [gaussian_bound(shift, seed) for seed in range(100)]
    assert sum(bound > truth for bound in bounds) <= 5
    assert np.median(bounds) > (0.5 if shift >= 1 else 0.05) * truth


def test_two_equal_mechanisms_show_nothing():
    assert max(gaussian_bound(0.0, seed) for seed in range(20)) < 0.2


def test_the_order_of_the_neighbours_does_not_matter():
    rng = np.random.default_rng(0)
    high, low = rng.normal(1, 1, 6000), rng.normal(0, 1, 6000)
    assert epsilon_lower_bound(low, high, DELTA) > 1


def test_scores_that_tell_all_are_bounded_by_their_number():
    bound = epsilon_lower_bound(np.ones(1000), np.zeros(1000), 0.0)
    assert 4 < bound < np.log(500)


@pytest.fixture(scope="module")
def neighbours():
    return worst_case()


def is_refuted(step):
    """Attack a step; once more if that shows nothing, as one in some hundred attacks does."""
    try:
        found = (audit_step(step, ENOUGH, ENOUGH_DELTA, lambda: None) for _ in range(2))
        return any(not finding.theorem_holds for finding in found)
    finally:
        step.engine.close()


def moved(step):
    """How far the target moves the sum, in C."""
    difference = step.noiseless((0, 1, 2, 3)) - step.noiseless((0, 1, 2))
    step.engine.close()
    return float(difference.norm()) / MAX_GRAD_NORM


def test_the_real_step_moves_by_c(neighbours):
    assert moved(Step(neighbours, Target())) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(("fault", "by"), [("cross-term-left-out", 1.38), ("sequences-apart", 2.0)])
def test_broken_clipping_moves_further(neighbours, fault, by):
    assert moved(FAULTS[fault](neighbours, Target())) == pytest.approx(by, abs=0.01)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.noise_policy)
def test_the_real_step_holds(policy):
    findings = MechanismAudit(policy, trials=TRIALS, steps=2).run_steps()
    assert all(finding.holds for finding in findings)
    assert max(f.lower_bound / f.claimed for f in findings) > 0.3  # it can see


def test_importance_is_attacked_in_a_geometry_of_its_own(neighbours):
    step = Step(neighbours, Target(PolicyConfig(noise_policy="importance")))
    assert float(step.noise_shape.max() / step.noise_shape.min()) == 16.0  # as far apart as it goes
    assert moved(step) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(("weight", "by"), [(1.0, 0.5), (0.5, 0.75), (0.0, 1.0)])
def test_adaptive_noise_lets_a_record_move_the_sum_by_its_own_share(neighbours, weight, by):
    target = Target(PolicyConfig(noise_policy="adaptive"), weight=weight)
    assert moved(Step(neighbours, target)) == pytest.approx(by, rel=1e-5)


def test_a_record_that_is_clipped_as_if_it_were_ordinary_is_caught(neighbours):
    """Without its own norm, a record of privacy weight 1 has the ε of one of weight 0."""

    class NoLimits(Step):
        def add(self, units):
            self.engine.add(self.neighbours.sequences(units), lambda means, counts: means.sum(1))

    assert is_refuted(NoLimits(neighbours, Target(PolicyConfig(noise_policy="adaptive"))))


@pytest.mark.parametrize("policy", PUBLISHED, ids=lambda p: p.noise_policy)
def test_published_forms_exceed_their_nominal_epsilon(policy):
    """Adaptive through the length of the noise, importance through the least noisy direction."""
    findings = MechanismAudit(policy, trials=TRIALS).run_steps()
    assert not any(finding.holds for finding in findings)
    assert all(finding.lower_bound <= finding.guaranteed for finding in findings)


def test_a_policy_that_records_less_than_it_spends_is_caught(neighbours, monkeypatch):
    """What is claimed is what `release` returned, so a wrong event is a wrong claim."""
    from twinset.policies.importance import PublishedImportance
    from twinset.policies.policy import NoisePolicy

    plain = NoisePolicy._own_event
    monkeypatch.setattr(PublishedImportance, "_own_event", plain)  # σ instead of σ / b
    assert is_refuted(Step(neighbours, Target(PolicyConfig("importance", "published"))))


def is_caught(neighbours, fault):
    return is_refuted(FAULTS[fault](neighbours, Target()))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_step_is_caught(neighbours, fault):
    assert is_caught(neighbours, fault)


@pytest.mark.parametrize("fault", [None, "known-seed"])
def test_noise_that_is_made_on_a_gpu_is_attacked_too(neighbours, monkeypatch, fault):
    def add(numbers, std, randomness):
        calls.append(std)
        noise._add_there([torch.from_numpy(numbers)], std, randomness)

    calls: list[float] = []
    monkeypatch.setattr(noise, "_add", add)
    step = FAULTS[fault](neighbours, Target()) if fault else Step(neighbours, Target())
    found = audit_step(step, 400, 0.1, lambda: None)
    step.engine.close()
    assert len(calls) >= 2 * found.trials and found.holds == (fault is None)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
def test_audits_hold_and_each_fault_is_caught_every_time(neighbours, attempt):
    del attempt  # none has a seed
    for policy in POLICIES:
        findings = MechanismAudit(policy, trials=TRIALS).run_steps()
        assert all(finding.holds for finding in findings)
    for policy in PUBLISHED:
        findings = MechanismAudit(policy, trials=TRIALS).run_steps()
        assert not any(finding.holds for finding in findings)
    assert all(is_caught(neighbours, fault) for fault in FAULTS)
    assert all(finding.holds for finding in map(attacked, RELEASES.values()))
    assert not any(finding.holds for finding in map(attacked, RELEASE_FAULTS.values()))


def attacked(release):
    return audit_release(release(1.0), ENOUGH, ENOUGH_DELTA, lambda: None)


@pytest.mark.parametrize("what", RELEASES)
def test_a_real_release_holds(what):
    finding = attacked(RELEASES[what])
    assert finding.what == what and finding.holds
    assert finding.lower_bound > 0.3 * finding.claimed  # it can see


@pytest.mark.parametrize("fault", RELEASE_FAULTS)
def test_a_broken_release_is_caught(fault):
    (finding,) = MechanismAudit(fault=fault, trials=ENOUGH, delta=ENOUGH_DELTA).run()
    assert not finding.holds


def test_the_command_tells_and_exits(capsys):
    few = ["audit", "mechanism", "--trials", "1000", "--quiet"]
    assert cli.main([*few, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [finding["holds"] for finding in found["findings"]] == [True] * (2 + len(RELEASES))
    assert cli.main([*few, "--fault", "known-seed"]) == 1
    shown = capsys.readouterr()
    assert "REFUTED" in shown.out and "more than is claimed" in shown.err
    assert cli.main([*few, "--fault", "none-such"]) == 2
    assert cli.main([*few, "--noise-policy", "none-such"]) == 2
    published = ["--noise-policy", "adaptive", "--policy-form", "published", "--json"]
    capsys.readouterr()
    assert cli.main([*few, *published]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {finding["guaranteed"] for finding in found["findings"][: -len(RELEASES)]} == {"none"}


@pytest.mark.parametrize(
    "wrong", [{"delta": 0.0}, {"sample_rate": 1.0}, {"noise_multiplier": 0.0}, {"fault": "other"}]
)
def test_bad_options_are_refused(wrong):
    with pytest.raises(InputError):
        MechanismAudit(**wrong).run()


def test_the_table_holds_every_policy_and_fault_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_table, "POLICIES", POLICIES[:1])
    monkeypatch.setattr(audit_table, "FAULTS", {"known-seed": FAULTS["known-seed"]})
    monkeypatch.setattr(audit_table, "RELEASE_FAULTS", ["label-counts-as-of-one"])
    path = tmp_path / "new" / "found.json"
    audit_table.main(2, 100, 100, DELTA, path)
    lines = path.with_suffix(".md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:9]] == [
        *["| uniform, sound"] * 2, *["| releases"] * 3,
        "| fault: known-seed", "| fault: label-counts-as-of-one",
    ]  # fmt: skip
    assert "| 2 of 2 |" in lines[2]
    assert lines[7].endswith("| 0 of 2 | nothing |") and lines[8].endswith("| nothing |")
    monkeypatch.setattr(audit_table, "audit_case", lambda *of: pytest.fail())
    audit_table.main(2, 100, 100, DELTA, path)  # nothing is left to do
    with pytest.raises(InputError, match=r"other settings \(trials\)"):
        audit_table.main(2, 101, 100, DELTA, path)
