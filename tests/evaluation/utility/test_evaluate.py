"""`twinset evaluate`: against which tables, what may be published, and what is refused."""

import json
import re
import shutil

import pandas as pd
import pytest

from evaluation.evaluate import _write_files
from evaluation.findings import Findings
from evaluation.release import (
    BASELINE,
    PRIVATE_CLASSIFIER,
    REAL,
    REAL_SMALL,
    TWIN,
    TWIN_SMALL,
    Tables,
    Twin,
    forms_of,
    labelled,
)
from evaluation.report.page import write_report
from evaluation.utility.classifiers import make_classifiers
from evaluation.utility.usefulness import Usefulness
from tests.helpers.commands import call
from tests.helpers.evaluated import reviews, small_run, small_world_in, twin_of
from tests.helpers.refusals import refusal
from twinset.models.base_model import load_base
from twinset.progress import Silent
from twinset.run.request import Source
from twinset.run.run_folder import SETTINGS
from twinset.table.read import read_frame

COLUMNS = ("--text", "text", "--attribute", "sentiment", "--attribute", "product")
TABLES = ("--train", "train.csv", "--test", "test.csv")
QUICKLY = (*TABLES, "--classifier", "tfidf", "--quiet")
FILE = (*COLUMNS, "--output", "found.json")


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    small_world_in(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def measured_run(tiny_base, tmp_path_factory):
    """Folder with a small run, evaluated once: its baseline is written, and need not be again."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        small_world_in(folder, patch)
        assert call("evaluate", small_run(tiny_base, *COLUMNS), *QUICKLY).code == 0
    return folder / "run"


@pytest.fixture
def run(measured_run, tmp_path):
    shutil.copytree(measured_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def twin(tmp_path):
    frame = reviews(40, seed=2)
    frame.to_csv("twin.csv", index=False)
    return frame


def found_in(run):
    return Findings.load(run / "internal" / "evaluation.json")


def test_a_run_is_measured_against_every_baseline(run):
    path = run / "internal" / "evaluation.json"
    stored, found = path.read_text(), Findings.load(path)
    for label in ("sentiment", "product", "sentiment × product"):
        for source in (REAL, REAL_SMALL, TWIN, BASELINE):
            assert found.find("accuracy", rows=source, label=label, classifier="tfidf").n == 40
            assert found.find("macro-F1", rows=source, label=label)
        for source in (TWIN, BASELINE):
            assert found.find("label fidelity", rows=source, label=label)
        assert found.find("accuracy", rows=REAL, label=label).value == 1.0
    assert found.find("F1", rows=TWIN, label="sentiment", value="positive")
    assert found.of("fidelity")
    assert found.about["epsilon"] <= 8 and len(found.about["twin_sha256"]) == 64
    assert not list((run / "share").glob("evaluation*"))
    found.save(path)  # findings survive their file
    assert path.read_text() == stored
    assert not re.search(r"number \d", stored)  # no text of any row


def test_dp_classifiers_further_epsilons_and_a_smaller_baseline(run, monkeypatch):
    rows = len(pd.read_csv(run / "share" / "twin.csv"))
    (run / "internal" / "no-private-data.parquet").unlink()
    monkeypatch.setattr("evaluation.evaluate.BASELINE_ROWS", rows // 2)
    more = ("--classifier", "minilm", "--sweep-epsilon", "4")
    assert call("evaluate", run, *QUICKLY, *more).code == 0
    found = found_in(run)
    assert found.find("accuracy", rows=PRIVATE_CLASSIFIER, label="product", classifier="minilm")
    assert not found.find("accuracy", rows=PRIVATE_CLASSIFIER, classifier="tfidf")
    assert any("spends the twin's whole ε on one target" in note for note in found.notes)
    curve = next(c for c in found.curves if c.name == "accuracy by epsilon: sentiment")
    assert [round(x) for x, *_ in curve.series["tfidf"]] == [4, 8]
    assert (found.about["rows"][TWIN], found.about["rows"][BASELINE]) == (rows, rows // 2)
    assert found.find("accuracy", rows=TWIN_SMALL, label="sentiment", classifier="tfidf").n == 40


def test_right_labels_score_like_real_rows_and_swapped_ones_do_not(tmp_path):
    """A twin of right labels scores like real rows, one of swapped labels the opposite."""
    swapped = {"positive": "negative", "negative": "positive"}
    twin = reviews(60, seed=2)[["text", "sentiment"]]
    twin.to_csv("twin.csv", index=False)
    twin.assign(sentiment=twin["sentiment"].map(swapped)).to_csv("wrong.csv", index=False)
    files = ("--baseline", "wrong.csv", "--output", "found.json")
    assert call("evaluate", "twin.csv", *QUICKLY, *files).code == 0
    found = Findings.load(tmp_path / "found.json")
    for name in ("accuracy", "label fidelity"):
        assert found.find(name, rows=TWIN).value == 1.0
        assert found.find(name, rows=BASELINE).value == 0.0
    assert found.about["epsilon"] is None
    assert (tmp_path / "found.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("rows", "spelled", "is_refused"),
    [
        (20, {"positive": "1", "negative": "0"}, True),  # no predicted label is a true one
        (20, {"positive": "negative", "negative": "positive"}, True),
        (4, {"positive": "1", "negative": "0"}, False),  # chance finds none of four, now and then
        (20, {"positive": "positive", "negative": "0"}, False),
    ],
)
def test_a_classifier_that_is_never_right_is_a_fault_of_reading(rows, spelled, is_refused):
    train, twin, test = (reviews(n, seed=seed) for seed, n in enumerate((40, 40, rows)))
    twin["sentiment"] = twin["sentiment"].map(spelled)
    tables = Tables(train, test, twin, "text", ("sentiment",))
    measure = Usefulness(tables, make_classifiers(["tfidf"]), [0], Silent())
    if is_refused:
        said = refusal(list, measure.measured())
        assert f"none of {rows} rows has the sentiment" in said and "twin" in said
    else:
        assert any(m.place["rows"] == TWIN for m in measure.measured())


SHEET = {"split": "new", "encoding": None, "delimiter": None, "multiline": False}
LATIN = {"split": None, "encoding": "cp850", "delimiter": "~", "multiline": True}
AS_RUN = {
    "its sheet": ("t.xlsx", None, SHEET, {}, 80, None),
    "a sheet that is named": ("t.xlsx", None, {}, {"split": "new"}, 80, None),
    "another sheet": ("t.xlsx", None, SHEET, {"split": "old"}, 30, None),
    "the first sheet of others": ("t.xlsx", "t.xlsx", SHEET, {}, 80, 30),
    "its encoding and delimiter": ("t.csv", "t.csv", LATIN, {}, 40, 40),
    "a table without these": ("t.parquet", "t.csv", LATIN, {"delimiter": "~"}, 50, 40),
    "others without these": ("t.csv", "t.parquet", LATIN, {}, 40, 50),
    "none of these": ("t.csv", "t.xlsx", {}, {"encoding": "cp850", "delimiter": "~"}, 40, 30),
}


@pytest.fixture
def real_files():
    with pd.ExcelWriter("t.xlsx") as book:
        for name, rows in (("old", 30), ("new", 80)):
            reviews(rows, seed=rows).to_excel(book, sheet_name=name, index=False)
    reviews(40, seed=2).assign(at="é").to_csv("t.csv", sep="~", encoding="cp850", index=False)
    reviews(50, seed=3).to_parquet("t.parquet")


@pytest.mark.parametrize(
    ("data", "others", "reading", "given", "rows", "more"), AS_RUN.values(), ids=AS_RUN
)
def test_real_tables_are_read_as_the_run_read_its_own(
    real_files, data, others, reading, given, rows, more
):
    forms = forms_of(reading, data, others, **given)
    pairs = zip((data, others), forms, strict=True)
    assert [file and len(read_frame(file, **form)) for file, form in pairs] == [rows, more]


def test_options_that_suit_no_table_are_refused():
    for data, given in (("t.csv", {"split": "x"}), ("t.xlsx", {"encoding": "cp850"})):
        assert f"is for tables in another form than {data}" in refusal(forms_of, {}, data, **given)


def test_every_reader_of_real_rows_takes_the_sheet(real_files, run, twin, tiny_base, tmp_path):
    tables = ("--train", "t.xlsx", "--test", "test.csv", "--classifier", "tfidf", "--quiet")
    for more, rows in (((), 30), (("--split", "new"), 80)):
        assert call("evaluate", "twin.csv", *tables, *FILE, *more).code == 0
        found = Findings.load(tmp_path / "found.json")
        assert found.about["rows"][REAL] == rows
        assert any("read the first of 2 sheets" in n for n in found.notes) == (not more)
    # what a run was told, for its report and in Python
    settings = run / "internal" / SETTINGS
    told = json.loads(settings.read_text())
    settings.write_text(json.dumps(told | {"reading": told["reading"] | {"split": "new"}}))
    page = write_report(run, tmp_path / "t.xlsx").read_text("utf-8")
    assert "of 80 rows" in page
    model = twin_of(load_base(str(tiny_base)))
    frame = pd.DataFrame({"text": ["a", "b"], "mood": ["bad", "good"]})
    with pd.ExcelWriter("m.xlsx") as book:
        frame.to_excel(book, sheet_name="old", index=False)
        frame.assign(text=["right", "sheet"]).to_excel(book, sheet_name="new", index=False)
    given = {"twin": frame, "train": "m.xlsx", "test": frame}
    _write_files(tmp_path, model, Source("", split="new"), given, Silent())
    assert read_frame("train.parquet")["text"].tolist() == ["right", "sheet"]


def test_two_pairs_of_labels_are_two_classes():
    pairs = [("p", "q | r"), ("p | q", "r"), ("p,q", "r"), ("p", "q,r")]
    frame = pd.DataFrame(pairs, columns=["a", "b"]).assign(text="a b c")
    assert len(set(labelled(frame, "text", ["a", "b"])[1])) == len(pairs)
    assert labelled(frame, "text", ["a"])[1] == [a for a, _ in pairs]


def test_overlapping_rows_are_counted_and_left_out_on_request(twin, tmp_path):
    pd.concat([reviews(40, seed=1), reviews(80, seed=0).head(7)]).to_csv("test.csv", index=False)
    for more, rows in (((), 47), (("--exclude-overlap",), 40)):
        call("evaluate", "twin.csv", *QUICKLY, *FILE, *more)
        assert Findings.load(tmp_path / "found.json").about["rows"]["held out"] == rows


def test_only_what_read_no_private_row_is_publishable(run, tmp_path):
    """Without notes about private rows either."""
    pd.concat([reviews(40, seed=1), reviews(80, seed=0).head(7)]).to_csv("test.csv", index=False)
    shown = call("evaluate", run, *QUICKLY, "--publishable", "--json")
    assert shown.code == 0 and "rows" not in shown.err.replace(str(tmp_path), "")
    printed = json.loads(shown.out, parse_constant=pytest.fail)  # JSON has no infinity
    names = {m["score"]["name"] for m in printed["measured"]}
    assert "differentially private for each record" in printed["guarantee"]
    assert names and not names & {"accuracy", "macro-F1", "label fidelity"}
    assert "7 held-out rows are training rows too" in " ".join(found_in(run).notes)


def test_without_a_guarantee_of_whole_records_nothing_is_publishable(
    twin, tiny_base, tmp_path, monkeypatch
):
    """Masked texts were trained on without noise, so that the twin's own figures hang on them."""
    spans = ("--noise-policy", "selective", "--detector", "patterns", "--steps", "2")
    run = small_run(tiny_base, *COLUMNS, *spans)
    assert call("evaluate", run, *QUICKLY).code == 0
    assert not found_in(tmp_path / run).publishable()
    monkeypatch.setattr("evaluation.evaluate.evaluate", None)  # it is said before the work
    for given in ((run,), ("twin.csv", *COLUMNS)):
        shown = call("evaluate", *given, *QUICKLY, "--publishable")
        assert shown.code == 2
        assert "nothing measured on it may be published" in shown.err


def test_an_edited_twin_inherits_no_guarantee(run, tmp_path):
    """The negative control: the unedited one has it."""
    shutil.copytree(run / "share", tmp_path / "copy")
    path = tmp_path / "copy" / "twin.csv"
    assert Twin.read(path).epsilon is not None
    with open(path, "a") as file:
        file.write("pan,It was fine.,positive\n")
    ended = call("evaluate", path, *QUICKLY, *FILE)
    assert ended.code == 0, ended.err
    found = Findings.load(tmp_path / "found.json")
    assert found.about["epsilon"] is None and "another file" in found.about["guarantee"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("twin.csv", lambda f: f.assign(sentiment="mixed"), "labels that --train lacks"),
        ("test.csv", lambda f: pd.read_csv("train.csv"), "is the training table. Name"),
    ],
)
def test_tables_that_do_not_fit_are_refused(twin, name, change, message, tmp_path):
    change(pd.read_csv(name)).to_csv(name, index=False)
    ended = call("evaluate", "twin.csv", *QUICKLY, *FILE)
    assert ended.code == 2
    assert message in ended.err and ended.err.count("\n") == 1
    assert "number" not in ended.err  # no text of any row
    assert not (tmp_path / "found.json").exists()
