"""The verdict at the end of a run: five lines from rows held out, for the owner alone."""

import re
from pathlib import Path

import pandas as pd
import pytest

from tests.helpers.commands import run_twinset
from tests.helpers.evaluated import OPTIONS, reviews, small_world_in

COLUMNS = ("--text", "text", "--attribute", "sentiment")
GIVEN = ("train.csv", *COLUMNS, *(o for o in OPTIONS if o != "--quiet"), "--rows", "40")


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    small_world_in(tmp_path, monkeypatch, train=200)


@pytest.fixture
def run(tiny_base, capsys):
    given = ("generate", *GIVEN, "--base-model", tiny_base, "--run", "run")
    return lambda *more: run_twinset(capsys, *given, *more)


def test_a_run_that_held_rows_out_ends_with_a_verdict(run):
    made = run("--hold-out", "0.3")
    assert made.code == 0, made.err
    said = made.err.splitlines()[made.err.splitlines().index(judging(made)) :]
    for question in ("Is it useful?", "Is it faithful?", "Does it leak?", "May I hand this over?"):
        assert len([line for line in said if re.match(rf"{re.escape(question)} +\w", line)]) == 1
    assert all(len(line) <= 80 or line.startswith("  twinset ") for line in said)
    assert "twinset evaluate" in made.err and "for you alone" in said[-1]
    assert "useful" not in made.out  # what others may see of a run
    shared = "".join(path.read_text() for path in Path("run/share").iterdir())
    assert "faithful?" not in shared


def judging(made):
    return next(line for line in made.err.splitlines() if line.startswith("judging the twin"))


def test_of_too_few_rows_nothing_is_said(run):
    reviews(60, seed=0).to_csv("train.csv", index=False)
    made = run("--hold-out", "0.2")
    assert made.code == 0 and made.err.count("Too few rows to say: ") in (2, 3)


def test_without_rows_held_out_one_line_says_how_to_get_one(run):
    made = run("--hold-out", "0")
    assert made.code == 0 and "--hold-out 0.2 keeps some back" in " ".join(made.err.split())
    assert "Is it useful?" not in made.err


@pytest.mark.parametrize("share", ["0", "0.3"])
def test_what_came_by_standard_input_is_a_file_in_commands(tiny_base, capsys, monkeypatch, share):
    monkeypatch.setattr("sys.stdin", open("train.csv"))
    given = ("generate", "-", *GIVEN[1:], "--base-model", tiny_base, "--hold-out", share)
    made = run_twinset(capsys, *given, "--run", "run")
    said = " ".join(made.err.split())
    assert made.code == 0 and "twinset evaluate" in said and "--train FILE" in said
    assert ("Save the table as FILE" in said) == (share != "0")


def test_quiet_and_json_ask_for_no_verdict(run):
    assert run("--hold-out", "0.3", "--quiet").err == ""
    assert "useful?" not in run("--hold-out", "0.3", "--json", "--overwrite").err


def test_evaluate_and_audit_find_the_rows_that_a_run_held_out(run, capsys):
    assert run("--hold-out", "0.3", "--quiet").code == 0
    held = len(pd.read_parquet("run/internal/held-out.parquet"))
    measured = run_twinset(
        capsys, "evaluate", "run", "--train", "train.csv", "--classifier", "tfidf", "--quiet"
    )
    audited = run_twinset(capsys, "audit", "run", "--members", "train.csv", "--quiet")
    assert (measured.code, audited.code) == (0, 0), measured.err + audited.err
    assert "Is it useful?" in measured.out and "Does it leak? " in audited.out
    about = pd.read_json("run/internal/audit.json", typ="series")["about"]
    assert about["rows"]["members"] == 200 - held and about["rows"]["non-members"] == held
    assert not [path for path in Path("run/internal").iterdir() if path.is_dir()]
    reviews(200, seed=3).to_csv("train.csv", index=False)
    other = run_twinset(capsys, "audit", "run", "--members", "train.csv", "--quiet")
    assert other.code == 2 and "is not the table that run was made from" in other.err


def test_held_out_rows_are_read_as_the_run_read_its_table(run, capsys):
    frame = reviews(200, seed=0)
    frame["head"] = "A film"
    frame.loc[3, "sentiment"] = frame.loc[3, "sentiment"].upper()
    frame.to_csv("train.csv", index=False, sep=";", encoding="utf-16")
    form = ("--text", "{head}: {text}", "--delimiter", ";", "--encoding", "utf-16")
    made = run("--hold-out", "0.3", "--merge-labels", "--quiet", *form)
    assert made.code == 0, made.err
    audit = ("audit", "run", "--members", "train.csv", "--quiet")
    frame.assign(text=frame.text + " Again.").to_json("others.jsonl", orient="records", lines=True)
    for others in ((), ("--non-members", "others.jsonl")):
        audited = run_twinset(capsys, *audit, *others)
        assert audited.code == 0, audited.err
    measured = run_twinset(
        capsys, *("evaluate", "run", "--train", "train.csv", "--classifier", "tfidf", "--quiet")
    )
    assert measured.code == 0, measured.err


@pytest.mark.parametrize("command", [("evaluate", "--train"), ("audit", "--members")])
def test_a_run_that_held_nothing_out_needs_other_rows(run, capsys, command):
    assert run("--quiet").code == 0
    name, flag = command
    ended = run_twinset(capsys, name, "run", flag, "train.csv", "--quiet")
    assert ended.code == 2 and "--hold-out 0.2" in ended.err and ended.err.count("\n") == 1
