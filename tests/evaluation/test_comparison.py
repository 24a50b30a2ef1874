"""`twinset compare` from its command line to its files, and the store of its results."""

import json
import math
from pathlib import Path

import pytest

from evaluation.comparison import REAL_ROWS, PolicyTrials
from evaluation.leakage.canaries import COPIES, draw_canaries
from evaluation.release import BASELINE
from tests.helpers.commands import call
from tests.helpers.evaluated import REDRAWS, reviews
from twinset.commandline.entry_point import STOPPED
from twinset.config.options import run_config
from twinset.run.budget import Book

GIVEN = ["compare", "train.csv", "--text", "text", "--attribute", "sentiment", "--quiet"]
GIVEN += ["--rows", "8", "--steps", "2", "--batch-size", "8", "--max-tokens", "64"]
GIVEN += ["--prompt", "Write a {sentiment} review:", "--classifier", "tfidf", "--output", "out"]
GIVEN += ["--teacher-share", "0", "--marginal-share", "0"]
ORDER = [REAL_ROWS, BASELINE, "uniform", "none"]


@pytest.fixture
def compare(tmp_path, tiny_base, monkeypatch):
    """Return a function that runs the command in a folder with a table."""
    reviews(100, seed=0).to_csv(tmp_path / "train.csv", index=False)
    monkeypatch.chdir(tmp_path)
    patched = lambda given, **more: run_config({"max_redraws": REDRAWS, **given}, **more)  # noqa: E731
    monkeypatch.setattr("evaluation.commands.run_config", patched)
    # One canary of each number of copies, and no names, which have many tokens.
    few = lambda *given: list(  # noqa: E731
        {c.copies: c for c in draw_canaries(*given) if len(c.format.fields) == 1}.values()
    )
    monkeypatch.setattr("evaluation.comparison.draw_canaries", few)
    return lambda *more: call(*GIVEN, "--base-model", tiny_base, *more)


def test_from_the_command_line_to_its_files_with_a_stop_in_between(compare, monkeypatch):
    runs, real_run = [], PolicyTrials.run

    def run(self, name, seed, config):
        if len(runs) == 3:
            raise KeyboardInterrupt
        runs.append((name, seed))
        return real_run(self, name, seed, config)

    def stored():
        return json.loads(Path("out.json").read_text())

    monkeypatch.setattr(PolicyTrials, "run", run)
    given = ("--policies", "uniform,none", "--seeds", "1", "--epsilon", "4")
    assert compare(*given).code == STOPPED
    kept = stored()["rows"]
    assert [tuple(r["key"]) for r in kept] == runs == [(name, 0) for name in ORDER[:3]]
    runs.clear()
    outcome = compare(*given)  # the same command resumes
    assert outcome.code == 0, outcome.err
    assert runs == [("none", 0)] and all(name in outcome.out for name in ORDER)

    found = stored()
    assert found["rows"][:3] == kept and [r["key"][0] for r in found["rows"]] == ORDER
    assert found["facts"]["train"] == 80 and found["facts"]["held out"] == 20
    uniform, none = found["rows"][2:]
    assert 3 < uniform["epsilon"] <= 4 and uniform["delta"] == 1e-5
    assert none["epsilon"] is None and none["guarantee"].startswith("No privacy guarantee")
    assert len(uniform["exposures"]) == len(COPIES)
    for exposure in uniform["exposures"]:
        assert exposure["space"] == 1000 and exposure["method"] == "exact rank"
        assert exposure["bits"] == pytest.approx(math.log2(1000 / exposure["rank"]))
    assert {(s["policy"], s["n"]) for s in found["scores"]} == {(name, 1) for name in ORDER}
    markdown = Path("out.md").read_text()
    assert "differentially private" in markdown and "No privacy guarantee" in markdown
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    for path in map(Path, ("out.json", "out.md", "out.png")):
        assert path.stat().st_mode & 0o777 == 0o600
    for text in ("the film number", "It was"):  # of private rows
        assert text not in markdown + json.dumps(found)

    runs.clear()
    before = Path("out.json").read_bytes()
    outcome = compare(*given, "--epsilon", "3")
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "other settings" in outcome.err and "(options)" in outcome.err
    monkeypatch.setattr("evaluation.comparison.write_figure", lambda results, path: None)
    assert compare(*given).code == 0  # nothing is left to do
    assert not runs and json.loads(before)["rows"] == stored()["rows"]


def test_each_model_counts_in_the_account_of_the_table(compare, monkeypatch):
    monkeypatch.setattr("evaluation.comparison.write_figure", lambda results, path: None)
    Path("out.png").touch()
    given = ("--seeds", "1", "--epsilon", "4", "--budget", "4.2", "--policies")
    outcome = compare(*given, "uniform")
    assert outcome.code == 0, outcome.err
    file = Path("train.csv.budget.json")
    (own,) = Book.load(file).runs
    assert (own.command, own.is_ended, own.ledger.records) == ("compare", True, 80 + sum(COPIES))
    before = file.read_bytes()
    for more, said in (
        ((*given, "uniform,none"), "this run is without privacy"),
        ((*given[2:], "uniform", "--seeds", "2"), "This run would bring it to"),
    ):
        refused = compare(*more)
        assert refused.code == 2 and said in refused.err and file.read_bytes() == before
    assert compare(*given, "uniform").code == 0  # what is there is shown, whatever the limit is


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--output", "share/out"), "is for others"),
        (("--test", "other.csv"), "other.csv: no row has both a text and labels of the twin"),
        (("--output", "other"), "holds no results"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(more, message, compare):
    other = reviews(20, seed=1)
    other.assign(sentiment=other["sentiment"] + "ish").to_csv("other.csv", index=False)
    Path("share").mkdir()
    Path("other.json").write_text("no JSON")
    outcome = compare("--policies", "uniform", *more)
    assert outcome.code == 2, outcome.err
    assert message in outcome.err and outcome.err.count("\n") == 1
    assert not Path("out.json").exists() and not list(Path("share").iterdir())
    assert Path("other.json").read_text() == "no JSON"
