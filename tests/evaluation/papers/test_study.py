"""How any study of a paper is run: what it says, how it resumes, and what its page rests on."""

import json
import math
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from evaluation import results_store
from evaluation.papers import study
from evaluation.papers.adp import Adp
from evaluation.papers.anadp import Anadp
from evaluation.papers.anadp_one_set import AnadpOneSet
from evaluation.papers.intervals import Interval, difference, geometric_mean, mean_of, ratio
from evaluation.papers.kerrigan import Kerrigan
from evaluation.papers.kerrigan_large_batches import KerriganLargeBatches
from evaluation.papers.mattern import Mattern
from evaluation.papers.mattern_few import MatternFew
from evaluation.papers.page import Prose
from evaluation.papers.run_context import RunContext
from evaluation.papers.sdp import Sdp
from evaluation.papers.study import SIZES, Study, fingerprint, page_of, read_size
from evaluation.papers.study_rows import Results
from tests.helpers.study_runs import run_study
from twinset.errors import InputError
from twinset.progress import Silent

STUDIES = [Adp, Anadp, AnadpOneSet, Kerrigan, KerriganLargeBatches, Mattern, MatternFew, Sdp]
NAMES = [one.name for one in STUDIES]


@pytest.mark.parametrize("paper", STUDIES, ids=NAMES)
def test_the_published_page_is_made_from_the_published_rows(paper):
    results = Results.load(study.PUBLISHED / f"{paper.name}.json")
    made = paper(results.settings["size"])
    seeds = 1 + max(key[-1] for key in results.rows)
    assert seeds >= 3 and set(results.rows) == set(made.keys(seeds))
    page = page_of(made, results)
    assert page == results.path.with_suffix(".md").read_text("utf-8"), "write it again by --page"


@pytest.mark.parametrize("paper", STUDIES, ids=NAMES)
def test_a_verdict_quotes_what_was_measured(paper):
    results = Results.load(study.PUBLISHED / f"{paper.name}.json")
    page = results.path.with_suffix(".md").read_text("utf-8").replace("\\", "")
    lines = (line for line in page.splitlines() if line.startswith("|"))
    cells = {cell.strip() for line in lines for cell in line.split("|")}
    quoted = Prose.read(study.HERE / f"{paper.name}.md").measured()
    assert quoted
    assert [number for number in quoted if number not in cells] == []


@pytest.mark.parametrize("paper", STUDIES, ids=NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_a_dry_run_needs_no_files(paper, size, tmp_path):
    output = tmp_path / "out"
    plan = run_study(paper, "--size", size, "--seeds", 2, "--output", output, "--dry-run")
    rows = len(list(paper(size).keys(2)))
    assert plan.endswith(f"{rows} rows with 2 seeds\n") and not output.exists()
    for name in read_size(paper.name, size):
        assert f"{name} = " in plan


@pytest.mark.parametrize("paper", STUDIES, ids=NAMES)
@pytest.mark.parametrize("given", [0, 1])
def test_missing_files_are_named(paper, given, tmp_path):
    first, second, *_ = (f"--{name.replace('_', '-')}" for name in paper.options("files"))
    options = [first, "a.txt"] if given else []
    with pytest.raises(InputError, match=f"{second if given else first}: name a file"):
        run_study(paper, *options, "--output", tmp_path)


@pytest.mark.parametrize("wrong", [["--size", "huge"], ["--seeds", "0"], ["--what"]])
def test_bad_options_end_with_exit_code_2(wrong, coins, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_study(Coins, *wrong)
    assert wrong[0] in capsys.readouterr().err


def test_the_package_runs_a_paper_by_its_name():
    for arguments, said, code in (["kerrigan", "--help"], "--gpt2", 0), (["none"], "usage", 2):
        command = [sys.executable, "-m", "evaluation.papers", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True)


class Toss(NamedTuple):
    coin: str
    seed: int


class Coins(Study):
    """Two coins, tossed; it breaks off at the row numbered `stop`."""

    name = "coins"
    stop = None
    made = []

    def keys(self, seeds):
        return [Toss(coin, seed) for seed in range(seeds) for coin in ("fair", "other")]

    def facts(self):
        return {"coins": 2, "mint": "*|"}

    def row(self, key, run):
        if len(self.made) == self.stop:
            raise KeyboardInterrupt
        self.made.append(tuple(key))
        weights = torch.nn.Linear(1, 1)
        run.train_once(f"seed {key.seed}", weights, lambda: self.made.append("weights"))
        return {"heads": {"share": 0.5 if key.coin == "fair" else self.size["bias"]}}

    def tables(self, results):
        less = results.difference(("other",), ("fair",), "heads", "share")
        return {"heads": [{"coin": "a|b", "less": less}]}

    def figure(self, results):
        return Figure()


PROSE = """# Coins: Nobody (2020)

## Verdict

It is.

<!-- results -->

{{ tables.heads }}

- {{ facts.coins|commas }} of {{ facts.mint }}, {{ size.bias|percent }}
"""


@pytest.fixture
def coins(tmp_path, monkeypatch):
    """A study in its own folder, and the options that run it."""
    monkeypatch.setattr(study, "HERE", tmp_path)
    monkeypatch.setattr(study, "PUBLISHED", tmp_path / "results")
    (tmp_path / "coins.md").write_text(PROSE)
    sizes = "".join(f"[{size}]\nbias = 0.9\n" for size in SIZES)
    (tmp_path / "coins.toml").write_text(f"[files]\npurse = 'where the coins are'\n{sizes}")
    (tmp_path / "purse.txt").write_text("")
    monkeypatch.setattr(Coins, "made", [])
    options = ["--purse", tmp_path / "purse.txt", "--seeds", 2, "--output", tmp_path / "out"]
    return type("Fresh", (Coins,), {"made": []}), options


def test_a_study_that_was_stopped_is_resumed(coins, tmp_path, capsys):
    tossed, options = coins
    tossed.stop = 2
    with pytest.raises(SystemExit, match="130"):
        run_study(tossed, *options)
    assert capsys.readouterr().err.endswith("stopped; the same command goes on\n")
    path = tmp_path / "out" / "coins.json"
    assert len(json.loads(path.read_text())["rows"]) == 1
    with pytest.raises(InputError, match=r"coins\.json: 1 rows are missing"):
        run_study(tossed, "--page", "--output", tmp_path / "out")
    tossed.stop, tossed.made = None, []
    page = run_study(tossed, *options)
    # the weights that were kept are not made again
    assert tossed.made == [("other", 0), ("fair", 1), "weights", ("other", 1)]
    assert sorted(p.name for p in path.parent.iterdir()) == ["coins.json", "coins.md", "coins.png"]
    assert page == path.with_suffix(".md").read_text()
    assert run_study(tossed, *options) == page and len(tossed.made) == 4
    (tmp_path / "coins.toml").write_text("[files]\npurse = ''\n[cpu]\nbias = 0.4\n")
    with pytest.raises(InputError, match=r"other settings \(sizes\)"):
        run_study(tossed, *options)


def test_rows_of_another_machine_are_added_to_only_if_asked_for(coins, tmp_path, monkeypatch):
    tossed, options = coins
    monkeypatch.setattr(results_store, "about", lambda: {"machine": "first"})
    tossed.stop = 2
    with pytest.raises(SystemExit, match="130"):
        run_study(tossed, *options)
    monkeypatch.setattr(results_store, "about", lambda: {"machine": "second"})
    tossed.stop = None
    with pytest.raises(InputError, match=r"other settings \(about\)"):
        run_study(tossed, *options)
    page = run_study(tossed, *options, "--elsewhere")
    assert "- machine, 1 of 4 rows: first\n- machine, 3 of 4 rows: second\n" in page
    rows = json.loads((tmp_path / "out" / "coins.json").read_text())["rows"]
    assert [row.get("about") for row in rows] == [None, *[{"machine": "second"}] * 3]
    purse = options.index("--purse") + 1
    options[purse].write_text("another")  # what is not of the machine is still refused
    with pytest.raises(InputError, match=r"other settings \(sources\)"):
        run_study(tossed, *options, "--elsewhere")


def test_the_verdict_stands_only_beside_the_rows_it_is_about(coins, tmp_path):
    tossed, options = coins
    page = run_study(tossed, *options)
    for line in (
        "# Coins: Nobody (2020)",
        "![Coins](coins.png)",
        "| a\\|b | 0.400 \\[0.400, 0.400\\] |",
        "- 2 of \\*\\|, 90.0%",
        "- size: cpu",
    ):
        assert line in page.splitlines()
    assert "It is." not in page and "not about these" in page
    (tmp_path / "out").rename(tmp_path / "results")
    published = run_study(tossed, "--page", "--output", tmp_path / "results")
    assert "## Verdict\n\nIt is.\n" in published and "not about these" not in published


@pytest.mark.parametrize("text", ["no verdict\n<!-- results -->\n", "## Verdict\nno results"])
def test_prose_without_its_parts_is_refused(text, tmp_path):
    (tmp_path / "a.md").write_text(text)
    with pytest.raises(ValueError):
        Prose.read(tmp_path / "a.md")


def test_quoted_numbers_are_found_with_their_intervals():
    prose = Prose("", "× 0.39 [0.3,\n0.4], -1.5 bits, 14,174.17 of 3 at 9.98e-07", "")
    assert prose.measured() == ["0.39 [0.3, 0.4]", "-1.5", "14,174.17", "9.98e-07"]


def test_results_refuse_other_settings_and_other_files(tmp_path):
    path, key = tmp_path / "a.json", ("model", 0.1, 0)
    Results.resume(path, {"size": "tiny"}, "first").add(key, {"perplexity": 2.0})
    again = Results.resume(path, {"size": "tiny"}, "second")
    assert again.rows.keys() == {key} and again.rows[key]["perplexity"] == 2.0
    assert again.commands == ["first", "second"]
    assert again.values(("model", 0.1), "perplexity") == {0: 2.0}
    assert again.values(("model",), "perplexity") == {}
    with pytest.raises(InputError, match=r"other settings \(size\)"):
        Results.resume(path, {"size": "cpu"}, "third")
    path.write_text("[]")
    with pytest.raises(InputError, match="holds no results"):
        Results.load(path)


def test_files_and_folders_are_known_by_their_contents(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    first, whole = fingerprint(tmp_path / "a.txt"), fingerprint(tmp_path)
    assert first.startswith("a.txt, SHA-256 ca978112")
    (tmp_path / "a.txt").write_text("b")
    assert fingerprint(tmp_path / "a.txt") != first and fingerprint(tmp_path) != whole
    with pytest.raises(InputError, match="cannot be read"):
        fingerprint(tmp_path / "none")


def test_weights_are_trained_once(tmp_path):
    context = RunContext(Silent(), tmp_path / "kept")
    first, second, third = (torch.nn.Linear(2, 2) for _ in range(3))
    context.train_once("a", first, lambda: torch.nn.init.ones_(first.weight))
    context.train_once("a", second, pytest.fail)
    assert torch.equal(second.weight, torch.ones(2, 2))
    context.train_once("b", third, lambda: None)
    assert not torch.equal(third.weight, torch.ones(2, 2))
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_means_and_differences_over_seeds():
    assert mean_of([1.0]) == Interval(1.0, -math.inf, math.inf, 1)
    assert mean_of([0.8, 0.9, 0.85]).text(3) == "0.850 [0.726, 0.974]"
    assert mean_of([0.9, 1.0], 0.0, 1.0).high == 1.0
    assert geometric_mean([10.0]).text(1) == "10.0"
    assert difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.5, 1: 1.5, 2: 2.4}).above(0) is True
    with pytest.raises(ValueError):
        difference({0: 1.0}, {1: 1.0})


def groups(perplexity, seeds):
    """Groups of 10 tokens each, by seed, of about this perplexity."""
    rng, tokens = np.random.default_rng(int(perplexity)), np.full(20, 10.0)
    spread = rng.normal(0, 0.01, (seeds, 20))
    return {
        seed: np.column_stack([10 * (math.log(perplexity) + spread[seed]), tokens])
        for seed in range(seeds)
    }


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_ratio_is_of_the_same_seeds(seeds):
    found = ratio(groups(80, 3), groups(100, seeds))
    assert found.seeds == seeds
    assert found.value == pytest.approx(0.8, rel=0.02)
    assert found.low < found.value < found.high < 2
    with pytest.raises(ValueError):
        ratio(groups(80, 1), {})
