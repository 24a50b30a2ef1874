"""The page of toolkits: two made-up toolkits end to end, and the writers that need no download."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from evaluation.bench.toolkits import __main__ as toolkits
from evaluation.bench.toolkits import measuring, plan
from evaluation.bench.toolkits.environments import environment
from evaluation.bench.toolkits.plan import PROJECT, Stated
from evaluation.bench.toolkits.running import HERE, Job
from evaluation.bench.toolkits.writers import control_codes, twinset_rows
from tests.helpers.evaluated import reviews, without_downloads
from twinset.errors import InputError

NAME = "blitzer_dvd_kitchen"
TOML = """
[sizes.tiny]
epsilons = [8.0]
seeds = [0]
rows = 30
tokens = 40
train_rows = 80
test_rows = 40
dev_rows = 20
students = ["tfidf"]
[tables.blitzer_dvd_kitchen]
text = "text"
attributes = ["sentiment", "product"]
prompt = "Write a {sentiment} review about a {product} product:"
[environments]
[[toolkits]]
name = "copier"
about = "copies"
writer = "copier"
options = { share = 1.0 }
sampling = "none"
unit = "none"
uncovered = "everything"
[[toolkits]]
name = "shuffler"
about = "copies texts behind any label"
writer = "shuffler"
ours = true
[[toolkits]]
name = "broken"
about = "quotes a row in its error"
writer = "broken"
[[toolkits]]
name = "giant"
about = "too large"
reason = "It wants a large GPU."
"""
WRITERS = {
    "copier": """
import pandas as pd
def write_rows(job):
    open(job["options"].get("log", "/dev/null"), "a").write("run\\n")
    table = pd.read_parquet(job["table"]).head(job["rows"])
    return table, {"epsilon": job["epsilon"] / 2, "settings": job["options"]}
""",
    "shuffler": """
import pandas as pd
def write_rows(job):
    table = pd.read_parquet(job["table"]).head(job["rows"])
    for name in job["attributes"]:
        table[name] = table[name].sample(frac=1, random_state=0).tolist()
    table.loc[0, job["attributes"][0]] = "no label of this table"
    return table, {"epsilon": job["epsilon"]}
""",
    "broken": """
import pandas as pd
def write_rows(job):
    raise ValueError(pd.read_parquet(job["table"])[job["text"]][0])
""",
}


@pytest.fixture
def run_toolkits(tmp_path, tiny_base, monkeypatch):
    """Return a function that runs the command with made-up toolkits, and returns its results."""
    folder = tmp_path / "tables" / NAME
    folder.mkdir(parents=True)
    for part, number, seed in (("train", 100, 0), ("test", 40, 1)):
        reviews(number, seed).to_csv(folder / f"{part}.csv.gz", index=False)
    (tmp_path / "writers").mkdir()
    for name, source in WRITERS.items():
        (tmp_path / "writers" / f"{name}.py").write_text(source)
    (tmp_path / "toolkits.toml").write_text(TOML.replace("share = 1.0", f'log = "{tmp_path}/log"'))
    without_downloads(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "STATED", tmp_path / "toolkits.toml")
    monkeypatch.setattr(measuring, "HERE", tmp_path)
    monkeypatch.setattr(measuring, "asset_path", lambda name, say: Path("none"))
    fixed = {"size": "tiny", "base_model": str(tiny_base), "tables": Path("tables")}

    def run(**more):
        toolkits.main(**fixed, output=Path("out"), only=[NAME], **more)
        return json.loads(Path("out/toolkits.json").read_text())

    return run


def test_toolkits_are_measured_once_and_one_that_fails_is_named(run_toolkits, capsys):
    found = run_toolkits(toolkit=["copier"])
    assert [row["key"][2] for row in found["rows"]] == ["real rows", "copier"]
    found = run_toolkits()
    rows = {row["key"][2]: row for row in found["rows"]}
    assert Path("log").read_text() == "run\n"  # its row of before was taken
    assert rows["copier"]["epsilon"] == 4.0 and rows["copier"]["usable"] == 30
    assert rows["shuffler"]["usable"] == 29
    assert 0 < rows["copier"]["minutes"] < 1 and rows["copier"]["peak GiB"] > 0.05
    assert rows["broken"]["failed"] == "its process ended with 1: ValueError"
    target = "sentiment × product"
    accuracy = {name: rows[name]["accuracy"][target]["tfidf"] for name in ("copier", "shuffler")}
    assert accuracy["copier"] > accuracy["shuffler"] + 0.2

    page = Path("out/toolkits.md").read_text()
    best = f"{accuracy['copier']:.3f}, twinset's best (shuffler) {accuracy['shuffler']:.3f}"
    assert f"ε = 8, student tfidf: **copier** {best}" in page
    assert f"- {NAME}, broken, ε 8: its process ended with 1: ValueError" in page
    assert "- giant: too large. It wants a large GPU." in page
    assert "It was" not in page + json.dumps(found)  # no text of the table
    assert Path("out/toolkits.png").stat().st_size > 1000

    changed = plan.STATED.read_text().replace("{ log", "{ other = 1, log")
    plan.STATED.write_text(changed)
    run_toolkits(toolkit=["copier"])
    assert Path("log").read_text() == "run\nrun\n"


def test_private_texts_are_cut_for_all(run_toolkits, tokenizer):
    run_toolkits(toolkit=["copier"])
    table = pd.read_parquet(f"out/{NAME}/private-40.parquet")
    assert len(table) == 80
    assert max(len(ids) for ids in tokenizer(table["text"].tolist()).input_ids) <= 40


@pytest.mark.parametrize("wrong", [{"toolkit": ["giant"]}, {"epsilon": [2.0]}, {"seed": [9]}])
def test_what_the_page_does_not_hold_is_refused(run_toolkits, wrong):
    with pytest.raises(InputError, match="is none of"):
        run_toolkits(**wrong)
    assert not Path("out").exists()


def test_every_toolkit_says_what_its_epsilon_covers():
    for size in ("tiny", "usual"):
        stated = Stated.read(size)
        for toolkit in stated.toolkits:
            if not toolkit.writer:
                assert toolkit.reason
                continue
            assert (HERE / "writers" / f"{toolkit.writer}.py").is_file()
            assert toolkit.environment in {PROJECT, *stated.environments}
            assert toolkit.sampling and toolkit.unit and toolkit.uncovered
        for requirements in stated.environments.values():
            assert all("==" in name or name.startswith("-") for name in requirements)


def test_writers_of_other_toolkits_import_nothing_of_this_project():
    for name in {t.writer for t in Stated.read("usual").run if t.environment != PROJECT}:
        source = (HERE / "writers" / f"{name}.py").read_text()
        assert "twinset" not in source.split('"""')[2] and "import evaluation" not in source


def test_an_environment_that_cannot_be_made_is_refused_in_a_line(tmp_path):
    said = []
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="^an environment cannot be made: [^\n]*$"):
        environment(tmp_path / "file" / "new", ["nothing==0"], said.append)
    assert said == ["making the environment new: minutes"]


def job(tmp_path, tiny_base, **more):
    table = tmp_path / "private.parquet"
    reviews(60, seed=0).to_parquet(table)
    asked = Job(
        table=str(table),
        text="text",
        attributes=["sentiment", "product"],
        prompt="Write a {sentiment} review about a {product} product:",
        epsilon=8.0,
        delta=1e-5,
        rows=8,
        tokens=12,
        seed=0,
        base_model=str(tiny_base),
        encoder="",
        copy="",
        options={},
        libraries=[],
    )
    return {**asdict(asked), "folder": str(tmp_path), **more}


TWIN = {"steps": 2, "batch_size": 8, "teacher_share": 0.0, "max_redraws": 1000}
OURS = {"twin": TWIN, "base": {"max_redraws": 1000}, "redact": {"detector": "patterns"}}


@pytest.mark.parametrize("kind", OURS)
def test_our_rows(kind, tmp_path, tiny_base):
    options = {"kind": kind, **OURS[kind]}
    frame, facts = twinset_rows.write_rows(job(tmp_path, tiny_base, options=options))
    assert len(frame) == 8 and set(frame["sentiment"]) == {"positive", "negative"}
    epsilon = facts["epsilon"]
    assert 7.9 < epsilon <= 8 if kind == "twin" else epsilon is None


def test_control_codes_spend_what_is_asked(tmp_path, tiny_base):
    options = {"epochs": 1, "batch_size": 30, "learning_rate": 1e-3, "max_grad_norm": 1.0}
    frame, facts = control_codes.write_rows(job(tmp_path, tiny_base, options=options))
    assert 7.5 < facts["epsilon"] <= 8.01 and facts["settings"]["steps"] == 2
    assert len(frame) == 8 and frame["text"].str.strip().ne("").all()


def test_a_records_loss_depends_on_no_other(tiny_base):
    model = AutoModelForCausalLM.from_pretrained(tiny_base).eval()
    short, long = [5, 6, 7], [8, 9, 10, 11, 12, 13]
    together = control_codes.loss([short, long], model)
    alone = torch.cat([control_codes.loss([ids], model) for ids in (short, long)])
    assert np.allclose(together.detach(), alone.detach(), atol=1e-5)
