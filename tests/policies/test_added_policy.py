"""A policy is one file: one that is added is found, described, offered, run and attacked.

The file is `added/split.py`. Nothing else in twinset knows it.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from evaluation.audit.mechanism import Step, Target, audit_step, worst_case
from tests.helpers.commands import COLUMNS, GOOD, QUICK, run_python
from tests.helpers.handover import ledger
from twinset.errors import InputError
from twinset.policies import POLICIES, find_policy, policy_names
from twinset.privacy.mechanism.noise import add_gaussian_to_each_
from twinset.privacy.statement.guarantee import guarantee, is_covered
from twinset.privacy.statement.theorems import THEOREMS

ADDED = Path(__file__).parent / "added"
ENOUGH, DELTA = 6000, 0.05  # with 2000 one audit in ten saw less than a third of the claim
# Python with the folder of the added file among those that policies are looked for in.
PRELUDE = f"""
import importlib.util, json, sys
spec = importlib.util.find_spec("twinset.policies")
spec.submodule_search_locations.append({str(ADDED)!r})
module = sys.modules["twinset.policies"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import twinset
twinset.policies = module
import cli
for arguments in json.loads(sys.argv[1]):
    print("code", cli.main(arguments))
"""


def command(*commands):
    """Run commands one after the other in a process that knows the added policy."""
    given = json.dumps([list(map(str, each)) for each in commands])
    return run_python("-c", PRELUDE, given, COLUMNS="200", TERMINAL_WIDTH="200")


@pytest.fixture
def split(monkeypatch):
    """The added module, as if it lay beside the others, until the test ends."""
    for registry in (POLICIES, THEOREMS):
        for key in list(registry):
            monkeypatch.setitem(registry, key, registry[key])
    spec = importlib.util.spec_from_file_location("twinset.policies.split", ADDED / "split.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    yield module
    for registry in (POLICIES, THEOREMS):
        registry.pop(("split", "sound"), None)


def test_the_policy_of_the_guide_is_short():
    assert len((ADDED / "split.py").read_text("utf-8").splitlines()) <= 80


def test_it_is_found_by_name_and_its_guarantee_is_stated(split):
    assert "split" in policy_names() and find_policy("split") is split.Split
    with pytest.raises(InputError, match="has no published form"):
        find_policy("split", "published")
    assert is_covered("split", "sound")
    assert guarantee(ledger(policy="split")).epsilon == guarantee(ledger()).epsilon
    POLICIES.pop(("split", "sound"))
    THEOREMS.pop(("split", "sound"))
    assert guarantee(ledger(policy="split")).epsilon is None  # whom nobody knows has no guarantee


def test_its_option_is_in_help_and_does_nothing_without_it():
    idle = ["finetune", "t.csv", *COLUMNS, "--split-ratio", "3"]
    done = command(["generate", "--help-all"], idle)
    assert "--split-ratio" in done.stdout and "split" in done.stdout, done.stderr
    assert done.stdout.count("code 0") == done.stdout.count("code 2") == 1
    assert "does nothing without --noise-policy split" in done.stderr


@pytest.mark.slow  # `test_every_policy_makes_a_twin_that_verifies` runs those that come along
def test_a_run_states_its_guarantee(tmp_path, tiny_base):
    table, run = tmp_path / "t.csv", tmp_path / "run"
    GOOD.to_csv(table, index=False)
    given = ["finetune", table, *COLUMNS, "--base-model", tiny_base, "--run", run, *QUICK]
    done = command([*given, "--epsilon", 60, "--noise-policy", "split", "--split-ratio", 3])
    assert done.stdout.endswith("code 0\n"), done.stderr
    assert "differentially private for each record" in done.stdout


def attacked(options):
    """Attack a step of the policy."""
    step = Step(worst_case(), Target(options))
    try:
        return audit_step(step, ENOUGH, DELTA)
    finally:
        step.engine.close()


def test_the_audit_finds_less_than_it_claims(split):
    found = attacked(split.SplitOptions("split", split_ratio=2.0))
    assert found.holds and found.lower_bound > 0.3 * found.claimed  # it can see


def test_a_faulty_policy_is_caught(split):
    """Plain clipping and less noise for matrices, with the event of the whole noise."""

    class Faulty(split.Split):
        def scales(self):
            return []

        def noise_shapes(self, parameters):
            pairs = zip(self.factors(), parameters, strict=True)
            return [torch.full_like(parameter, factor) for factor, parameter in pairs]

        def release(self, sums, records):
            s = self._params
            add_gaussian_to_each_(sums, s.noise_std, s.randomness, self.noise_shapes(sums))
            return sums, self.event

    POLICIES["split", "sound"] = Faulty
    assert not attacked(split.SplitOptions("split", split_ratio=3.0)).theorem_holds
