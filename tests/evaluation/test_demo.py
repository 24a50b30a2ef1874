"""The demo of dialogues with a tiny model, and the secrets planted in them."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest

from evaluation import demo
from evaluation.demo import KINDS, SATISFIED, SECRETS, TEXT, TOPIC, make_dialogues
from evaluation.findings import Findings
from evaluation.leakage.names import PLANTED
from tests.helpers.commands import call
from tests.helpers.evaluated import REDRAWS, quickly
from twinset.config import RunConfig, SamplingConfig


def test_support_by_its_command(tiny_base, tmp_path, monkeypatch):
    """With little of everything."""
    quickly(monkeypatch)
    monkeypatch.setattr(demo, "SUPPORT_ROWS", 240)  # fewer may lose a label to noise
    monkeypatch.setattr(demo, "SUPPORT_HELD_OUT", 60)
    training = replace(demo.SUPPORT.training, steps=2, batch_size=16, max_tokens=8)
    sampling = SamplingConfig(max_redraws=REDRAWS)
    small = {"training": training, "sampling": sampling, "known_rows": 60, "heldout_rows": 60}
    support = replace(demo.SUPPORT, rows_per_label=2, **small)
    monkeypatch.setitem(demo.DEMOS, support.name, support)
    for name in ("MINUTES", "CHEAP"):  # as on a slow machine
        monkeypatch.setattr(demo, name, 0)
    run = tmp_path / "run"
    given = ("demo", "--data", "support", "--base-model", tiny_base, "--run", run)
    ended = call(*given)
    assert ended.code == 0, ended.err
    for expected in ("8.00", TOPIC, SATISFIED, "no private data", "tracking number", "240 of 240"):
        assert expected in ended.out
    first, _, then = ended.err.partition("the demo takes about ")  # before anything is made
    assert "It trains nothing, because private steps would take" in then
    assert "speed measured 4/4" in first and "the twin will not have" not in first
    assert then.count("the twin will not have") == 1 and "rows 16/16" in then
    assert "Taken as public" not in ended.out  # the card says it
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


@pytest.mark.parametrize(
    ("recipe", "base", "row", "training", "steps", "per_label", "said"),
    [
        ("training", "", 0.1, 60, 4, 300, "about 4 min on this machine"),
        ("training", "", 0.2, 150, 4, 138, "about 6 min on this machine. It writes 138 rows a"),
        ("training", "", 0.2, 600, 0, 300, "It trains nothing, because private steps would take"),
        ("training", "", 0.5, 600, 0, 108, "10 min. It writes 108 rows"),
        ("training", "", 5.0, 600, 0, 100, "base_model=gpt2-mini` is quicker"),
        ("mini", "gpt2-mini", 0.005, 10, 10, 300, "about 86 s on this machine"),
        ("mini", "gpt2-mini", 0.005, 120, 0, 300, "It trains nothing, because private steps would"),
    ],
)
def test_a_demo_fits_itself_into_its_time(recipe, base, row, training, steps, per_label, said):
    recipe = getattr(demo.REVIEWS, recipe)
    config = RunConfig(training=replace(recipe, base_model=base or recipe.base_model))
    phases = (("reference rows", 9.0), ("training", training), ("rows", 600 * row))
    fitted, many, line = demo.fit_demo(demo.REVIEWS, config, phases, 600)
    assert (fitted.training.steps, many) == (steps, per_label) and said in line, line


def test_each_secret_occurs_once_in_its_text_and_is_made_up():
    table = make_dialogues(400, seed=3)
    for text, cell in zip(table[TEXT], table[SECRETS], strict=True):
        secrets = json.loads(cell)
        assert [text.count(value) for value in secrets.values()] == [1] * 4
        assert re.fullmatch(r"\(\d{3}\) 555-01\d\d", secrets.get("phone", "(000) 555-0100"))
        assert re.search(r"@example\.(com|net|org)$", secrets.get("email", "@example.com"))
