"""Every claim stands in `twinset.privacy`: an entry for each policy, and no claim elsewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from twinset.config import PolicyConfig
from twinset.policies import POLICIES, MechanismParams, make_policy
from twinset.privacy.accounting.events import NonPrivateAccess
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.statement import theorems
from twinset.privacy.statement.guarantee import is_covered
from twinset.privacy.statement.theorems import THEOREMS, Theorem

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
    module = Path(f"twinset/policies/{key[0]}.py")
    named = [name for path, name in references() if path == str(module)]
    assert THEOREMS[key] in [getattr(theorems, name) for name in named]


def test_there_is_no_entry_without_a_policy():
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
