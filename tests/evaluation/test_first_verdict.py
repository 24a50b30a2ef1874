"""The verdict at the end of a run: five lines from rows held out, for the owner alone."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from evaluation.report.page import build_report
from tests.helpers.commands import call
from tests.helpers.evaluated import OPTIONS, reviews, small_world_in
from tests.helpers.pages import Page

COLUMNS = ("--text", "text", "--attribute", "sentiment")
ROWS = 120
LITTLE = (*(option for option in OPTIONS if option != "--quiet"), "--rows", "20", "--run", "run")
EVALUATE = ("evaluate", "run", "--train", "train.csv", "--classifier", "tfidf", "--quiet")
AUDIT = ("audit", "run", "--members", "train.csv", "--quiet")


@pytest.fixture(scope="module")
def finished(tiny_base, tmp_path_factory):
    """Folder with a run that held rows out, of a table with joined text and labels to merge.

    What the run said is in `said.txt`.
    """
    folder = tmp_path_factory.mktemp("finished")
    form = ("--text", "{head}: {text}", "--delimiter", ";", "--encoding", "utf-16")
    with pytest.MonkeyPatch.context() as patch:
        small_world_in(folder, patch, train=ROWS)
        frame = reviews(ROWS, seed=0).assign(head="A film")
        frame.loc[3, "sentiment"] = frame.loc[3, "sentiment"].upper()
        frame.to_csv("train.csv", index=False, sep=";", encoding="utf-16")
        made = (*COLUMNS[2:], *LITTLE, "--hold-out", "0.3", "--merge-labels", *form)
        ended = call("generate", "train.csv", "--base-model", tiny_base, *made)
    assert ended.code == 0
    (folder / "said.txt").write_text(ended.err)
    return folder


def test_a_run_that_held_rows_out_ends_with_a_verdict(finished):
    lines = (finished / "said.txt").read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("judging the twin"))
    for question in ("Is it useful?", "Is it faithful?", "Does it leak?", "May I hand this over?"):
        asked = re.compile(rf"{re.escape(question)} +\w")
        assert len([line for line in lines[begin:] if asked.match(line)]) == 1
    assert all(len(line) <= 80 or line.startswith("  twinset ") for line in lines[begin:])
    assert any("twinset evaluate" in line for line in lines) and "to yourself" in lines[-1]
    shared = "".join(path.read_text() for path in (finished / "run" / "share").iterdir())
    assert "faithful?" not in shared  # what others may see of a run


def test_the_report_says_what_the_run_said(finished):
    """It judges by the same scores until more is measured."""
    said, page = (finished / "said.txt").read_text(), Page(build_report(finished / "run"))
    verdicts = [e for e in page.root.find("section") if e.attributes.get("id") == "verdicts"][0]
    for question in ("Is it useful?", "Is it faithful?", "Does it leak?", "May I hand this over?"):
        (answer,) = re.findall(rf"{re.escape(question)} +([^:]+):", said)
        assert re.search(rf"{re.escape(question)}\s*{answer}", verdicts.text), (question, answer)
    assert "quick measures at the run’s end" in page.root.text
    assert "twinset evaluate" in page.root.text  # it is named all the same


def test_evaluate_and_audit_find_the_rows_held_out_and_read_them_as_the_run_did(
    finished, tmp_path, monkeypatch
):
    small_world_in(shutil.copytree(finished, tmp_path / "copy"), monkeypatch, train=ROWS)
    shutil.copy(finished / "train.csv", "train.csv")
    held = len(pd.read_parquet("run/internal/held-out.parquet"))
    measured, audited = (call(*command) for command in (EVALUATE, AUDIT))
    assert (measured.code, audited.code) == (0, 0), measured.err + audited.err
    assert "Is it useful?" in measured.out and "Does it leak? " in audited.out
    assert "pair distance" in measured.out  # of the column "product", which is kept
    about = pd.read_json("run/internal/audit.json", typ="series")["about"]
    assert about["rows"]["members"] == ROWS - held and about["rows"]["non-members"] == held
    assert not [path for path in Path("run/internal").iterdir() if path.is_dir()]
    frame = pd.read_csv("train.csv", sep=";", encoding="utf-16")
    frame.assign(text=frame.text + " Again.").to_json("others.jsonl", orient="records", lines=True)
    again = call(*AUDIT, "--non-members", "others.jsonl")
    assert again.code == 0, again.err
    other = reviews(ROWS, seed=3).assign(head="A film")
    for changed in (other, other.assign(sentiment=other.sentiment + " or so")):
        changed.to_csv("train.csv", index=False, sep=";", encoding="utf-16")
        ended = call(*AUDIT)
        assert ended.code == 2 and "is not the table of run" in ended.err
        assert "--drop-undeclared" not in ended.err  # no option of these commands
