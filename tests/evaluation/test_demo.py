"""The demo of dialogues with a tiny model, and the secrets planted in them."""

import json
import re

import pandas as pd
import pytest

from evaluation.demo import KINDS, SATISFIED, SECRETS, TEXT, TOPIC, make_dialogues
from evaluation.findings import Findings
from evaluation.leakage.names import PLANTED, replay_planted
from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import little_support
from twinset.policies.detection import Patterns


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
    for expected in ("8.00", TOPIC, SATISFIED, "no private data", "tracking number", "300 of 300"):
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


def test_the_secrets_table_shows_a_leak(support):
    """The negative control: a twin of copied rows, and one of held-out rows."""
    train, heldout = support.tables(print)
    secrets = support.planted(train), support.planted(heldout)

    def replay(twin):
        found = replay_planted(twin[TEXT].tolist(), train[TEXT].tolist(), *secrets)
        return Findings("evaluation", {}, tuple(found))

    leaking, chance = replay(train.head(30)), replay(heldout)
    kinds = {m.place["kind"] for m in leaking.measured}
    assert len(kinds) == len(KINDS)
    for kind in kinds:
        leak = leaking.find("replayed", kind=kind, rows="train only")
        assert leak.value > 0 == leaking.find("replayed", kind=kind, rows="held-out only").value
        assert chance.find("replayed", kind=kind, rows="train only").value == 0
        assert chance.find("replayed", kind=kind, rows="held-out only").value == 1
    tracking = leaking.find("replayed", kind="tracking number", rows="train only")
    assert (round(tracking.value * tracking.n), tracking.n) == (30, 300)


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


def test_patterns_find_all_but_names(table):
    """The negative control: names have no form that a pattern could know."""
    missed = set()
    texts = table[TEXT].tolist()
    for text, spans, cell in zip(texts, Patterns().spans(texts), table[SECRETS], strict=True):
        for kind, value in json.loads(cell).items():
            at = text.index(value)
            covered = {i for start, end in spans for i in range(start, end)}
            if any(text[i].isalnum() and i not in covered for i in range(at, at + len(value))):
                missed.add(kind)
    assert missed == {"name"}
