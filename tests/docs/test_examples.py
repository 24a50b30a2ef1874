"""The examples run, with little training, in a folder of their own and without a download."""

import re
import runpy
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT
from tests.helpers.evaluated import without_downloads
from twinset.release.verify import verify

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
LITTLE = "steps=2, batch_size=8, max_redraws=1000, epsilon="


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example, tiny_base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    without_downloads(monkeypatch)
    source = example.read_text("utf-8").replace('gpt2-mini"', f'{tiny_base}"', 2)
    assert LITTLE.rpartition(" ")[2] in source
    little = tmp_path / example.name
    little.write_text(source.replace("epsilon=", LITTLE).replace("epsilon=8", "epsilon=50"))
    runpy.run_path(str(little))
    assert "differentially private" in capsys.readouterr().out
    shared = next(tmp_path.rglob("privacy.json")).parent
    assert verify(shared).rows in (60, 100)


def test_every_example_is_in_their_list():
    page = (ROOT / "docs" / "examples" / "README.md").read_text("utf-8")
    assert {path.name for path in EXAMPLES} == set(re.findall(r"\]\((\w+\.py)\)", page))
    assert Path(ROOT, "docs", "README.md").read_text("utf-8").count("(examples/README.md)") == 1
