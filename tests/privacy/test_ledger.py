"""Every claim stands in `twinset.privacy`: an entry for each policy, and no claim elsewhere."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from tests.helpers.handover import ledger
from twinset.config import PolicyConfig
from twinset.files.atomic import write_json
from twinset.policies import POLICIES, MechanismParams, make_policy
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.statement.guarantee import is_covered
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import THEOREMS

EVENTS = (
    GaussianRelease(20.0, "label counts"),
    SubsampledGaussian(1.0, 1e-9, 10**6),
    IndividualGaussian(0.8, 0.05, 3, 0.5),
    MaskedAccess("patterns"),
    NonPrivateAccess("tuning"),
)
SCALE = WeightScale("a model", 2.0, 4.0, "public texts", (0.2,) * 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_epsilon": None, "public_inputs": ("ä", "names"), "caveats": ("one", "two")},
        {"delta": 1e-12, "records": 10**9, "weight_scale": SCALE, "group_size": 7},
    ],
)
def test_a_ledger_is_read_as_it_was_written(changes):
    for events in ((), EVENTS):
        written = ledger(events, **changes)
        text = json.dumps(written.to_dict(), allow_nan=False)
        assert Ledger.from_dict(json.loads(text)) == written


def test_fields_are_only_those_known_to_be_free_of_private_data():
    # A new field is shared with the twin: before adding it here, say why it is not private.
    assert {f.name for f in fields(Ledger)} == {
        "delta", "target_epsilon", "records", "sample_rate", "max_grad_norm", "randomness",
        "randomness_is_private", "policy", "policy_form", "events", "public_inputs", "caveats",
        "library_versions", "unit", "neighbouring", "sampler", "clipping", "records_public",
        "weight_scale", "group_size", "format_version",
    }  # fmt: skip


@pytest.mark.parametrize("name", [f.name for f in fields(Ledger) if f.name != "group_size"])
def test_every_field_is_needed_and_typed(name):
    plain = ledger(()).to_dict()
    with pytest.raises(ValueError, match=name):
        Ledger.from_dict({k: v for k, v in plain.items() if k != name})
    for wrong in ({"a": [1]}, float("nan"), -1):
        with pytest.raises(ValueError, match=name):
            Ledger.from_dict(plain | {name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("delta", 1.0), ("delta", "1e-5"), ("records", 10.0), ("sample_rate", 1.5),
        ("max_grad_norm", 0), ("randomness_is_private", 1), ("records_public", "true"),
        ("policy", " "), ("events", [{"kind": "laplace"}]), ("format_version", 1), ("surprise", 1),
        ("group_size", 1), ("group_size", True),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(name, wrong):
    with pytest.raises(ValueError, match=name):
        Ledger.from_dict(ledger(()).to_dict() | {name: wrong})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("1e-05", "NaN", "NaN is not"), ('"delta"', '"delta": 0.1, "delta"', "given twice")],
)
def test_a_file_that_is_not_strict_json_is_refused(tmp_path, old, new, message):
    path = tmp_path / "privacy.json"
    write_json(path, ledger(()).to_dict())
    path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")
    with pytest.raises(ValueError, match=message):
        Ledger.load(path)


ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(p for place in ("twinset", "evaluation") for p in (ROOT / place).rglob("*.py"))
OUTSIDE = [path for path in [*CODE, ROOT / "cli.py"] if "twinset/privacy/" not in str(path)]


def docstrings(source: str) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def claims(source: str) -> list[str]:
    return [text for text in docstrings(source) if re.search(r"\bGuarantees?:", text)]


def test_no_docstring_outside_of_privacy_claims_anything():
    assert len(OUTSIDE) > 100
    assert [str(p.relative_to(ROOT)) for p in OUTSIDE if claims(p.read_text("utf-8"))] == []


def test_a_claim_is_seen_wherever_it_stands():
    inside = ROOT / "twinset" / "privacy" / "mechanism" / "noise.py"
    assert claims(inside.read_text("utf-8"))


def test_every_policy_has_an_entry_and_every_entry_a_policy():
    assert THEOREMS.keys() == POLICIES.keys()


def spent(key, noise_multiplier=1.0):
    draws, weights = Randomness.for_tests(0), torch.tensor([0.5, 1.0])
    params = MechanismParams(noise_multiplier, 1.0, 0.1, draws, PolicyConfig(*key), 0.5, weights)
    return make_policy(params).release([torch.zeros(2)], [0, 1])[1]


@pytest.mark.parametrize("key", POLICIES, ids="-".join)
def test_a_policy_spends_what_its_entry_names_and_without_noise_what_none_names(key):
    assert isinstance(spent(key), THEOREMS[key].events) == is_covered(*key)
    assert isinstance(spent(key, noise_multiplier=0.0), NonPrivateAccess)
    assert not any(NonPrivateAccess in theorem.events for theorem in THEOREMS.values())


def test_the_only_policy_that_nothing_covers_is_adaptive_noise_as_published():
    assert [key for key in POLICIES if not is_covered(*key)] == [("adaptive", "published")]
    assert not is_covered("uniform", "nominal") and not is_covered("unheard of", "sound")
