"""The demos: the whole story with a tiny model, and what a user sees of the planted secrets."""

import io
import json

import pandas as pd
import pytest
from rich.console import Console

from evaluation.demo import REVIEWS, SUPPORT, run_demo
from evaluation.demo_tables import KINDS, SATISFIED, TEXT, TOPIC
from evaluation.findings import Findings
from evaluation.leakage.names import PLANTED, replay_planted
from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import little, little_support


def printed(report) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report)
    return console.export_text()


@pytest.fixture
def support(monkeypatch):
    return little_support(monkeypatch)


@pytest.mark.slow
def test_reviews(tiny_base, tmp_path):
    report = run_demo(little(REVIEWS, 12), tmp_path / "run", base_model=str(tiny_base))
    shown = printed(report)
    for expected in ("8.00", "3.9e-07", "real", "no private data", "share", "internal"):
        assert expected in shown
    assert "lanted" not in shown and len(report.samples) == 3
    for name in ("evaluation.json", "report.html"):
        assert (tmp_path / "run" / "internal" / name).is_file()
    assert pd.read_parquet(tmp_path / "run" / "share" / "twin.parquet").shape == (24, 2)


def test_support(support, tiny_base, tmp_path):
    report = run_demo(support, tmp_path / "run", base_model=str(tiny_base))
    shown = printed(report)
    for expected in ("8.00", TOPIC, SATISFIED, "no private data", "tracking number", "300 of 300"):
        assert expected in shown
    twin = pd.read_parquet(tmp_path / "run" / "share" / "twin.parquet")
    assert list(twin) == [TEXT, TOPIC, SATISFIED] and len(twin) == 2 * 8
    kept = Findings.load(tmp_path / "run" / "internal" / "evaluation.json")
    assert kept.find("mean length", rows="twin") and kept.find("MAUVE") is None
    assert "texts were not compared by embeddings" in kept.notes
    for kind in (kind.replace("_", " ") for kind in KINDS):
        assert kept.find(PLANTED, kind=kind).value == 1
        for rows in ("train only", "held-out only"):
            assert kept.find("replayed", kind=kind, rows=rows).value == 0
    assert PLANTED in (tmp_path / "run" / "internal" / "report.html").read_text("utf-8")


def test_the_secrets_table_shows_a_leak(support):
    """The negative control: a twin of copied rows, and one of held-out rows."""
    train, heldout = support.tables(print)
    secrets = support.planted(train), support.planted(heldout)

    def shown(twin):
        texts = twin[TEXT].tolist(), train[TEXT].tolist()
        about = {"epsilon": 8.0, "delta": 1e-5, "guarantee": "none", "rows": {}}
        found = Findings("evaluation", about, tuple(replay_planted(*texts, *secrets)))
        return {m.place["kind"]: m for m in found.measured}, found

    kinds, leaking = shown(train.head(30))
    assert len(kinds) == len(KINDS)
    _, chance = shown(heldout)
    for kind in kinds:
        leak = leaking.find("replayed", kind=kind, rows="train only")
        assert leak.value > 0 == leaking.find("replayed", kind=kind, rows="held-out only").value
        assert chance.find("replayed", kind=kind, rows="train only").value == 0
        assert chance.find("replayed", kind=kind, rows="held-out only").value == 1
    tracking = leaking.find("replayed", kind="tracking number", rows="train only")
    assert (round(tracking.value * tracking.n), tracking.n) == (30, 300)


def test_each_demo_has_a_base_model_of_its_own():
    assert REVIEWS.config().training.base_model == "smollm2-135m-text"
    assert SUPPORT.config().training.base_model == "gpt2-mini"
    small, other = REVIEWS.config("gpt2-mini").training, REVIEWS.config("./mine").training
    assert small.batch_size == 1008 and other.batch_size == 252
    assert (small.base_model, other.base_model) == ("gpt2-mini", "./mine")


def test_an_unknown_demo_is_one_line(capsys):
    ended = run_twinset(capsys, "demo", "--data", "film")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: --data film: is none of reviews, support\n"


def test_the_command_takes_the_demo_by_name(support, tiny_base, tmp_path, capsys):
    run = tmp_path / "run"
    given = ("demo", "--data", "support", "--base-model", tiny_base, "--run", run, "--quiet")
    ended = run_twinset(capsys, *given, "--json")
    assert ended.code == 0, ended.err
    answer = json.loads(ended.out)
    assert answer["run"] == str(run) and answer["about"]["command"] == "twinset demo --data support"
    again = run_twinset(capsys, *given)
    assert again.code == 2 and len(again.err.splitlines()) == 1
