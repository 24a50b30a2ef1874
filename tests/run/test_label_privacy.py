"""A label value of few records reaches no file, whatever the options; and whose values they are."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.commands import call
from tests.helpers.evaluated import reviews, without_downloads
from twinset import generate
from twinset.config.options import run_config
from twinset.privacy.mechanism.gate import Noisy
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.share import LEDGER
from twinset.release.verify import verify
from twinset.run.generate import finetune, prepare
from twinset.run.request import Source
from twinset.sampling.twin_model import DESCRIPTION

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
def run(tiny_base):
    """Run a command that takes the table, and return how it ended."""
    return lambda command, *more, columns=COLUMNS: call(
        command, "t.csv", *columns, "--base-model", tiny_base, *more
    )


def files_with(text: str, folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "t.csv"]
    return [str(path.relative_to(folder)) for path in files if text.encode() in path.read_bytes()]


STARS = FRAME.assign(sentiment=[float(i % 2) for i in range(80)])


@pytest.mark.parametrize(
    "tables",
    [
        # of one record, another spelling of a value that is selected, or a value that is not
        [STARS.assign(sentiment=[first, *STARS.sentiment[1:]]) for first in (0.0, -0.0)],
        [STARS.assign(sentiment=pd.Categorical([2.5, *STARS.sentiment[1:]])),
         STARS.assign(sentiment=pd.Categorical([7, *STARS.sentiment[1:].astype(int)]))],
    ],
    ids=["spelling", "category"],
)  # fmt: skip
def test_the_release_does_not_depend_on_a_left_out_value(place, tiny_base, tables):
    """Of two tables in memory with one odd record all that is released is the same.

    `test_replay` compares tables in files.
    """
    made = []
    for number, table in enumerate(tables):
        options = {"insecure_noise_seed": 3, "steps": 2}
        options |= {"base_model": str(tiny_base), "batch_size": 40, "max_tokens": 12}
        columns = {"text": "text", "attributes": "sentiment", "rows": 12}
        generate(table, run=f"run{number}", progress=False, **columns, **options)
        folders = (Path(f"run{number}", part) for part in ("share", "model"))
        made.append({p.name: p.read_bytes() for folder in folders for p in folder.iterdir()})
    assert made[0] == made[1] and len(made[0]) > 8


def test_a_plan_shows_its_owner_what_may_be_selected(place, run):
    ended = run("plan", *STEPS)
    assert ended.code == 0 and RARE not in ended.err + ended.out
    assert "14 records or more probably will: 'negative', 'positive'" in ended.err
    assert "The other 1 probably will not" in ended.err
    assert "label values           held by 14 records or more, ± 2.5" in ended.out
    assert [path.name for path in place.iterdir()] == ["t.csv"]
    FRAME.drop(6).to_csv("t.csv", index=False)  # and of no other value nothing is said
    assert "will: 'negative', 'positive'. --labels declares values." in run("plan", *STEPS).err


def test_a_run_that_spent_nothing_makes_no_twin(place, tiny_base):
    """A run whose values follow from exact counts is refused by its ledger."""
    source = Source(FRAME, "text", ("sentiment",))
    config = run_config({"base_model": str(tiny_base), "steps": 0})
    with pytest.raises(RuntimeError, match="exact counts"):
        finetune(prepare(source, config, spends=False))


STARS = ("--text", "text", "--attribute", "stars")
EVALUATE = "evaluate run --train t.csv --test test.csv --classifier tfidf --quiet"
AUDIT = "audit run --members t.csv --non-members test.csv --rows 12 --quiet"
# columns, options, records, whose the values are, and what measures the twin
WAYS = {
    "merged": (COLUMNS, ("--merge-labels",), 80, "values of 1 column", EVALUATE),
    "selected": (COLUMNS, (), 80, "values of 1 column", EVALUATE),
    "declared": (COLUMNS, (*DECLARED, "--drop-undeclared"), 79, "'sentiment', declared by", None),
    "bins": (STARS, ("--bins", "stars=0,2,5"), 80, "'stars', declared by the owner", AUDIT),
}


@pytest.mark.parametrize(
    ("columns", "more", "records", "whose", "measure"), WAYS.values(), ids=WAYS
)
def test_the_ways_on_keep_it_out_of_every_file(place, run, columns, more, records, whose, measure):
    """Also out of `internal/`, and what measures the twin gives real rows the same labels."""
    ended = run("generate", *QUICK, *more, columns=columns)
    assert ended.code == 0, ended.err
    assert RARE not in ended.err + ended.out and not files_with(RARE, place)
    ledger = Ledger.load(Path("run", "model", LEDGER))
    assert verify("run").rows == 12 and ledger.records == records
    assert whose in guarantee(ledger).sentence
    assert whose in Path("run/share/README.md").read_text()
    FRAME.assign(text=FRAME.text + " It was late.").to_csv("test.csv")
    ended = call(*(measure or "verify run").split())
    assert ended.code == 0, ended.err
    assert not files_with(RARE, Path("run"))


def test_without_the_threshold_it_reaches_the_card(place, run, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(
        "twinset.run.releases.select_label_values",
        lambda columns, plan, *_: Noisy([dict(Counter(each)) for each in columns], plan),
    )
    assert run("generate", *QUICK).code == 0
    assert {"run/share/README.md", f"run/model/{DESCRIPTION}"} <= {*files_with(RARE, place)}
