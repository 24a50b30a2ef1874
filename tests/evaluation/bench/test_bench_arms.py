"""The page of all arms, end to end on a random model: stopped, resumed, and what was not run."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from evaluation import results_store
from evaluation.bench.arms import __main__ as arms
from evaluation.bench.arms import rows, runs
from evaluation.bench.arms.measuring import Measuring
from evaluation.bench.arms.plan import Stated
from evaluation.utility.hidden_states import HiddenStateClassifier, HiddenStates
from tests.helpers.evaluated import reviews, without_downloads
from twinset.errors import InputError
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.statement.ledger import Ledger
from twinset.training.loop import PrivateOptimizer

NAME = "blitzer_dvd_kitchen"
CELL = Path("out", NAME, "epsilon-8-seed-0")


@pytest.fixture
def run_arms(tmp_path, tiny_base, monkeypatch):
    """Return a function that runs the command on a small table, and returns its results."""
    folder = tmp_path / "tables" / NAME
    folder.mkdir(parents=True)
    for part, number, seed in (("train", 100, 0), ("test", 40, 1)):
        reviews(number, seed).to_csv(folder / f"{part}.csv.gz", index=False)
    without_downloads(monkeypatch)
    monkeypatch.chdir(tmp_path)
    fixed = {"size": "tiny", "base_model": str(tiny_base), "tables": Path("tables")}

    def run(output="out", only=(NAME,), results=None, **more):
        arms.main(**fixed, output=Path(output), only=list(only), results=results, **more)
        return json.loads(Path(results or output, "arms.json").read_text())

    return run


def calls_of(owner, name, monkeypatch, most=None):
    """Count the calls of a method; the one after the last it may have is interrupted."""
    real, made = getattr(owner, name), []

    def counted(*given, **named):
        if len(made) == most:
            raise KeyboardInterrupt
        made.append(given[1:])
        return real(*given, **named)

    monkeypatch.setattr(owner, name, counted)
    return made


def test_all_arms_stopped_and_resumed(run_arms, monkeypatch, capsys):
    wanted = [m for m in Stated.read("tiny").measurements() if m.table == NAME]
    with monkeypatch.context() as patch:
        calls_of(Measuring, "row", patch, most=11)
        with pytest.raises(SystemExit, match="130"):
            run_arms()
    before = json.loads(Path("out/arms.json").read_text())["rows"]
    measured = calls_of(Measuring, "row", monkeypatch)
    written = calls_of(rows.Writing, "_write", monkeypatch)
    found = run_arms(only=[NAME, "imdb_short"])
    assert [tuple(row["key"]) for row in found["rows"]] == wanted
    assert len(before) == 11 and found["rows"][:11] == before
    assert len(measured) == len(wanted) - 11
    assert len(written) == 6  # twin, with tilt, with teacher: base rows are those of before
    assert run_arms() == found and len(measured) == len(wanted) - 11  # nothing is left to do

    for row in found["rows"]:
        _, asked, arm, _, _ = row["key"]
        if asked:
            assert 7.9 < row["epsilon"] <= 8.0, arm
        else:
            assert row["epsilon"] is None
    by_key = {tuple(row["key"][2:4]): row for row in found["rows"]}
    assert by_key["real rows", "N"]["accuracy"]["sentiment × product"]["tfidf"] > 0.9
    whole, cut = (by_key[name, "N"]["mean length"] for name in ("real rows", "real rows, cut"))
    assert 0 < cut < whole
    assert by_key["teacher itself", "all"]["accuracy"]["sentiment"].keys() == {"teacher"}
    assert by_key["twin", "12"]["rows"] == 12 and by_key["twin", "N"]["rows"] == 80
    assert by_key["twin + tilt + teacher", "N"]["rows"] == 80

    page = Path("out/arms.md").read_text()
    default = by_key["base + released words + teacher", "N"]  # of 80 records, which are few
    twin = default["accuracy"]["sentiment × product"]["tfidf"]
    assert f"| {NAME} | 8 | N | none | 1 | " in page and f" | {twin:.3f} | " in page.split("![")[0]
    assert "| mean of 1 tables | 8 | N |" in page
    assert "- imdb_short, ε 8: base + released words, " in page
    assert f"- {NAME}, " not in page.split("## Not run")[1]
    assert "imdb_short is left out" in capsys.readouterr().err
    assert "out/" not in page and "the film" not in page + json.dumps(found)


def test_a_part_is_added_to_and_the_rest_is_named_as_not_run(run_arms):
    few = run_arms(arm=["base"], rows=["12"])
    assert [row["key"][2:4] for row in few["rows"]] == [["base", "12"]]
    page = Path("out/arms.md").read_text()
    assert f"- {NAME}, no ε: base: rows N (seed 0); " in page
    assert f"- {NAME}, ε 8: " in page
    assert len(run_arms(arm=["real rows"])["rows"]) == 3
    (before, *_), (after, *_) = few["rows"], run_arms(arm=["base"], student=["svm"])["rows"]
    for target, found in after.pop("accuracy").items():
        assert (
            list(found) == ["tfidf", "svm"]
            and found["tfidf"] == before["accuracy"][target]["tfidf"]
        )
    assert {n: after[n] for n in after if n != "made"} == {
        n: before[n] for n in before if n not in ("made", "accuracy")
    }
    assert "| not run |" in Path("out/arms.md").read_text()
    with pytest.raises(InputError, match=r"other settings \(split\)"):
        run_arms(arm=["base"], split="dev")
    table = Path("tables", NAME, "train.csv.gz")
    reviews(100, seed=2).to_csv(table, index=False)
    with pytest.raises(InputError, match=r"other settings \(SHA-256\)"):
        run_arms(arm=["base"])


def test_tuning_never_reads_the_test_rows(run_arms):
    Path("tables", NAME, "test.csv.gz").unlink()
    found = run_arms(arm=["real rows"], split="dev")
    facts = found["facts"]["tables"][NAME]
    assert (facts["training rows"], facts["test rows"]) == (60, 20)
    assert facts["SHA-256"].keys() == {"train.csv.gz"}


def test_a_training_that_was_stopped_goes_on(run_arms, monkeypatch):
    with monkeypatch.context() as patch:
        calls_of(PrivateOptimizer, "step", patch, most=1)
        with pytest.raises(SystemExit, match="130"):
            run_arms(arm=["twin"], rows=["12"])
    steps = calls_of(PrivateOptimizer, "step", monkeypatch)
    run_arms(arm=["twin"], rows=["12"])
    assert len(steps) == 1
    spent = Ledger.load(CELL / "default/model/ledger.json").events
    assert sum(event.steps for event in spent if isinstance(event, SubsampledGaussian)) == 2


def test_a_finished_run_is_taken_if_it_was_made_alike(run_arms, monkeypatch):
    run_arms(arm=["twin"], rows=["12"])
    other = Path(shutil.copytree(CELL / "default", "changed"), "internal/config.json")
    other.write_text(other.read_text().replace('"teacher_share": 0.1', '"teacher_share": 0.2'))
    monkeypatch.setattr(runs, "finetune_only", lambda *given: pytest.fail())
    taken = partial(run_arms, "other", arm=["twin"], rows=["12"])
    with pytest.raises(InputError, match=r"other settings \(privacy\)"):
        taken(run_folder=Path("changed"))
    with pytest.raises(InputError, match="no finished run"):
        taken(run_folder=Path("tables"))
    with pytest.raises(InputError, match="one cell"):
        taken(only=[], run_folder=CELL / "default")
    (row,) = taken(run_folder=CELL / "default")["rows"]
    assert row["rows"] == 12
    assert "taken from a finished run" in Path("other/arms.md").read_text()


def test_hidden_states_tell_labels(tiny_base):
    train, test = reviews(80, seed=0), reviews(40, seed=1)
    states = HiddenStates(str(tiny_base), ["sentiment", "product"], longest=40)
    learner = HiddenStateClassifier(states).fit(train["text"].tolist(), train["product"])
    assert (learner.predict(test["text"].tolist()) == test["product"]).mean() > 0.8


@pytest.mark.parametrize(
    "wrong", [{"arm": ["best"]}, {"epsilon": [2.0]}, {"rows": ["7"]}, {"split": "all"}]
)
def test_what_the_page_does_not_hold_is_refused(run_arms, wrong):
    with pytest.raises(InputError, match="is none of"):
        run_arms(**wrong)
    assert not Path("out").exists()


def test_results_stay_apart_and_add_up_over_machines(run_arms, monkeypatch):
    kept = Path("kept")
    monkeypatch.setattr(results_store, "about", lambda: {"machine": "first"})
    monkeypatch.setattr(results_store, "commit", lambda: "0123abc")
    run_arms(arm=["real rows"], rows=["N"], results=kept)
    monkeypatch.setattr(results_store, "about", lambda: {"machine": "second"})
    run_arms("other", arm=["base"], rows=["N"], results=kept)
    rows = json.loads((kept / "arms.json").read_text())["rows"]
    assert [row.get("about") for row in rows] == [None, {"machine": "second"}]
    page = (kept / "arms.md").read_text()
    assert "- machine, 1 of 2 rows: first\n- machine, 1 of 2 rows: second\n" in page
    assert f"- commit: {rows[0]['commit']} (2 rows)\n" in page
    assert (kept / "arms.png").stat().st_size > 1000 and not Path("out/arms.json").exists()


def test_a_student_is_added_only_to_what_was_made_here(run_arms, monkeypatch):
    monkeypatch.setattr(results_store, "about", lambda: {"machine": "first"})
    (before,) = run_arms(arm=["base"], rows=["12"])["rows"]
    monkeypatch.setattr(results_store, "about", lambda: {"machine": "second"})
    scored = calls_of(Measuring, "row", monkeypatch)
    (after,) = run_arms(arm=["base"], rows=["12"], student=["tfidf", "svm"])["rows"]
    assert [known for _, known in scored] == [None]  # the whole row is of one machine
    assert after["about"] == {"machine": "second"} and "about" not in before
    assert "| base \\* |" in Path("out/arms.md").read_text()
