import json
import re
import shutil

import pandas as pd
import pytest

import cli
from evaluation.findings import Findings
from evaluation.release import (
    BASELINE,
    PRIVATE_CLASSIFIER,
    REAL,
    REAL_SMALL,
    TWIN,
    TWIN_SMALL,
    FinishedRun,
    Twin,
    rows_per_label,
)
from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import OPTIONS, reviews, small_run, small_world_in
from twinset.errors import InputError
from twinset.table.records import records_from_frame

COLUMNS = ("--text", "text", "--attribute", "sentiment", "--attribute", "product")
TABLES = ("--train", "train.csv", "--test", "test.csv")
QUICKLY = (*TABLES, "--classifier", "tfidf", "--quiet")


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    small_world_in(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def measured_run(tiny_base, tmp_path_factory):
    """Folder with a small run, evaluated once: its baseline is written, and need not be again."""
    folder = tmp_path_factory.mktemp("measured")
    base = ("--base-model", str(tiny_base), "--run", "run", "--rows", "40")
    with pytest.MonkeyPatch.context() as patch:
        small_world_in(folder, patch)
        assert cli.main(["generate", "train.csv", *COLUMNS, *base, *OPTIONS]) == 0
        assert cli.main(["evaluate", "run", *QUICKLY]) == 0
    return folder / "run"


@pytest.fixture
def run(measured_run, tmp_path):
    shutil.copytree(measured_run, tmp_path / "run")
    return "run"


def loaded(tmp_path):
    return Findings.load(tmp_path / "run" / "internal" / "evaluation.json")


def test_a_run_is_measured_against_every_baseline(run, tmp_path):
    path = tmp_path / "run" / "internal" / "evaluation.json"
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
    assert "epsilon" in found.about and found.about["epsilon"] <= 8
    assert len(found.about["twin_sha256"]) == 64
    assert {c.name for c in found.curves} >= {"accuracy by rows of the twin: sentiment"}
    assert not list((tmp_path / "run" / "share").glob("evaluation*"))
    found.save(path)  # findings survive their file
    assert path.read_text() == stored
    assert not re.search(r"number \d", stored)  # no text of any row


def test_a_dp_classifier_learns_from_the_real_rows_at_the_twins_budget(run, tmp_path, capsys):
    assert run_twinset(capsys, "evaluate", run, *QUICKLY, "--classifier", "minilm").code == 0
    found = loaded(tmp_path)
    assert found.find("accuracy", rows=PRIVATE_CLASSIFIER, label="product", classifier="minilm")
    assert not found.find("accuracy", rows=PRIVATE_CLASSIFIER, classifier="tfidf")
    assert any("spends the twin's whole ε on one target" in note for note in found.notes)


def test_a_baseline_of_fewer_rows_is_beside_as_many_of_the_twin(run, tmp_path, capsys, monkeypatch):
    twin = len(pd.read_csv(tmp_path / "run" / "share" / "twin.csv"))
    (tmp_path / "run" / "internal" / "no-private-data.parquet").unlink()
    monkeypatch.setattr("evaluation.evaluate.BASELINE_ROWS", twin // 2)
    assert run_twinset(capsys, "evaluate", run, *QUICKLY).code == 0
    found = loaded(tmp_path)
    assert found.about["rows"] == {
        **found.about["rows"],
        TWIN: twin,
        BASELINE: twin // 2,
    }
    assert found.find("accuracy", rows=TWIN_SMALL, label="sentiment", classifier="tfidf").n == 40
    kept = tmp_path / "run" / "internal" / "no-private-data.parquet"
    half = pd.read_parquet(kept)["sentiment"].value_counts()
    whole = pd.read_csv(tmp_path / "run" / "share" / "twin.csv")["sentiment"].value_counts()
    assert (half - whole / 2).abs().max() <= 1


def test_a_baseline_that_is_there_is_kept(run, tmp_path, capsys, monkeypatch):
    """Also one of as many rows as the twin has, as an earlier version made it."""
    kept = tmp_path / "run" / "internal" / "no-private-data.parquet"
    written = kept.stat().st_mtime_ns
    for most in (1000, 3):
        monkeypatch.setattr("evaluation.evaluate.BASELINE_ROWS", most)
        assert run_twinset(capsys, "evaluate", run, *QUICKLY).code == 0
        assert kept.stat().st_mtime_ns == written


def test_right_and_swapped_labels_are_told_apart(tmp_path, capsys):
    """A twin of right labels scores like real rows, one of swapped labels the opposite."""
    swapped = {"positive": "negative", "negative": "positive"}
    twin = reviews(60, seed=2)[["text", "sentiment"]]
    twin.to_csv("twin.csv", index=False)
    twin.assign(sentiment=twin["sentiment"].map(swapped)).to_csv("wrong.csv", index=False)
    files = ("--baseline", "wrong.csv", "--output", "found.json")
    assert run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *files).code == 0
    found = Findings.load(tmp_path / "found.json")
    for name in ("accuracy", "label fidelity"):
        assert found.find(name, rows=TWIN).value == 1.0
        assert found.find(name, rows=BASELINE).value == 0.0
    assert found.about["epsilon"] is None
    assert (tmp_path / "found.json").stat().st_mode & 0o077 == 0


def test_only_what_read_no_private_row_is_publishable(run, capsys):
    shown = run_twinset(capsys, "evaluate", run, *QUICKLY, "--publishable", "--json")
    printed = json.loads(shown.out, parse_constant=pytest.fail)  # JSON has no infinity
    names = {m["score"]["name"] for m in printed["measured"]}
    assert "differentially private for each record" in printed["guarantee"]
    assert names and not names & {"accuracy", "macro-F1", "label fidelity"}


def test_without_a_guarantee_nothing_is_publishable(capsys, monkeypatch):
    monkeypatch.setattr("evaluation.evaluate.evaluate", None)  # it is said before the work
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    shown = run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *COLUMNS, "--publishable")
    assert shown.code == 2
    assert "nothing measured of it may be published" in shown.err


def test_of_flagged_spans_alone_nothing_is_publishable(tiny_base, capsys, tmp_path):
    """Masked texts were trained on without noise, so that the twin's own figures hang on them."""
    spans = ("--noise-policy", "selective", "--detector", "patterns", "--steps", "2")
    run = small_run(capsys, tiny_base, *COLUMNS, *spans)
    shown = run_twinset(capsys, "evaluate", run, *QUICKLY, "--publishable")
    assert shown.code == 2
    assert "nothing measured of it may be published" in shown.err
    assert run_twinset(capsys, "evaluate", run, *QUICKLY).code == 0
    assert not loaded(tmp_path).publishable()


def test_what_may_be_published_comes_without_notes_about_private_rows(run, tmp_path, capsys):
    train, test = reviews(80, seed=0), reviews(40, seed=1)
    pd.concat([test, train.head(7)]).to_csv("test.csv", index=False)
    shown = run_twinset(capsys, "evaluate", run, *QUICKLY, "--publishable")
    assert shown.code == 0 and "rows" not in shown.err.replace(str(tmp_path), "")
    usual = run_twinset(capsys, "evaluate", run, *QUICKLY)
    assert f"{usual.out}{usual.err}".count("7 held-out rows are training rows too") == 1


def test_training_rows_alone_test_nothing(capsys):
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    more = (*COLUMNS, "--output", "found.json", "--train", "test.csv")
    shown = run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *more)
    assert shown.code == 2 and "is the training table itself" in shown.err


def test_overlapping_rows_are_counted_and_left_out_on_request(tmp_path, capsys):
    train, test = reviews(80, seed=0), reviews(40, seed=1)
    pd.concat([test, train.head(7)]).to_csv("test.csv", index=False)
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    more = (*COLUMNS, "--output", "found.json")
    run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *more)
    found = Findings.load(tmp_path / "found.json")
    assert "7 held-out rows are training rows too" in found.notes[0]
    assert found.about["rows"]["held out"] == 47
    again = run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *more, "--exclude-overlap")
    assert Findings.load(tmp_path / "found.json").about["rows"]["held out"] == 40
    before = tmp_path / "found.earlier-1.json"
    assert Findings.load(before) == found and before.stat().st_mode & 0o777 == 0o600
    assert before.name in again.err


def test_few_rows_and_untested_labels_are_said(tmp_path, capsys):
    test = reviews(40, seed=1)
    test[test["product"] == "film"].to_csv("test.csv", index=False)
    reviews(5, seed=2).to_csv("twin.csv", index=False)
    more = (*COLUMNS, "--output", "found.json")
    assert run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *more).code == 0
    notes = " ".join(Findings.load(tmp_path / "found.json").notes)
    assert "product: 1 of 2 labels have no row in `test`" in notes and "'pan'" in notes
    assert "twin has 5 rows only" in notes


def test_a_twin_of_one_label_teaches_that_label_and_it_is_said(tmp_path, capsys):
    twin = reviews(60, seed=2)
    twin[twin["sentiment"] == "positive"].to_csv("twin.csv", index=False)
    more = (*COLUMNS[:4], "--output", "found.json")
    assert run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *more).code == 0
    found = Findings.load(tmp_path / "found.json")
    commonest = found.find("accuracy", rows="the commonest label", label="sentiment")
    assert found.find("accuracy", rows=TWIN).value == pytest.approx(commonest.value, abs=0.1)
    assert found.find("accuracy", rows=REAL).value == 1.0
    assert found.find("label fidelity", rows=TWIN)
    assert any("rows of one 'sentiment' only" in note for note in found.notes)


def rename(frame):
    return frame.rename(columns={"sentiment": "mood"})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("test.csv", rename, "no column 'sentiment'"),
        ("train.csv", rename, "no column 'sentiment'"),
        ("twin.csv", lambda f: f.assign(sentiment="mixed"), "labels that --train lacks"),
        ("test.csv", lambda f: f.assign(sentiment="mixed"), "labels that --train lacks"),
        ("test.csv", lambda f: f.head(0), "no rows"),
        ("test.csv", lambda f: f.assign(text=None), "--test: column 'text' holds no text"),
        ("test.csv", lambda f: f.assign(sentiment=None), "no row has both"),
    ],
)
def test_tables_that_do_not_fit_are_refused(name, change, message, tmp_path, capsys):
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    change(pd.read_csv(name)).to_csv(name, index=False)
    ended = run_twinset(
        capsys, "evaluate", "twin.csv", *QUICKLY, *COLUMNS, "--output", "found.json"
    )
    assert ended.code == 2
    assert message in ended.err and ended.err.count("\n") == 1
    assert "number" not in ended.err  # no text of any row
    assert not (tmp_path / "found.json").exists()


def test_no_other_file_is_overwritten(tmp_path, capsys):
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    before = (tmp_path / "train.csv").read_bytes()
    more = (*COLUMNS, "--output", "train.csv")
    ended = run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *more)
    assert ended.code == 2 and "holds no findings" in ended.err
    assert (tmp_path / "train.csv").read_bytes() == before


def test_an_edited_twin_inherits_no_guarantee(run, tmp_path, capsys):
    """The negative control: the unedited one has it."""
    shutil.copytree(tmp_path / "run" / "share", tmp_path / "copy")
    more = (*QUICKLY, *COLUMNS, "--output", "found.json")
    assert run_twinset(capsys, "evaluate", "copy/twin.csv", *more).code == 0
    assert Findings.load(tmp_path / "found.json").about["epsilon"] is not None
    with open(tmp_path / "copy" / "twin.csv", "a") as file:
        file.write("pan,It was fine.,positive\n")
    ended = run_twinset(capsys, "evaluate", "copy/twin.csv", *more)
    assert ended.code == 0, ended.err
    found = Findings.load(tmp_path / "found.json")
    assert found.about["epsilon"] is None and "another file" in found.about["guarantee"]


def test_names_are_no_markup(tmp_path, capsys):
    for name in ("train.csv", "test.csv"):
        pd.read_csv(name).rename(columns={"sentiment": "[/b]"}).to_csv(name, index=False)
    reviews(40, seed=2).rename(columns={"sentiment": "[/b]"}).to_csv("twin.csv", index=False)
    columns = ("--text", "text", "--attribute", "[/b]", "--output", "found.json")
    ended = run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *columns)
    assert ended.code == 0 and "[/b]" in ended.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--output", "no/such/x.json"), "its folder does not exist"),
        (("--output", "share/x.json"), "share/ is for others"),
        (("--classifier", "bert"), "no classifier 'bert'"),
        (("--sweep-epsilon", "1,none"), "numbers from 0.001 to"),
        (("--sweep-epsilon", "1,2"), "name the run with --run"),
        (("--run", "nowhere"), "no complete run folder"),
    ],
)
def test_bad_command_lines_end_with_one_line(more, message, tmp_path, capsys):
    reviews(40, seed=2).to_csv("twin.csv", index=False)
    (tmp_path / "share").mkdir()
    ended = run_twinset(capsys, "evaluate", "twin.csv", *QUICKLY, *COLUMNS, *more)
    assert ended.code == 2
    assert message in ended.err and ended.err.count("\n") == 1


def test_a_runs_options_have_the_steps_that_its_time_chose_and_not_its_device(run, tmp_path):
    path = tmp_path / "run" / "internal" / "config.json"
    stored = json.loads(path.read_text())
    stored["training"] |= {"steps": None, "batch_size": None}
    stored["speed"]["device"] = "cuda"  # of a machine that another one may look at
    path.write_text(json.dumps(stored))
    config = FinishedRun.read(tmp_path / "run").config
    training = config.training
    assert config.speed.device == "auto"
    plan = stored["plan"]
    assert (training.steps, training.batch_size) == (plan["steps"], plan["batch_size"])


def test_an_epsilon_curve_trains_further_twins(run, tmp_path, capsys):
    assert run_twinset(capsys, "evaluate", run, *QUICKLY, "--sweep-epsilon", "4").code == 0
    found = loaded(tmp_path)
    curve = next(c for c in found.curves if c.name == "accuracy by epsilon: sentiment")
    assert [round(x) for x, *_ in curve.series["tfidf"]] == [4, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda twin: twin.assign(sentiment="mixed"), "labels that the training table lacks"),
        (lambda twin: twin.drop(columns="sentiment"), "no column 'sentiment'"),
    ],
)
def test_a_baseline_is_made_for_the_tables_own_labels_only(change, message):
    schema = records_from_frame(reviews(20, seed=0), "text", ["sentiment"])[0].schema
    with pytest.raises(InputError, match=message):
        rows_per_label(change(reviews(4, seed=0)), schema)


def test_a_damaged_privacy_file_is_refused(tmp_path):
    (tmp_path / "privacy.json").write_text("{}")
    with pytest.raises(InputError, match="holds no ledger"):
        Twin.read(tmp_path / "train.csv")
