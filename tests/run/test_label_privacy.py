"""A label value of few records reaches no file, whatever the options; and whose values they are."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import cli
from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import REDRAWS, reviews, without_downloads
from twinset.api import Twinset, generate
from twinset.config.options import run_config
from twinset.errors import InputError
from twinset.privacy.statement.ledger import Ledger
from twinset.release.share import LEDGER
from twinset.release.verify import verify
from twinset.sampling.twin_model import DESCRIPTION
from twinset.table.labels import TABLE

RARE = "positivq"  # a letter apart from a label, and in no other word
QUICK = ("--steps", "2", "--batch-size", "8", "--max-tokens", "12", "--rows", "12", "--run", "run")
COLUMNS = ("--text", "text", "--attribute", "sentiment")
DECLARED = ("--labels", "sentiment=positive,negative")
OPTIONS = {"epsilon": 50, "steps": 2, "batch_size": 8, "max_tokens": 12, "max_redraws": 1000}


@pytest.fixture
def frame():
    frame = reviews(80, seed=0).assign(stars=[i % 50 / 10 for i in range(80)])
    frame.loc[6, "sentiment"] = RARE
    return frame


@pytest.fixture(autouse=True)
def place(frame, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without_downloads(monkeypatch)
    frame.to_csv("t.csv", index=False)
    return tmp_path


@pytest.fixture
def run(tiny_base, capsys):
    """Run a command that takes the table, and return how it ended."""
    return lambda command, *more, columns=COLUMNS: run_twinset(
        capsys, command, "t.csv", *columns, "--base-model", tiny_base, *more
    )


def files_with(text: str, folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "t.csv"]
    return [str(path.relative_to(folder)) for path in files if text.encode() in path.read_bytes()]


def public_inputs(run="run") -> str:
    return " | ".join(Ledger.load(Path(run, "model", LEDGER)).public_inputs)


@pytest.mark.parametrize("command", ["generate", "finetune", "plan"])
def test_a_rare_value_stops_before_anything_is_written(place, run, command):
    quick = {"generate": QUICK, "finetune": (*QUICK[:6], *QUICK[8:]), "plan": QUICK[:8]}[command]
    ended = run(command, *quick)
    assert ended.code == 2 and ended.err.count("\n") == 1 and ended.out == ""
    assert "(row 8)" in ended.err and RARE not in ended.err and "--merge-labels" in ended.err
    assert "--labels sentiment=negative,positive" in ended.err and "--drop-undeclared" in ended.err
    assert [path.name for path in place.iterdir()] == ["t.csv"]


WAYS = {
    "merged": (("--merge-labels",), 80, "from the table, rare spellings being merged"),
    "declared": ((*DECLARED, "--drop-undeclared"), 79, "'sentiment', declared by the owner"),
    "both": ((*DECLARED, "--merge-labels"), 80, "'sentiment', declared by the owner"),
}


@pytest.mark.parametrize(("more", "records", "whose"), WAYS.values(), ids=WAYS)
def test_the_ways_on_keep_it_out_of_every_file(place, run, more, records, whose):
    """Also out of `internal/`, where notes and options are."""
    ended = run("generate", *QUICK, *more, "--output", "twin.csv")
    assert ended.code == 0, ended.err
    assert RARE not in ended.err + ended.out and not files_with(RARE, place)
    assert verify("run").rows == 12 and whose in public_inputs()
    assert Ledger.load(Path("run", "model", LEDGER)).records == records
    card = Path("run/share/README.md").read_text()
    assert "`negative`" in card and whose in card


def test_without_the_check_it_reaches_the_card(place, run, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(
        "twinset.table.records.public_labels",
        lambda column, rules, notes: replace(column, whose=TABLE),
    )
    assert run("generate", *QUICK).code == 0
    assert {"run/share/README.md", f"run/model/{DESCRIPTION}"} <= {*files_with(RARE, place)}


def test_values_that_are_not_rare_are_listed_and_said_to_be_the_tables(run):
    reviews(80, seed=0).to_csv("t.csv", index=False)
    ended = run("generate", *QUICK)
    assert ended.code == 0
    assert "become public as the table has them: 'negative', 'positive'; --labels" in ended.err
    assert "'sentiment', taken from the table: public by assumption" in public_inputs()


def test_a_declared_value_that_no_row_has_may_get_rows(run, frame):
    frame.assign(sentiment=reviews(80, 0).sentiment).to_csv("t.csv", index=False)
    wanted = ("--labels", "sentiment=positive,negative,mixed", "--rows-per-label", "3")
    ended = run("generate", *QUICK[:6], *QUICK[8:], *wanted)
    assert ended.code == 0 and "no row has 'mixed'" in ended.err
    twin = pd.read_csv("run/share/twin.csv")
    assert twin.sentiment.value_counts().to_dict() == {"positive": 3, "negative": 3, "mixed": 3}


@pytest.mark.parametrize("changed", [("--labels", "sentiment=negative,positive"), ()])
def test_a_resumed_run_declares_what_it_declared(run, tiny_base, monkeypatch, changed):
    def die(*_, **__):
        raise RuntimeError

    frame = reviews(80, seed=0)
    frame.to_csv("t.csv", index=False)
    with monkeypatch.context() as patched:
        patched.setattr("twinset.sampling.twin_model.TwinModel.share", die)
        assert run("generate", *QUICK, *DECLARED).code == 1
    ended = run("generate", *QUICK, *changed, "--resume")
    assert ended.code == 2 and "begun with other settings (" in ended.err and "labels" in ended.err
    assert run("generate", *QUICK, *DECLARED, "--resume").code == 0


def test_options_may_stand_in_files(run, place):
    Path("values.txt").write_text("positive\nnegative\n\n")
    Path("run.toml").write_text('labels = ["sentiment=@values.txt"]\ndrop-undeclared = true\n')
    ended = run("generate", *QUICK, "--config", "run.toml", "--dry-run")
    assert ended.code == 0 and "leaving out 1 of 80 rows" in ended.err
    Path("values.txt").unlink()
    ended = run("plan", "--config", "run.toml")
    assert ended.code == 2 and "values.txt cannot be read" in ended.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--labels", "sentiment"), "--labels sentiment: write COLUMN=VALUE,VALUE or COLUMN=@FILE"),
        (("--labels", "sentiment=@none.txt"), "none.txt cannot be read"),
        ((*DECLARED, *DECLARED), "once for each column"),
        (("--labels", "sentiment=positive"), "give 2 to 100 different values"),
        (("--labels", "other=a,b"), "'other' is no label column; add it to --attribute"),
        (("--drop-undeclared",), "--drop-undeclared does nothing without --labels or --bins"),
        (("--bins", "stars=0,few"), "--bins: write COLUMN=NUMBER"),
        (("--bins", "stars=0,1"), "3 to 101 rising numbers"),
        (DECLARED, "does not declare in 1 of 80 rows (row 8)"),
    ],
)
def test_what_cannot_be_used_is_one_line(place, run, more, said):
    ended = run("generate", *QUICK, *more)
    assert ended.code == 2 and ended.err.count("\n") == 1 and said in ended.err, ended.err
    assert RARE not in ended.err and [path.name for path in place.iterdir()] == ["t.csv"]


def test_bins_are_proposed_and_make_labels(run):
    stars = ("--text", "text", "--attribute", "stars")
    assert "--bins stars=0,3,5" in run("generate", *QUICK, columns=stars).err
    ended = run("generate", *QUICK, "--bins", "stars=0,3,5", columns=stars)
    assert ended.code == 0, ended.err
    assert set(pd.read_csv("run/share/twin.csv").stars) <= {"0 to 3", "3 to 5"}
    assert "'stars', declared by the owner" in public_inputs()


# --- what measures a twin gives real rows the labels that the run gave them -----------------------


MEASURED = {
    "merged": (COLUMNS, ("--merge-labels",)),
    "declared": (COLUMNS, (*DECLARED, "--drop-undeclared")),
    "unused": (COLUMNS, ("--labels", "sentiment=positive,negative,mixed", "--merge-labels")),
    "bins": (("--text", "text", "--attribute", "stars"), ("--bins", "stars=0,2,5")),
}


@pytest.mark.parametrize(("columns", "more"), MEASURED.values(), ids=MEASURED)
def test_a_run_is_measured_with_the_labels_that_it_had(run, frame, capsys, columns, more):
    quick = (*QUICK[:6], *QUICK[8:], "--rows-per-label", "15")
    assert run("generate", *quick, *more, columns=columns).code == 0
    frame.assign(text=[f"{text} It was late." for text in frame.text]).to_csv("test.csv")
    tables = ("--train", "t.csv", "--test", "test.csv", "--classifier", "tfidf", "--quiet")
    ended = run_twinset(capsys, "evaluate", "run", *tables)
    assert ended.code == 0, ended.err
    assert not files_with(RARE, Path("run"))
    rows = ("--members", "t.csv", "--non-members", "test.csv", "--rows", "30", "--quiet")
    ended = run_twinset(capsys, "audit", "run", *rows)
    assert ended.code == 0, ended.err


# --- from Python ----------------------------------------------------------------------------------


def test_python_declares_by_arguments(frame, tiny_base):
    twinset = Twinset(str(tiny_base), **OPTIONS)
    with pytest.raises(InputError, match=r"`labels=\{'sentiment': \['negative', 'positive'\]\}`"):
        twinset.fit(frame, "text", "sentiment")
    with pytest.raises(InputError, match="`labels` does not declare in 1 of 80 rows"):
        twinset.fit(frame, "text", labels={"sentiment": ["negative", "positive"]})
    twinset.fit(frame, "text", "sentiment", merge_labels=True)
    assert "rare spellings being merged" in twinset.guarantee.sentence
    declared = {"sentiment": ["negative", "positive"]}
    twinset.fit(frame, "text", labels=declared, drop_undeclared=True)
    assert "'sentiment', declared by the owner" in twinset.guarantee.sentence
    assert twinset.model.ledger.records == 79


def test_python_generates_with_bins(frame, tiny_base):
    private = {"base_model": str(tiny_base), "run": "run", "rows": 8, **OPTIONS}
    made = generate(frame, "text", "stars", bins={"stars": [0, 2, 5]}, **private)
    assert set(pd.read_parquet(made.twin).stars) <= {"0 to 2", "2 to 5"}
    assert json.loads(Path("run/internal/config.json").read_text())["labels"]["bins"]


@pytest.mark.parametrize("held_out", [(), ("--test", "test.csv")], ids=["a fifth", "a table"])
def test_comparing_gives_labels_as_a_run_does(run, frame, place, monkeypatch, held_out):
    monkeypatch.setattr(cli, "run_config", lambda o: run_config({"max_redraws": REDRAWS, **o}))
    frame.assign(text=[f"{text} It was late." for text in frame.text]).to_csv("test.csv")
    few = ("--policies", "uniform", "--seeds", "1", "--classifier", "tfidf", *QUICK[:4])
    few += ("--rows", "8", "--max-tokens", "64", "--output", "compared", *held_out)
    assert run("compare", *few).code == 2
    ended = run("compare", *few, "--merge-labels")
    assert ended.code == 0, ended.err
    assert RARE not in ended.out + ended.err and files_with(RARE, place) == ["test.csv"]
    assert "rare spellings being merged" in Path("compared.md").read_text()
