"""The demo of dialogues with a tiny model, and the secrets planted in them."""

import json
import re

import pandas as pd
import pytest

from evaluation.demo import KINDS, SATISFIED, SECRETS, TEXT, TOPIC, make_dialogues
from evaluation.findings import Findings
from evaluation.leakage.names import PLANTED
from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import little_support


@pytest.fixture
def support(monkeypatch):
    return little_support(monkeypatch)


@pytest.fixture(scope="module")
def table():
    return make_dialogues(400, seed=3)


def test_support_by_its_command(support, tiny_base, tmp_path, capsys):
    run = tmp_path / "run"
    given = ("demo", "--data", "support", "--base-model", tiny_base, "--run", run, "--quiet")
    ended = run_twinset(capsys, *given)
    assert ended.code == 0, ended.err
    for expected in ("8.00", TOPIC, SATISFIED, "no private data", "tracking number", "120 of 120"):
        assert expected in ended.out
    assert str(run / "share") in ended.out.replace("\n", "")
    twin = pd.read_parquet(run / "share" / "twin.parquet")
    assert list(twin) == [TEXT, TOPIC, SATISFIED] and len(twin) == 2 * 8
    kept = Findings.load(run / "internal" / "evaluation.json")
    assert kept.about["command"] == "twinset demo --data support"
    assert kept.find("mean length", rows="twin") and kept.find("MAUVE") is None
    assert "texts were not compared by embeddings" in kept.notes
    for kind in (kind.replace("_", " ") for kind in KINDS):
        assert kept.find(PLANTED, kind=kind).value == 1
        for rows in ("train only", "held-out only"):
            assert kept.find("replayed", kind=kind, rows=rows).value == 0
    assert PLANTED in (run / "internal" / "report.html").read_text("utf-8")
    again = run_twinset(capsys, *given)  # the folder is taken
    assert again.code == 2 and len(again.err.splitlines()) == 1


def test_secrets_stand_once_in_their_text_are_all_and_belong_to_nobody(table):
    seen = set()
    for text, cell in zip(table[TEXT], table[SECRETS], strict=True):
        secrets = json.loads(cell)
        assert {"name", "tracking_number"} < secrets.keys() and len(secrets) == 4
        seen |= secrets.keys()
        rest = text
        for value in secrets.values():
            assert text.count(value) == 1
            rest = rest.replace(value, "")
        assert not re.search(r"\d|@", rest)
        assert re.fullmatch(r"\(\d{3}\) 555-01\d\d", secrets.get("phone", "(000) 555-0100"))
        assert re.search(r"@example\.(com|net|org)$", secrets.get("email", "@example.com"))
    assert seen == set(KINDS)
