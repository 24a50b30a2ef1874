"""Studies: rows are made once, comparisons are paired by seed, and the figures are right."""

import importlib

import pandas as pd
import pytest

from evaluation.papers.study import Comparison, Study, compare_arms, run_study

PAPERS = [f"papers.{name}" for name in ("kerrigan", "adp", "anadp", "sdp", "mattern")]


def test_rows_are_made_once_and_further_seeds_are_added(tmp_path):
    measured = []

    def measure(arm, seed, data, size):
        measured.append((arm, seed))
        return {"perplexity": {"a": 2.0, "b": 4.0}[arm] * (1 + seed), "note": "x"}

    study = Study(
        name="toy",
        title="Toy",
        claim="a is better",
        files={"lines": "some text"},
        sizes={name: {"arms": ["a", "b"]} for name in ("tiny", "cpu", "full")},
        arms=lambda size: size["arms"],
        load=lambda paths, size: paths["lines"].read_text(),
        measure=measure,
        comparisons=[Comparison("perplexity", "a", "b", True, "0.5")],
        picture="perplexity",
    )
    (tmp_path / "lines.txt").write_text("one\n")
    given = ["--lines", str(tmp_path / "lines.txt"), "--output", str(tmp_path / "out"), "--seeds"]
    run_study(study, [*given, "1"])
    assert len(run_study(study, [*given, "2"])) == 4
    assert measured == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    page = (tmp_path / "out" / "toy-table.md").read_text()
    assert "| perplexity | a | b | 0.5 \\[0.5, 0.5\\] | 0.5 |" in page


def test_seeds_are_paired():
    """Each seed moves both arms: the difference has no spread, unpaired it would have."""
    arms = {"a": [1.0, 5.0, 9.0], "b": [0.0, 4.0, 8.0]}
    rows = [{"arm": a, "seed": s, "x": v} for a, vs in arms.items() for s, v in enumerate(vs)]
    frame = pd.DataFrame(rows)
    assert compare_arms(frame, Comparison("x", "a", "b")) == (1.0, 1.0, 1.0)
    shuffled = frame.assign(seed=[0, 1, 2, 2, 0, 1])  # the control
    _, low, high = compare_arms(shuffled, Comparison("x", "a", "b"))
    assert high - low > 10


@pytest.mark.parametrize("paper", [*PAPERS, "bench.arms", "bench.sizes"])
def test_a_paper_lists_its_arms_and_compares_only_these(paper, capsys):
    study = importlib.import_module(f"evaluation.{paper}").STUDY
    run_study(study, ["--dry-run", "--seeds", "2"])
    listed = capsys.readouterr().out.splitlines()
    arms = set(study.arms(study.sizes["full"]))
    assert {arm for one in study.comparisons for arm in (one.ours, one.theirs)} <= arms
    assert listed[-1] == f"{2 * len(study.arms(study.sizes['cpu']))} rows with 2 seeds"
