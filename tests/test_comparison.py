import io
import json
import random
import sys
from functools import partial

import pandas as pd
import pytest
from rich.console import Console

import evaluation.comparison
from evaluation import demo
from evaluation.comparison import coinciding_rows, compare, main
from evaluation.results import BASELINE, REAL, REAL_SMALL, SOURCES, TWIN
from evaluation.twins import read_twin, rows_per_label
from twinset.artefact import write_json
from twinset.config import SamplingConfig
from twinset.errors import InputError
from twinset.options import run_config
from twinset.records import records_from_frame

ROWS = 12
REDRAWS = 1000  # two of three rows of a random byte-level model hold a control character


def reviews(rows: int, seed: int) -> pd.DataFrame:
    rng = random.Random(seed)
    moods = {"positive": ["great", "good"], "negative": ["dull", "poor"]}
    table = []
    for number in range(rows):
        mood, product = list(moods)[number % 2], ["film", "pan"][number // 2 % 2]
        text = f"It was {rng.choice(moods[mood])}: the {product} number {rng.randrange(1000)}."
        table.append((number, product, text, mood))
    return pd.DataFrame(table, columns=["id", "product", "text", "sentiment"])


def config(base, **options):
    return run_config(
        {
            "base_model": str(base),
            "steps": 2,
            "batch_size": 8,
            "max_tokens": 8,
            "max_redraws": REDRAWS,
            **options,
        }
    )


def table_of(comparison):
    return {
        (r.score.name, r.source, r.target, r.classifier): r.score.value for r in comparison.results
    }


@pytest.fixture(scope="module")
def both_attributes(tiny_base):
    return compare(
        reviews(120, seed=0),
        reviews(40, seed=1),
        "text",
        ["sentiment", "product"],
        config(tiny_base),
        "Write a {sentiment} review about a {product}:",
        ROWS,
        classifiers=["tfidf"],
        data="toy reviews",
    )


def test_every_source_is_measured(both_attributes):
    assert both_attributes.targets == ["sentiment", "product", "sentiment × product"]
    for target in both_attributes.targets:
        for source in SOURCES:
            assert both_attributes.score("accuracy", source, target, "tfidf").n == 40
        for source in (TWIN, BASELINE):
            assert both_attributes.score("label fidelity", source, target, "tfidf").n == ROWS
        assert both_attributes.score("label fidelity", REAL, target, "tfidf") is None
        assert both_attributes.score("accuracy", REAL, target, "tfidf").value == 1.0


def test_sizes_privacy_and_phases(both_attributes):
    assert both_attributes.rows == {
        REAL: 120,
        REAL_SMALL: ROWS,
        TWIN: ROWS,
        BASELINE: ROWS,
        "held out": 40,
    }
    assert 0 < both_attributes.epsilon <= 8
    assert both_attributes.delta == 1e-5
    assert list(both_attributes.seconds) == ["fine-tuning", "sampling", "baseline", "classifiers"]
    assert both_attributes.commonest["sentiment"].value == 0.5


def test_written_forms(both_attributes, tmp_path):
    write_json(tmp_path / "results.json", both_attributes.to_dict())
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["epsilon"] == both_attributes.epsilon
    assert stored["config"]["training"]["steps"] == 2
    assert stored["seed"] == 0
    assert {"torch", "scikit-learn"} <= stored["versions"].keys()
    assert stored["machine"]["cores"] >= 1
    assert len(stored["results"]) == 3 * (4 + 2)

    markdown = both_attributes.as_markdown()
    assert markdown.count("\n| sentiment × product | ") == 4
    assert "ε = 8.00, δ = 1e-05" in markdown
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(both_attributes.as_table())
    assert "no private data" in console.export_text()


def test_tables_hold_no_text_of_any_row(both_attributes):
    written = json.dumps(both_attributes.to_dict()) + both_attributes.as_markdown()
    assert "the film number" not in written


def test_given_twin_and_baseline_spare_every_model(tmp_path):
    """A twin of right labels scores like the real rows, one of swapped labels the opposite."""
    train, heldout = reviews(80, seed=0), reviews(40, seed=1)
    twin = reviews(40, seed=2)[["text", "sentiment"]]
    swapped = {"positive": "negative", "negative": "positive"}
    twin.to_csv(tmp_path / "twin.csv", index=False)
    comparison = compare(
        train,
        heldout,
        "text",
        ["sentiment"],
        config("no-such-model"),
        "Write a {sentiment} review:",
        ROWS,
        twin=read_twin(tmp_path / "twin.csv"),
        baseline=twin.assign(sentiment=twin["sentiment"].map(swapped)),
        classifiers=["tfidf"],
    )
    scores = table_of(comparison)
    assert scores["accuracy", TWIN, "sentiment", "tfidf"] == 1.0
    assert scores["label fidelity", TWIN, "sentiment", "tfidf"] == 1.0
    assert scores["accuracy", BASELINE, "sentiment", "tfidf"] == 0.0
    assert scores["label fidelity", BASELINE, "sentiment", "tfidf"] == 0.0
    assert comparison.epsilon is None
    assert "ε = none" in comparison.as_markdown()


def test_no_privacy_is_said(tiny_base):
    comparison = compare(
        reviews(40, seed=0),
        reviews(20, seed=1),
        "text",
        ["sentiment"],
        config(tiny_base, epsilon=None, steps=1),
        "Write a {sentiment} review:",
        4,
        classifiers=["tfidf"],
    )
    assert comparison.epsilon is None
    assert "No privacy guarantee" in comparison.guarantee


def test_coinciding_rows():
    train = ["Good film!", "SO-SO", "x"]
    assert coinciding_rows(train, ["good  film", "so so", "good", "bad"]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda twin: twin.assign(sentiment="mixed"), "labels that the training table lacks"),
        (lambda twin: twin.drop(columns="sentiment"), "no column 'sentiment'"),
    ],
)
def test_a_twin_of_another_table_is_refused(change, message):
    schema = records_from_frame(reviews(20, seed=0), "text", ["sentiment"])[0].schema
    with pytest.raises(InputError, match=message):
        rows_per_label(change(reviews(4, seed=0)), schema)


def test_a_held_out_table_without_the_column_is_refused_before_any_model():
    heldout = reviews(8, seed=1).drop(columns="sentiment")
    with pytest.raises(InputError, match="held-out table: no column 'sentiment'"):
        compare(
            reviews(20, seed=0), heldout, "text", ["sentiment"], config("no-such-model"), None, 4
        )


def test_a_damaged_privacy_file_is_refused(tmp_path):
    reviews(4, seed=0).to_csv(tmp_path / "twin.csv", index=False)
    (tmp_path / "privacy.json").write_text("{}")
    with pytest.raises(InputError, match="holds no ledger"):
        read_twin(tmp_path / "twin.csv")


PATTERN = "Write a {sentiment} review:"


@pytest.fixture
def command_line(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in a folder with tables: exit code and output."""
    for name, seed in (("train", 0), ("test", 1)):
        reviews(60, seed).to_csv(tmp_path / f"{name}.csv", index=False)
    given = ["train.csv", "--test", "test.csv", "--text", "text", "--attribute", "sentiment"]
    given += ["--prompt", PATTERN, "--rows", "8", "--classifier", "tfidf"]
    given += ["--steps", "2", "--batch-size", "8", "--max-tokens", "8"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        evaluation.comparison, "run_config", lambda o: run_config({"max_redraws": REDRAWS, **o})
    )

    def run(base, *more):
        monkeypatch.setattr(sys, "argv", ["", *given, "--base-model", str(base), *more])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return ended.value.code, shown.out + shown.err

    return run


def test_command_line_and_its_resumption(tiny_base, tmp_path, command_line):
    """A second call with the first one's twin and baseline finds the same without any model."""
    code, shown = command_line(tiny_base, "--output", "first.json", "--run", "run")
    assert code == 0
    assert "no private data" in shown
    stored = json.loads((tmp_path / "first.json").read_text())
    assert stored["command"].startswith("python -m evaluation.comparison train.csv --test test.csv")
    assert stored["rows"][TWIN] == 8
    assert {"fine-tuning", "baseline", "classifiers"} <= stored["seconds"].keys()
    assert (tmp_path / "first.md").read_text().count("| sentiment |") == 4
    assert (tmp_path / "run" / "share" / "privacy.json").is_file()

    kept = ["--twin", "run/share/twin.parquet", "--baseline", "first.baseline.parquet"]
    assert command_line("no-such-model", "--output", "again.json", *kept)[0] == 0
    again = json.loads((tmp_path / "again.json").read_text())
    for same in ("results", "epsilon", "delta", "guarantee", "rows", "commonest"):
        assert again[same] == stored[same]
    assert list(again["seconds"]) == ["classifiers"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--output", "no/such/folder/x.json"), "its folder does not exist"),
        (("--output", "x.json", "--epsilon", "0"), "--epsilon must be a number above 0"),
        (("--output", "x.json", "--no-privacy", "--epsilon", "1"), "contradict"),
        (("--output", "x.json", "--twin", "absent.parquet"), "no such file"),
        (("--output", "x.json", "--classifier", "bert"), "no classifier 'bert'"),
        (("--output", "x.json", "--attribute", "mood"), "no column 'mood'"),
    ],
)
def test_bad_command_lines_end_with_one_line(more, message, tmp_path, command_line):
    code, shown = command_line("no-such-model", *more)
    assert code == 2
    assert message in shown
    assert shown.startswith("error: ") and shown.count("\n") == 1
    assert not (tmp_path / "x.json").exists()


@pytest.mark.slow
def test_demo(tiny_base, tmp_path, monkeypatch):
    """The demo's whole story, with a tiny model and little of everything."""
    little = {
        "STEPS": 2,
        "MAX_TOKENS": 8,
        "BATCH_SIZE": 16,
        "ROWS_PER_LABEL": 12,
        "REAL_ROWS": 100,
        "HELD_OUT_ROWS": 100,
    }
    for name, value in little.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "SamplingConfig", partial(SamplingConfig, max_redraws=REDRAWS))
    report = demo.run_demo(tmp_path / "run", base_model=str(tiny_base))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report)
    shown = console.export_text()
    for expected in ("8.00", "1e-05", "real", "no private data", "share", "internal"):
        assert expected in shown
    assert len(report.samples) == 3
    assert (tmp_path / "run" / "internal" / "evaluation.json").is_file()
    assert pd.read_parquet(tmp_path / "run" / "share" / "twin.parquet").shape == (24, 2)
