"""A label value of few records reaches no file, whatever the options; and whose values they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import reviews, without_downloads
from twinset.privacy.statement.ledger import Ledger
from twinset.release.share import LEDGER
from twinset.release.verify import verify
from twinset.sampling.twin_model import DESCRIPTION
from twinset.table.labels import TABLE

RARE = "positivq"  # a letter apart from a label, and in no other word
STEPS = ("--steps", "1", "--batch-size", "8", "--max-tokens", "12")
CHEAP = ("--marginal-share", "0", "--teacher-share", "0")
QUICK = (*STEPS, *CHEAP, "--rows", "12", "--run", "run")
COLUMNS = ("--text", "text", "--attribute", "sentiment")
DECLARED = ("--labels", "sentiment=positive,negative")


FRAME = reviews(80, seed=0).assign(stars=[i % 50 / 10 for i in range(80)])
FRAME.loc[6, "sentiment"] = RARE


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without_downloads(monkeypatch)
    FRAME.to_csv("t.csv", index=False)
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


@pytest.mark.parametrize(("command", "more"), [("generate", QUICK), ("plan", STEPS)])
def test_a_rare_value_stops_before_anything_is_written(place, run, command, more):
    ended = run(command, *more)
    assert ended.code == 2 and ended.err.count("\n") == 1 and ended.out == ""
    assert "(row 8)" in ended.err and RARE not in ended.err and "--merge-labels" in ended.err
    assert "--labels sentiment=negative,positive" in ended.err and "--drop-undeclared" in ended.err
    assert [path.name for path in place.iterdir()] == ["t.csv"]


STARS = ("--text", "text", "--attribute", "stars")
EVALUATE = "evaluate run --train t.csv --test test.csv --classifier tfidf --quiet"
AUDIT = "audit run --members t.csv --non-members test.csv --rows 12 --quiet"
# columns, options, records, whose the values are, and what measures the twin
WAYS = {
    "merged": (COLUMNS, ("--merge-labels",), 80, "the table, rare spellings being mer", EVALUATE),
    "declared": (COLUMNS, (*DECLARED, "--drop-undeclared"), 79, "'sentiment', declared by", None),
    "bins": (STARS, ("--bins", "stars=0,2,5"), 80, "'stars', declared by the owner", AUDIT),
}


@pytest.mark.parametrize(
    ("columns", "more", "records", "whose", "measure"), WAYS.values(), ids=WAYS
)
def test_the_ways_on_keep_it_out_of_every_file(
    place, run, capsys, columns, more, records, whose, measure
):
    """Also out of `internal/`, and what measures the twin gives real rows the same labels."""
    ended = run("generate", *QUICK, *more, columns=columns)
    assert ended.code == 0, ended.err
    assert RARE not in ended.err + ended.out and not files_with(RARE, place)
    ledger = Ledger.load(Path("run", "model", LEDGER))
    assert verify("run").rows == 12 and ledger.records == records
    assert whose in " | ".join(ledger.public_inputs)
    assert whose in Path("run/share/README.md").read_text()
    FRAME.assign(text=FRAME.text + " It was late.").to_csv("test.csv")
    ended = run_twinset(capsys, *(measure or "verify run").split())
    assert ended.code == 0, ended.err
    assert not files_with(RARE, Path("run"))


def test_without_the_check_it_reaches_the_card(place, run, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(
        "twinset.table.labels.public_labels",
        lambda column, rules, notes: replace(column, whose=TABLE),
    )
    assert run("generate", *QUICK).code == 0
    assert {"run/share/README.md", f"run/model/{DESCRIPTION}"} <= {*files_with(RARE, place)}
