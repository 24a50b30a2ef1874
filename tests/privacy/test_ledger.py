"""Every claim stands in `twinset.privacy`: an entry for each policy, and no claim elsewhere."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
import torch

from tests.helpers.handover import ledger
from twinset.config import PolicyConfig
from twinset.files.atomic import write_json
from twinset.policies import POLICIES, MechanismParams
from twinset.privacy.accounting.events import (
    GaussianRelease,
    IndividualGaussian,
    MaskedAccess,
    NonPrivateAccess,
    SubsampledGaussian,
)
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.statement import theorems
from twinset.privacy.statement.guarantee import is_covered
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.theorems import THEOREMS, Theorem

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


def test_events_alone_are_appended_and_equal_steps_added_up():
    opened, other, counts = ledger(()), ledger(()), GaussianRelease(20.0, "label counts")
    opened.record(counts)
    for _ in range(3):
        opened.record(SubsampledGaussian(1.0, 0.05, 1))
    opened.record(SubsampledGaussian(2.0, 0.05, 1))
    with pytest.raises(TypeError):
        opened.record("noise")
    steps = [SubsampledGaussian(1.0, 0.05, 3), SubsampledGaussian(2.0, 0.05, 1)]
    assert opened.events == [counts, *steps] and other.events == []
    with pytest.raises(FrozenInstanceError):
        opened.delta = 0.5
    assert {"python", "torch", "opacus", "numpy"} <= set(dict(opened.library_versions))


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
    for wrong in ({"a": [1]}, [None], "", float("nan"), float("inf"), -1):
        with pytest.raises(ValueError, match=name):
            Ledger.from_dict(plain | {name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("delta", 0), ("delta", 1.0), ("delta", True), ("delta", "1e-5"), ("delta", None),
        ("target_epsilon", 0), ("target_epsilon", False),
        ("records", 0), ("records", 10.0), ("records", True),
        ("sample_rate", 0), ("sample_rate", 1.5),
        ("max_grad_norm", 0),
        ("randomness_is_private", 1), ("records_public", "true"),
        ("policy", " "), ("unit", None),
        ("events", {}), ("events", [{"kind": "laplace"}]), ("events", ["noise"]),
        ("public_inputs", "text"), ("caveats", [1]),
        ("library_versions", {"torch": 2}), ("library_versions", []),
        ("format_version", 1), ("format_version", 3), ("format_version", True),
        ("surprise", 1),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(name, wrong):
    with pytest.raises(ValueError, match=name):
        Ledger.from_dict(ledger(()).to_dict() | {name: wrong})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1e-05", "NaN", "NaN is not allowed"),
        ("1e-05", "Infinity", "Infinity is not allowed"),
        ('"delta"', '"delta": 0.1, "delta"', "given twice"),
        ("{", "", "privacy.json"),
        *(("", whole, "object") for whole in ("null", "[]", '"ledger"', "3")),
    ],
)
def test_a_file_that_is_not_strict_json_is_refused(tmp_path, old, new, message):
    path = tmp_path / "privacy.json"
    write_json(path, ledger(()).to_dict())
    text = path.read_text("utf-8").replace(old, new, 1) if old else new
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=message):
        Ledger.load(path)


ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(p for place in ("twinset", "evaluation") for p in (ROOT / place).rglob("*.py"))
OUTSIDE = [path for path in [*CODE, ROOT / "cli.py"] if "twinset/privacy/" not in str(path)]
REFERENCE = re.compile(r"`twinset\.privacy\.statement\.theorems`,\s+([A-Z_]+)")


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
    source = '''
class Noise:
    """Noise.

    Guarantee:
        All is well.
    """

    def add(self):
        """Add it. Guarantee: none."""
'''
    assert len(claims(source)) == 2
    inside = ROOT / "twinset" / "privacy" / "mechanism" / "noise.py"
    assert claims(inside.read_text("utf-8"))


def references() -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(ROOT)), name)
        for path in OUTSIDE
        for text in docstrings(path.read_text("utf-8"))
        for name in REFERENCE.findall(text)
    ]


def test_what_is_referred_to_is_an_entry_and_every_entry_is_referred_to():
    named = {name for _, name in references()}
    entries = {name for name, entry in vars(theorems).items() if isinstance(entry, Theorem)}
    assert named == entries


@pytest.mark.parametrize("key", POLICIES, ids="-".join)
def test_every_policy_has_an_entry_and_refers_to_it(key):
    modules = {f"twinset/policies/{name}.py" for name in (key[0], "policy")}
    named = [name for path, name in references() if path in modules]
    assert THEOREMS[key] in [getattr(theorems, name) for name in named]


def test_there_is_no_entry_without_a_policy():
    assert THEOREMS.keys() == POLICIES.keys()


def spent(key, noise_multiplier=1.0):
    draws, weights = Randomness.for_tests(0), torch.tensor([0.5, 1.0])
    params = MechanismParams(noise_multiplier, 1.0, 0.1, draws, PolicyConfig(*key), 0.5, weights)
    return POLICIES[key](params).release([torch.zeros(2)], [0, 1])[1]


@pytest.mark.parametrize("key", POLICIES, ids="-".join)
def test_a_policy_spends_what_its_entry_names_and_without_noise_what_none_names(key):
    assert isinstance(spent(key), THEOREMS[key].events) == is_covered(*key)
    assert isinstance(spent(key, noise_multiplier=0.0), NonPrivateAccess)
    assert not any(NonPrivateAccess in theorem.events for theorem in THEOREMS.values())


def test_the_only_policy_that_nothing_covers_is_adaptive_noise_as_published():
    assert [key for key in POLICIES if not is_covered(*key)] == [("adaptive", "published")]
    assert not is_covered("uniform", "nominal") and not is_covered("unheard of", "sound")
