"""Every claim stands in `twinset.privacy`: an entry for each policy, and no claim elsewhere."""

import ast
import json
import re
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


WRONG = {
    "delta": (0, 1.0, True, "1e-5", None), "target_epsilon": (0, False), "records": (0, 10.0, True),
    "sample_rate": (0, 1.5), "max_grad_norm": (0,), "randomness_is_private": (1,),
    "records_public": ("true",), "policy": (" ",), "unit": (None,),
    "events": ({}, [{"kind": "laplace"}], ["noise"]), "public_inputs": ("text",), "caveats": ([1],),
    "library_versions": ({"torch": 2}, []), "format_version": (1, 3, True), "surprise": (1,),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_by_name(name):
    for wrong in WRONG[name]:
        with pytest.raises(ValueError, match=name):
            Ledger.from_dict(ledger(()).to_dict() | {name: wrong})


@pytest.mark.parametrize("control", ["\x00", "\t", "\n", "\x1b[2J", "\x7f", "\x9b31m", "\x85"])
def test_a_text_with_a_control_character_is_refused(control):
    """It could steer the terminal of whoever reads the ledger."""
    plain = ledger(EVENTS, weight_scale=SCALE).to_dict()
    events, scale = plain["events"], plain["weight_scale"]
    wrong = {
        "policy": f"uni{control}form",
        "randomness": f"OS{control}",
        "caveats": ["fine", f"not{control}"],
        "library_versions": {f"torch{control}": "2"},
        "events": [*events, {"kind": "non_private_access", "reason": f"tuning{control}"}],
        "weight_scale": scale | {"origin": f"texts{control}"},
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"'{name}' has a control character$"):
            Ledger.from_dict(plain | {name: value})
    other = plain | {"caveats": ["“naïve”\u00a0\u202f«été» Łódź 東京"]}
    assert Ledger.from_dict(other).to_dict() == other  # the control: such texts stay


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1e-05", "NaN", "delta"),
        ("1e-05", "Infinity", "delta"),
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


CLAIM = re.compile(r"\bGuarantees?:")
PLANTED = '''
class Noise:
    """Noise. Guarantee: all is well."""

    def add(self):
        """Add it.

        Guarantees:
            None.
        """
'''


def docstrings(source: str) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return [ast.get_docstring(node) or "" for node in nodes]


def test_no_docstring_outside_of_privacy_claims_anything():
    assert len(OUTSIDE) > 100
    for path in OUTSIDE:
        assert not any(map(CLAIM.search, docstrings(path.read_text("utf-8")))), path
    # The control: a claim is seen wherever it stands.
    inside = ROOT / "twinset/privacy/mechanism/noise.py"
    assert sum(bool(CLAIM.search(text)) for text in docstrings(PLANTED)) == 2
    assert any(map(CLAIM.search, docstrings(inside.read_text("utf-8"))))


def test_every_policy_has_an_entry_and_refers_to_it_and_nothing_else_has_one():
    references = {
        path: REFERENCE.findall("\n".join(docstrings(path.read_text("utf-8")))) for path in OUTSIDE
    }
    entries = {name for name, entry in vars(theorems).items() if isinstance(entry, Theorem)}
    assert set(sum(references.values(), [])) == entries
    assert THEOREMS.keys() == POLICIES.keys()
    for key in POLICIES:
        modules = [ROOT / f"twinset/policies/{name}.py" for name in (key[0], "policy")]
        named = [name for path in modules for name in references.get(path, ())]
        assert THEOREMS[key] in [getattr(theorems, name) for name in named], key


def test_a_policy_spends_what_its_entry_names_and_without_noise_what_none_names():
    weights = torch.tensor([0.5, 1.0])
    for key, kind in POLICIES.items():
        for sigma in (1.0, 0.0):
            given = (sigma, 1.0, 0.1, Randomness.for_tests(0), PolicyConfig(*key), 0.5, weights)
            _, spent = kind(MechanismParams(*given)).release([torch.zeros(2)], [0, 1])
            if sigma:
                assert isinstance(spent, THEOREMS[key].events) == is_covered(*key)
            else:
                assert isinstance(spent, NonPrivateAccess)
    assert not any(NonPrivateAccess in theorem.events for theorem in THEOREMS.values())
    assert [key for key in POLICIES if not is_covered(*key)] == [("adaptive", "published")]
    assert not is_covered("uniform", "nominal") and not is_covered("unheard of", "sound")
