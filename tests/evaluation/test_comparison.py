"""`twinset compare` from its command line to its files, and the figures it shows by hand."""

import io
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import cli
from evaluation import policy_runs
from evaluation.comparison import (
    REAL_ROWS,
    PolicyResults,
    PolicyRun,
    PolicyTrials,
    as_markdown,
    as_table,
    list_measures,
    name_exposure,
)
from evaluation.findings import mean
from evaluation.leakage.canaries import COPIES, EACH
from evaluation.policy_runs import ComparisonRequest, policy_config, read_data
from evaluation.release import BASELINE
from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import REDRAWS, reviews
from twinset.commandline.entry_point import STOPPED
from twinset.config import RunConfig
from twinset.config.options import run_config
from twinset.progress import Silent
from twinset.run.request import Source

PATTERN = "Write a {sentiment} review:"
GIVEN = ["compare", "train.csv", "--text", "text", "--attribute", "sentiment", "--prompt", PATTERN]
GIVEN += ["--rows", "8", "--steps", "2", "--batch-size", "8", "--max-tokens", "64", "--quiet"]
GIVEN += ["--classifier", "tfidf", "--output", "out"]
ORDER = [REAL_ROWS, BASELINE, "uniform", "none"]


@pytest.fixture
def compare(tmp_path, tiny_base, monkeypatch, capsys):
    """Return a function that runs the command in a folder with a table."""
    reviews(100, seed=0).to_csv(tmp_path / "train.csv", index=False)
    reviews(20, seed=1).to_csv(tmp_path / "test.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "run_config", lambda o: run_config({"max_redraws": REDRAWS, **o}))
    return lambda *more: run_twinset(capsys, *GIVEN, "--base-model", tiny_base, *more)


def stored():
    return json.loads(Path("out.json").read_text())


def test_from_the_command_line_to_its_files(compare):
    outcome = compare("--policies", "uniform,none", "--seeds", "2", "--epsilon", "4")
    assert outcome.code == 0, outcome.err
    for name in ORDER:
        assert name in outcome.out

    found = stored()
    assert [r["key"] for r in found["rows"]] == [[n, s] for s in (0, 1) for n in ORDER]
    assert found["facts"]["train"] == 80 and found["facts"]["held out"] == 20
    uniform, none = (next(r for r in found["rows"] if r["key"][0] == n) for n in ORDER[2:])
    assert 3 < uniform["epsilon"] <= 4 and uniform["delta"] == 1e-5
    assert none["epsilon"] is None and none["guarantee"].startswith("No privacy guarantee")
    assert {"fine-tuning", "sampling", "perplexity", "exposure"} <= uniform["seconds"].keys()
    columns = [m.name for m in list_measures(["tfidf"], 1000)]
    for row in found["rows"]:
        wanted = columns[:2] if row["key"][0] == REAL_ROWS else columns
        assert sorted(row["values"]) == sorted(wanted)
        assert len(row["exposures"]) == (0 if row["key"][0] == REAL_ROWS else len(COPIES) * EACH)
    for exposure in uniform["exposures"]:
        assert exposure["space"] == 1000 and exposure["method"] == "exact rank"
        assert exposure["bits"] == pytest.approx(math.log2(1000 / exposure["rank"]))
    assert {(s["policy"], s["n"]) for s in found["scores"]} == {(name, 2) for name in ORDER}

    markdown = Path("out.md").read_text()
    assert "stays with their owner" in markdown
    assert "differentially private" in markdown and "No privacy guarantee" in markdown
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    for path in map(Path, ("out.json", "out.md", "out.png")):
        assert path.stat().st_mode & 0o777 == 0o600
    for text in ("the film number", "It was"):
        assert text not in markdown + json.dumps(found)


def test_the_same_command_resumes_and_another_is_refused(compare, monkeypatch):
    runs, real_run = [], PolicyTrials.run

    def run(self, name, seed, config):
        if len(runs) == 3:
            raise KeyboardInterrupt
        runs.append((name, seed))
        return real_run(self, name, seed, config)

    monkeypatch.setattr(PolicyTrials, "run", run)
    given = ("--policies", "none", "--seeds", "2")
    assert compare(*given).code == STOPPED
    kept = stored()["rows"]
    assert [tuple(r["key"]) for r in kept] == runs

    runs.clear()
    assert compare(*given).code == 0
    assert runs == [(name, 1) for name in (REAL_ROWS, BASELINE, "none")]
    assert stored()["rows"][:3] == kept

    runs.clear()
    before = Path("out.json").read_bytes()
    for more, named in (
        (("--epsilon", "3"), "(options)"),
        (("--rows", "9"), "(rows)"),
        (("--test", "test.csv"), "(train, held out)"),
        (("--seed", "1"), "(train, held out, options)"),
    ):
        outcome = compare(*given, *more)
        assert outcome.code == 2
        assert "other settings" in outcome.err and named in outcome.err
        assert outcome.err.count("\n") == 1
    assert Path("out.json").read_bytes() == before and not runs

    assert compare(*given).code == 0  # nothing is left to do
    assert not runs


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--policies", "uniform,best"), "there is no policy 'best'"),
        (("--output", "no/such/out"), "its folder does not exist"),
        (("--max-tokens", "12"), "raise --max-tokens"),
        (("--classifier", "bert"), "no classifier 'bert'"),
        (("--test", "absent.csv"), "no such file"),
        (("--test", "other.csv"), "labels that train.csv lacks"),
        (("--epsilon", "0"), "--epsilon must be a number from 0.001"),
        (("--config", "free.toml"), "--policies none"),
        (("--policies", "uniform,adaptive"), "needs constants for the base model"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(more, message, compare):
    other = reviews(20, seed=1)
    other.assign(sentiment=other["sentiment"] + "ish").to_csv("other.csv", index=False)
    Path("free.toml").write_text("no-privacy = true\n")
    outcome = compare("--policies", "uniform", *more)
    assert outcome.code == 2, outcome.err
    assert message in outcome.err and outcome.err.count("\n") == 1
    assert not Path("out.json").exists()


def test_nothing_of_it_goes_where_a_twin_is_shared(compare):
    Path("share").mkdir()
    refused = compare("--output", "share/out")
    assert refused.code == 2 and "share/ is for others" in refused.err
    assert not list(Path("share").iterdir())


def test_a_foreign_file_is_left_alone(compare):
    Path("out.json").write_text('{"mine": 1}')
    assert "holds no results" in compare().err
    assert Path("out.json").read_text() == '{"mine": 1}'


def test_policies_differ_in_policy_alone():
    config = RunConfig()
    adaptive = policy_config(config, "adaptive")
    assert adaptive.policy.noise_policy == "adaptive"
    assert replace(adaptive, policy=config.policy) == config
    assert policy_config(config, "none").privacy.target_epsilon is None


def test_a_fifth_is_held_out_by_the_seed(tmp_path):
    table = reviews(100, seed=0)
    table.to_csv(tmp_path / "t.csv", index=False)
    request = ComparisonRequest(Source(str(tmp_path / "t.csv"), "text", ("sentiment",)))
    data, again, other = (read_data(request, seed, Silent()) for seed in (0, 0, 1))
    assert sorted(data.train.texts + data.heldout.texts) == sorted(table["text"])
    assert len(data.heldout) == 20
    assert data.heldout == again.heldout != other.heldout
    moods = dict(zip(table["text"], table["sentiment"], strict=True))
    assert all(moods[t] == m for t, (m,) in zip(data.train.texts, data.train.labels, strict=True))


def test_t_interval_by_hand():
    """t(0.975, 2) = 4.303 in every table; the standard deviation of 1, 2, 6 is √7."""
    score = mean("bits", [1.0, 2.0, 6.0], "minimise", 0.0, 9.0)
    assert score.value == 3.0 and score.n == 3
    assert score.high == pytest.approx(min(9.0, 3 + 4.30265 * math.sqrt(7 / 3)))
    assert score.low == 0.0  # 3 - 6.57, cut at the range
    inside = mean("bits", [2.9, 3.0, 3.1], "minimise", 0.0, 9.0)
    assert inside.low == pytest.approx(3 - 4.30265 * 0.1 / math.sqrt(3), abs=1e-5)
    alone = mean("bits", [3.0], "minimise", 1.0, 9.0)
    assert (alone.low, alone.high) == (1.0, 9.0)


@pytest.fixture
def results(tmp_path):
    settings = {"classifiers": ["tfidf"], "about": {"machine": "a"}}
    found = PolicyResults.open(tmp_path / "r.json", settings, "twinset compare x")
    found.facts = {"data": "d|t.csv", "train": 8, "held out": 2, "planted": 55, "rows": 4}
    found.facts |= {"target": "mood", "coinciding": 0, "judge rows": 8}
    found.facts |= {"perplexity rows": 2, "space": 1000}
    for seed, bits in enumerate((1.0, 2.0, 6.0)):
        run = PolicyRun(
            {name_exposure(10): bits}, {"fine-tuning": 60.0}, 7.991, 1e-5, "Is private."
        )
        found.add(("uniform", seed), asdict(run))
    none = PolicyRun({name_exposure(10): 9.97}, {"fine-tuning": 10.0}, guarantee="None.")
    found.add(("none", 0), asdict(none))
    return found


def test_table_by_hand(results):
    lines = as_markdown(results).splitlines()
    uniform = next(line for line in lines if line.startswith("| uniform"))
    cells = [cell.strip() for cell in uniform.strip("|").split("|")]
    assert cells[:4] == ["uniform", "3", "8.00", "1e-05"]
    assert cells[-3] == "3.00 [0.00, 9.57]"
    assert cells[-1] == "60"
    none = next(line for line in lines if line.startswith("| none"))
    assert "| none | 1 | none | none |" in none and "| 9.97 |  | 10 |" in none
    assert "- uniform: Is private." in lines and "- none: None." in lines
    shown = Console(width=80, record=True, file=io.StringIO())
    shown.print(as_table(results))
    row = next(line for line in shown.export_text().splitlines() if "[0.00, 9.57]" in line)
    assert row.split() == "exposure, planted 10× uniform 3.00 [0.00, 9.57] 3".split()


class Heard(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


@pytest.mark.parametrize(
    ("options", "records", "said"),
    [({}, 50, True), ({}, 10_000, False), ({"steps": 4}, 50, False), ({"steps": 0}, 50, False)],
)
def test_that_few_records_are_trained_on_all_the_same_is_said(monkeypatch, options, records, said):
    prepared = SimpleNamespace(records=range(records))
    monkeypatch.setattr(policy_runs, "prepare", lambda source, config: prepared)
    monkeypatch.setattr(policy_runs, "finetune", lambda *of: 1 / 0)  # what is said is said before
    heard = Heard()
    with pytest.raises(ZeroDivisionError):
        policy_runs.train_twin(None, run_config({"epsilon": 8.0, **options}), 10, heard)
    assert (policy_runs.TRAINED_ALL_THE_SAME in heard.lines) == said
