"""Small inputs that failed once, each with its right outcome. They lie beside the checkout."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.commands import ROOT, call, run_python
from tests.helpers.evaluated import quickly, without_downloads
from twinset import Twinset
from twinset.table.read import read_frame

CASES = ROOT.parent / "shared" / "cases"
FEW = ("--steps", "0", "--max-tokens", "16", "--teacher-share", "0", "--marginal-share", "0")
PROMPT = ("--prompt", "Note, {label}:")
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not in this checkout")


@pytest.fixture
def case(request, tmp_path, monkeypatch):
    """A copy of a case's folder, as the working folder."""
    shutil.copytree(CASES / request.param, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def generate(base, file, *more):
    made = ("--base-model", base, "--rows-per-label", "4", "--run", "r", "--output", "twin.csv")
    return call("generate", file, *made, *FEW, *PROMPT, "--overwrite", *more)


@pytest.mark.parametrize("case", ["01_signed_labels"], indirect=True)
def test_signed_labels_come_back_and_are_measured(tiny_base, case, monkeypatch):
    without_downloads(monkeypatch)
    quickly(monkeypatch)
    made = generate(tiny_base, "in.csv", "--hold-out", "0.4")
    assert made.code == 0, made.err
    assert pd.read_csv("twin.csv", dtype="str").label.value_counts().to_dict() == {
        "+1": 4,
        "-1": 4,
    }
    found = call("evaluate", "r", "--train", "in.csv", "--classifier", "tfidf", "--quiet")
    assert found.code == 0, found.err
    scores = json.loads(Path("r/internal/evaluation.json").read_text())["measured"]
    twin = [
        m["score"]["value"]
        for m in scores
        if m["score"]["name"] == "accuracy" and m["place"].get("rows") == "twin"
    ]
    assert twin and min(twin) > 0


@pytest.mark.parametrize("is_declared", [False, True], ids=["taken", "declared"])
@pytest.mark.parametrize("file", ["in", "icd", "exp", "bool", "float"])
@pytest.mark.parametrize("case", ["03_number_like_labels"], indirect=True)
def test_labels_that_look_like_numbers_keep_their_spelling(tiny_base, case, file, is_declared):
    spelt = set(pd.read_csv(f"{file}.csv", dtype="str").label)
    given = ("--labels", f"label={','.join(sorted(spelt))}") if is_declared else ()
    made = generate(tiny_base, f"{file}.csv", *given)
    assert made.code == 0, made.err
    assert set(pd.read_csv("twin.csv", dtype="str").label) == spelt


@pytest.mark.parametrize(
    ("case", "file", "row"),
    [
        ("04_lone_quotes", "in.tsv", "row 12"),
        ("06_text_after_quote", "in.tsv", "row"),
        ("06_text_after_quote", "esc.csv", "row"),
    ],
    indirect=["case"],
)
def test_stray_quotes_are_refused_with_their_row(tiny_base, case, file, row):
    made = generate(tiny_base, file, "--text", "text", "--attribute", "label")
    assert made.code == 2 and row in made.err and len(made.err.strip().splitlines()) == 1
    assert not Path("r").exists() and not Path("twin.csv").exists()


@pytest.mark.parametrize("case", ["09_no_tokenizer"], indirect=True)
def test_a_base_without_a_tokenizer_is_refused(case):
    made = call("plan", "in.csv", "--base-model", "./model-without-tokenizer")
    assert made.code == 2 and made.err.splitlines()[-1].startswith("error: ./model-without-tok")
    assert "no tokenizer" in made.err


@pytest.mark.parametrize(
    ("case", "source", "values"),
    [
        ("10_classlabel", "in", ["negative", "positive"]),
        ("11_float32", "in.parquet", [3.3, 4.1]),
    ],
    indirect=["case"],
)
def test_types_of_a_source_are_kept(tiny_base, case, source, values):
    assert run_python("mk.py").returncode == 0
    made = generate(tiny_base, source)
    assert made.code == 0, made.err
    assert sorted(set(read_frame("twin.csv").label)) == values
    declared = ",".join(map(str, values))
    made = generate(tiny_base, source, "--labels", f"label={declared}")
    assert made.code == 0, made.err


@pytest.mark.parametrize("case", ["12_surrogate"], indirect=True)
def test_half_an_emoji_is_replaced_and_counted(tiny_base, case):
    made = generate(tiny_base, "in.jsonl")
    assert made.code == 0 and "�" in made.err, made.err
    rows = [json.loads(line) for line in Path("in.jsonl").read_text().splitlines()]
    options = {"steps": 0, "max_tokens": 16, "teacher_share": 0, "marginal_share": 0}
    model = Twinset(epsilon=8, base_model=tiny_base, prompt="Note, {label}:", **options)
    model.fit([row["text"] for row in rows], [row["label"] for row in rows])
    assert len(model.sample(4)) == 4
