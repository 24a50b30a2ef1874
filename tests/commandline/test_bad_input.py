"""Every bad input: exit code 2, one line, no traceback, nothing written, nothing private shown."""

import errno
import json
import os
import re
from pathlib import Path

import pytest

from tests.helpers.commands import (
    GOOD,
    MARKER,
    arguments,
    good_table_in,
    older_run,
    run_twinset,
    snapshot,
    texts,
)
from twinset.errors import VerificationError


@pytest.fixture
def place(tmp_path, monkeypatch):
    return good_table_in(tmp_path, monkeypatch)


def table(**columns):
    return lambda: GOOD.assign(**columns).to_csv("t.csv", index=False)


def raw(data: bytes, name="t.csv"):
    return lambda: Path(name).write_bytes(data)


def cell(text, row=7):
    return table(review=[text if i == row - 1 else t for i, t in enumerate(texts())])


def jsonl(value):
    rows = [{"review": t, "label": "ab"[i % 2]} for i, t in enumerate(texts())]
    rows[6]["review"] = value
    return lambda: Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def config(text):
    return lambda: Path("run.toml").write_text(text)


def nothing():
    pass


# what: (prepare, arguments beside --text, --attribute and --base-model, parts of the message)
CASES = {
    "missing file": (nothing, ("gone.csv",), ["gone.csv", "no such file"]),
    "missing text column": (nothing, ("t.csv", "--text", "reviw"), ["t.csv", "reviw", "review"]),
    "missing label column": (nothing, ("t.csv", "--attribute", "stars"), ["t.csv", "stars"]),
    "latin-1": (
        raw(f"review,label\n{MARKER} fine,a\n{MARKER} caf\xe9,b\n".encode("latin-1")),
        ("t.csv",),
        ["t.csv", "row 2", "UTF-8"],
    ),
    "utf-16": (raw(f"review,label\n{MARKER},a\n".encode("utf-16")), ("t.csv",), ["UTF-8"]),
    "a row too wide": (raw(f"review,label\n{MARKER},a,b\n".encode()), ("t.csv",), ["row 1"]),
    "empty file": (raw(b""), ("t.csv",), ["t.csv", "empty"]),
    "no rows": (raw(b"review,label\n"), ("t.csv",), ["t.csv", "no rows"]),
    "missing text": (cell(None), ("t.csv",), ["t.csv", "1 of 60", "row 7", "--drop-empty"]),
    "blank text": (cell(" \t "), ("t.csv",), ["t.csv", "1 of 60", "row 7", "--drop-empty"]),
    "null text": (jsonl(None), ("t.jsonl",), ["t.jsonl", "row 7", "--drop-empty"]),
    "text that is a number": (jsonl(7731), ("t.jsonl",), ["t.jsonl", "row 7", "--drop-empty"]),
    "text that is a list": (jsonl([MARKER]), ("t.jsonl",), ["t.jsonl", "row 7", "--drop-empty"]),
    "broken json": (raw(f'{{"review": "{MARKER}\n'.encode(), "t.jsonl"), ("t.jsonl",), ["row 1"]),
    "damaged parquet": (raw(b"PAR1" + MARKER.encode(), "t.parquet"), ("t.parquet",), ["Parquet"]),
    "missing label": (
        table(label=[None, "b"] + ["a", "b"] * 29),
        ("t.csv",),
        ["t.csv", "label", "row 1", "--drop-empty"],
    ),
    "one label only": (table(label="pos"), ("t.csv",), ["t.csv", "label", "one value"]),
    "hundreds of numbers": (table(label=range(1000, 1060)), ("t.csv",), ["label", "60 distinct"]),
    "end of text inside": (cell(f"{MARKER} <|endoftext|> b"), ("t.csv",), ["t.csv", "row 7"]),
    "control character": (cell(f"{MARKER} \x07 b"), ("t.csv",), ["t.csv", "row 7", "control"]),
    "unknown ending": (raw(b"x", "t.docx"), ("t.docx",), ["t.docx", "ending"]),
    "split of a file": (nothing, ("t.csv", "--split", "train"), ["--split"]),
    "label never seen": (nothing, ("t.csv", "--rows-per-label", "meh=3"), ["meh", "neg, pos"]),
    "rows not a number": (nothing, ("t.csv", "--rows-per-label", "pos=few"), ["whole number"]),
    "no rows wanted": (nothing, ("t.csv", "--rows", "0"), ["--rows"]),
    "output is the table": (
        nothing,
        ("t.csv", "--output", "t.csv", "--overwrite"),
        ["--output t.csv", "private table"],
    ),
    "no row of any label": (nothing, ("t.csv", "--rows-per-label", "0"), ["at least one row"]),
    "two answers": (
        nothing,
        ("t.csv", "--rows", "5", "--rows-per-label", "5"),
        ["--rows-per-label", "not several"],
    ),
    "plan without rows": (
        raw(b"label,number\npos,3\n", "plan.csv"),
        ("t.csv", "--plan-file", "plan.csv"),
        ["plan.csv", "'rows'"],
    ),
    "plan of unseen label": (
        raw(b"label,rows\npos,3\nmeh,3\n", "plan.csv"),
        ("t.csv", "--plan-file", "plan.csv"),
        ["plan.csv", "row 2"],
    ),
    **{
        f"epsilon {value}": (nothing, ("t.csv", f"--epsilon={value}"), ["--epsilon", "from 0.001"])
        for value in ("0", "-1", "nan", "inf")
    },
    **{
        f"delta {value}": (
            nothing,
            ("t.csv", f"--delta={value}"),
            ["--delta", "from 1e-30 to 0.999999"],
        )
        for value in ("1", "2", "0", "-0.1", "nan")
    },
    "too few records": (nothing, ("t.csv", "--epsilon", "0.05"), ["60 records", "attainable"]),
    "both budgets": (nothing, ("t.csv", "--epsilon", "8", "--no-privacy"), ["contradict"]),
    "prompt over the context": (
        nothing,
        ("t.csv", "--prompt", "{label} " + "long prompt " * 200),
        ["prompt", "shorten"],
    ),
    "prompt lacks the label": (nothing, ("t.csv", "--prompt", "film-review"), ["{"]),
    "prompt names no column": (nothing, ("t.csv", "--prompt", "{label} {film}:"), ["{film}"]),
    "no such prompt": (nothing, ("t.csv", "--prompt", "flim-review"), ["flim-review"]),
    "no base": (nothing, ("t.csv", "--base-model", "./none"), ["./none", "smollm2-135m"]),
    "base out of reach": (nothing, ("t.csv", "--base-model", "gpt2-nowhere"), ["gpt2-nowhere"]),
    "existing run": (older_run, ("t.csv", "--run", "older"), ["older", "--overwrite"]),
    "a folder that is no run": (
        lambda: (Path("mine").mkdir(), Path("mine/x").touch()),
        ("t.csv", "--run", "mine", "--overwrite"),
        ["mine", "not a twinset run"],
    ),
    "run below a file": (nothing, ("t.csv", "--run", "t.csv/run"), ["cannot be written"]),
    "existing output": (raw(b"x", "o.csv"), ("t.csv", "--output", "o.csv"), ["o.csv: exists"]),
    "existing card": (
        raw(b"x", "o.README.md"),
        ("t.csv", "--output", "o.csv"),
        ["o.README.md: exists"],
    ),
    "output folder missing": (nothing, ("t.csv", "--output", "no/o.csv"), ["does not exist"]),
    "output is a folder": (lambda: Path("o.csv").mkdir(), ("t.csv", "--output", "o.csv"), ["fold"]),
    "output of no format": (nothing, ("t.csv", "--output", "o.docx"), ["o.docx", "--format"]),
    "two formats": (
        nothing,
        ("t.csv", "--output", "o.csv", "--format", "parquet"),
        ["o.csv", "parquet"],
    ),
    "unknown format": (nothing, ("t.csv", "--format", "xlsx"), ["xlsx", "parquet"]),
    "unknown flag": (nothing, ("t.csv", "--epsilom", "3"), ["--epsilom", "--help"]),
    "a number that is none": (nothing, ("t.csv", "--steps", "ten"), ["--steps"]),
    "no steps": (nothing, ("t.csv", "--steps", "0"), ["--steps must be a whole number from 1"]),
    "unknown method": (nothing, ("t.csv", "--method", "magic"), ["--method", "lora"]),
    "no config": (nothing, ("t.csv", "--config", "none.toml"), ["none.toml", "No such file"]),
    "config with unknown key": (
        config("epsilom = 3"),
        ("t.csv", "--config", "run.toml"),
        ["run.toml", "epsilom", "did you mean epsilon"],
    ),
    "config with a wrong type": (
        config('steps = "ten"'),
        ("t.csv", "--config", "run.toml"),
        ["run.toml", "steps", "whole number"],
    ),
    "config that is no toml": (config("= 3"), ("t.csv", "--config", "run.toml"), ["run.toml"]),
}


def assert_refused(outcome, parts):
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: ")
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in line
    assert MARKER not in line
    for part in parts:
        assert part in line, line


@pytest.mark.parametrize(("prepare", "given", "parts"), CASES.values(), ids=CASES.keys())
def test_refused_before_anything_is_written(place, tiny_base, capsys, prepare, given, parts):
    prepare()
    before = snapshot(place)
    assert_refused(run_twinset(capsys, *arguments(tiny_base, given)), parts)
    assert snapshot(place) == before


@pytest.mark.parametrize("name", ["missing file", "missing text", "existing run", "epsilon nan"])
def test_halves_and_dry_runs_refuse_the_same(place, tiny_base, capsys, name):
    prepare, given, parts = CASES[name]
    prepare()
    before = snapshot(place)
    for command, more in (
        ("finetune", ()),
        ("finetune", ("--dry-run",)),
        ("generate", ("--dry-run",)),
    ):
        assert_refused(run_twinset(capsys, *arguments(tiny_base, given, command), *more), parts)
    assert snapshot(place) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("where", [("--run", "closed/run"), ("--output", "closed/o.csv")])
def test_folder_that_may_not_be_written(place, tiny_base, capsys, where):
    Path("closed").mkdir(mode=0o500)
    assert_refused(run_twinset(capsys, *arguments(tiny_base, ("t.csv", *where))), ["closed"])
    assert not any(Path("closed").iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no file system that refuses root too")
def test_folder_that_not_even_root_may_write(place, tiny_base, capsys):
    refused = run_twinset(capsys, *arguments(tiny_base, ("t.csv", "--run", "/proc/runs/a")))
    assert_refused(refused, ["/proc/runs/a", "cannot be written"])


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 6])
def test_disk_that_is_full(place, tiny_base, capsys, monkeypatch, nth):
    """The disk fills up at the nth file that is made safe on it, from the first to the last."""
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    before = snapshot(place)
    given = ("t.csv", "--rows", "4", "--output", "o.csv")
    outcome = run_twinset(capsys, *arguments(tiny_base, given))
    assert len(calls) >= nth
    assert_refused(outcome, ["space"])
    assert snapshot(place) == before


def test_attainable_epsilon_is_attainable(place, tiny_base, capsys):
    given = ("t.csv", "--epsilon", "0.05", "--dry-run")
    refused = run_twinset(capsys, *arguments(tiny_base, given))
    attainable = re.search(r"--epsilon (\S+),", refused.err)[1]
    given = ("t.csv", "--epsilon", attainable, "--dry-run")
    assert run_twinset(capsys, *arguments(tiny_base, given)).code == 0


def test_large_delta_is_warned_of_however_quiet(place, tiny_base, capsys):
    given = ("t.csv", "--delta", "0.02", "--dry-run")
    outcome = run_twinset(capsys, *arguments(tiny_base, given))
    assert outcome.code == 0
    assert outcome.err.startswith("WARNING: δ = 0.02 is not below 1/N")


@pytest.mark.parametrize(
    ("delta", "warned"), [("0.0166", True), ("1.7e-4", True), ("1.6e-4", False)]
)
def test_a_delta_just_below_one_in_n_is_warned_of(place, tiny_base, capsys, delta, warned):
    """Of 60 records, from 0.01/60 = 1.67e-4 on."""
    given = ("t.csv", "--delta", delta, "--dry-run")
    outcome = run_twinset(capsys, *arguments(tiny_base, given))
    assert outcome.code == 0
    assert ("is not below 0.01/N for N = 60" in outcome.err) == warned


def test_drop_empty_goes_on(place, tiny_base, capsys):
    cell(None)()
    outcome = run_twinset(
        capsys, *arguments(tiny_base, ("t.csv", "--drop-empty", "--dry-run", "--json"))
    )
    assert (outcome.code, json.loads(outcome.out)["records"]) == (0, 59)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (("sample", "t.csv", "--output", "o.csv"), ["t.csv", "no model folder"]),
        (("sample", "gone"), ["gone", "--output"]),
        (("verify", "gone"), ["gone"]),
        (("plan",), ["--records"]),
        (("plan", "--records", "0"), ["--records"]),
        (("plan", "--records", "100", "--epsilon", "nan"), ["--epsilon"]),
        (("magic",), ["magic"]),
    ],
)
def test_other_commands_refuse(place, capsys, given, parts):
    before = snapshot(place)
    assert_refused(run_twinset(capsys, *given), parts)
    assert snapshot(place) == before


def test_unexpected_errors_do_not_show_their_message(place, tiny_base, capsys, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError(f"could not handle {MARKER}")

    monkeypatch.setattr("twinset.pipeline.prepare.records_from_frame", broken)
    before = snapshot(place)
    outcome = run_twinset(capsys, *arguments(tiny_base, ("t.csv",)))
    (line,) = outcome.err.splitlines()
    assert outcome.code == 1
    assert re.fullmatch(
        r"error: unexpected RuntimeError in prepare.py:\d+; TWINSET_DEBUG=1.*", line
    )
    assert snapshot(place) == before
    monkeypatch.setenv("TWINSET_DEBUG", "1")
    assert MARKER in run_twinset(capsys, *arguments(tiny_base, ("t.csv",))).err  # asked for


def test_failed_verification_is_exit_code_1(capsys, monkeypatch):
    def altered(path):
        raise VerificationError(f"{path}: was altered")

    monkeypatch.setattr("twinset.release.verify.verify", altered)
    outcome = run_twinset(capsys, "verify", "share")
    assert (outcome.code, outcome.err) == (1, "error: share: was altered\n")
