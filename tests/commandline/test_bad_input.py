"""Every bad input: exit code 2, one line, no traceback, nothing written, nothing private shown."""

import errno
import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.commands import GOOD, MARKER, arguments, older_run, run_twinset, snapshot, texts
from twinset.errors import VerificationError


def table(**columns):
    return lambda: GOOD.assign(**columns).to_csv("t.csv", index=False)


def raw(data: bytes, name="t.csv"):
    return lambda: Path(name).write_bytes(data)


def cell(text):
    """The seventh text of the table."""
    return table(review=[text if i == 6 else t for i, t in enumerate(texts())])


def jsonl(value):
    rows = [{"review": t, "label": "ab"[i % 2]} for i, t in enumerate(texts())]
    rows[6]["review"] = value
    return raw("".join(json.dumps(row) + "\n" for row in rows).encode(), "t.jsonl")


def config(text):
    return raw(text.encode(), "run.toml")


def plan(rows: bytes):
    return raw(rows, "plan.csv")


def folder(name):
    return lambda: Path(name).mkdir() or Path(name, "x").touch()


NO_EPSILON, NO_DELTA = ("0", "-1", "nan", "inf"), ("1", "2", "0", "-0.1", "nan")


FOUR_BLANK = [None if i in (6, 8, 9, 20) else t for i, t in enumerate(texts())]
LONG_PROMPT = f"--prompt '{{label}} {'long prompt ' * 200}'"
# what: (prepare, data and flags beside --text, --attribute and --base-model, parts of the message)
CASES = {
    "missing file": (None, "gone.csv", "gone.csv|no such file"),
    "missing text column": (None, "t.csv --text reviw", "t.csv|reviw|review"),
    "missing label column": (None, "t.csv --attribute stars", "t.csv|stars"),
    "unknown encoding": (None, "t.csv --encoding utf-7000", "--encoding utf-7000|unknown"),
    "a delimiter of two": (None, "t.csv --delimiter ;;", "--delimiter ;;|one character"),
    "missing text": (table(review=FOUR_BLANK), "t.csv", "t.csv|4 of 60|row 8|--drop-empty"),
    "blank text": (cell(" \t "), "t.csv --strict", "t.csv|1 of 60|row 8|--drop-empty"),
    "null text": (jsonl(None), "t.jsonl --strict", "t.jsonl|line 7|--drop-empty"),
    "missing label": (
        table(label=[None, *"ba" * 29, "b"]),
        "t.csv --strict",
        "label|row 2|--drop-empty",
    ),
    "end of text inside": (cell(f"{MARKER} <|endoftext|> b"), "t.csv", "t.csv|row 8"),
    "control character": (cell(f"{MARKER} \x07 b"), "t.csv --strict", "t.csv|row 8|control"),
    "unknown ending": (raw(b"x", "t.docx"), "t.docx", "t.docx|ending"),
    "split of a file": (None, "t.csv --split train", "--split"),
    "label never seen": (None, "t.csv --rows-per-label meh=3", "meh|neg, pos"),
    "rows not a number": (None, "t.csv --rows-per-label pos=few", "whole number"),
    "no rows wanted": (None, "t.csv --rows 0", "--rows"),
    "output is the table": (
        None,
        "t.csv --output t.csv --overwrite",
        "--output t.csv|private table",
    ),
    "log is the table": (None, "t.csv --log-file t.csv", "--log-file t.csv|no log"),
    "output inside a run": (
        lambda: Path("older/share").mkdir(parents=True) or Path("older/share/privacy.json").touch(),
        "t.csv --output older/share/o.csv",
        "older/share is a run's own",
    ),
    "no row of any label": (None, "t.csv --rows-per-label 0", "at least one row"),
    "two answers": (None, "t.csv --rows 5 --rows-per-label 5", "--rows-per-label|not several"),
    "plan without rows": (
        plan(b"label,number\npos,3\n"),
        "t.csv --plan-file plan.csv",
        "plan.csv|'rows'",
    ),
    "plan of unseen label": (
        plan(b"label,rows\npos,3\nmeh,3\n"),
        "t.csv --plan-file plan.csv",
        "row 3",
    ),
    **{f"epsilon {e}": (None, f"t.csv --epsilon={e}", "--epsilon|from 0.001") for e in NO_EPSILON},
    **{
        f"delta {d}": (None, f"t.csv --delta={d}", "--delta|from 1e-30 to 0.999999")
        for d in NO_DELTA
    },
    "too few records": (None, "t.csv --epsilon 0.05", "60 records|attainable"),
    "five rows": (
        lambda: GOOD[:5].to_csv("t.csv", index=False),
        "t.csv",
        "5 records are too few|some thousands",
    ),
    "both budgets": (None, "t.csv --epsilon 8 --no-privacy", "contradict"),
    "prompt over the context": (None, f"t.csv {LONG_PROMPT}", "prompt|shorten"),
    "prompt lacks the label": (None, "t.csv --prompt film-review", "{"),
    "prompt names no column": (None, "t.csv --prompt '{label} {film}:'", "{film}"),
    "no such prompt": (None, "t.csv --prompt flim-review", "flim-review"),
    "no base": (None, "t.csv --base-model ./none", "./none|smollm2-135m"),
    "base out of reach": (None, "t.csv --base-model gpt2-nowhere", "gpt2-nowhere"),
    "existing run": (older_run, "t.csv --run older", "older|--overwrite"),
    "no run": (folder("mine"), "t.csv --run mine --overwrite", "mine|not a twinset run"),
    "run below a file": (None, "t.csv --run t.csv/run", "cannot be written"),
    "existing output": (raw(b"x", "o.csv"), "t.csv --output o.csv", "o.csv: exists"),
    "existing card": (raw(b"x", "o.README.md"), "t.csv --output o.csv", "o.README.md: exists"),
    "output folder missing": (None, "t.csv --output no/o.csv", "does not exist"),
    "output is a folder": (folder("o.csv"), "t.csv --output o.csv", "fold"),
    "output of no format": (None, "t.csv --output o.docx", "o.docx|--format"),
    "two formats": (None, "t.csv --output o.csv --format parquet", "o.csv|parquet"),
    "unknown format": (None, "t.csv --format xlsx", "xlsx|parquet"),
    "unknown flag": (None, "t.csv --epsilom 3", "--epsilom|--help"),
    "a number that is none": (None, "t.csv --steps ten", "--steps"),
    "steps below 0": (None, "t.csv --steps -1", "--steps must be a whole number from 0"),
    "no steps, but their noise": (
        None,
        "t.csv --steps 0 --noise-policy importance",
        "--noise-policy importance|--steps 0",
    ),
    "unknown method": (None, "t.csv --method magic", "--method|lora"),
    "no config": (None, "t.csv --config none.toml", "none.toml|No such file"),
    "unknown key": (
        config("epsilom = 3"),
        "t.csv --config run.toml",
        "run.toml|did you mean epsilon",
    ),
    "wrong type": (
        config('steps = "ten"'),
        "t.csv --config run.toml",
        "run.toml|steps|whole number",
    ),
    "no toml": (config("= 3"), "t.csv --config run.toml", "run.toml"),
}


def assert_refused(outcome, parts: str):
    (line,) = outcome.err.splitlines()
    assert (outcome.code, outcome.out) == (2, "")
    assert line.startswith("error: ") and "Traceback" not in line and MARKER not in line
    assert all(part in line for part in parts.split("|")), line


@pytest.fixture
def generate(good_table, tiny_base, capsys):
    """Run `generate`, or another command that takes its table and flags."""

    def run(given: str, *more, command="generate"):
        return run_twinset(capsys, *arguments(tiny_base, shlex.split(given), command), *more)

    return run


@pytest.mark.parametrize(("prepare", "given", "parts"), CASES.values(), ids=CASES)
def test_refused_before_anything_is_written(good_table, generate, prepare, given, parts):
    if prepare:
        prepare()
    before = snapshot(good_table)
    assert_refused(generate(given), parts)
    assert snapshot(good_table) == before


@pytest.mark.parametrize("name", ["missing file", "missing text", "existing run", "epsilon nan"])
def test_halves_and_dry_runs_refuse_the_same(good_table, generate, name):
    prepare, given, parts = CASES[name]
    if prepare:
        prepare()
    before = snapshot(good_table)
    assert_refused(generate(given, command="finetune"), parts)
    assert_refused(generate(given, "--dry-run", command="finetune"), parts)
    assert_refused(generate(given, "--dry-run"), parts)
    assert snapshot(good_table) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("where", ["--run closed/run", "--output closed/o.csv"])
def test_folder_that_may_not_be_written(generate, where):
    Path("closed").mkdir(mode=0o500)
    assert_refused(generate(f"t.csv {where}"), "closed")
    assert not any(Path("closed").iterdir())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no file system that refuses root too")
def test_folder_that_not_even_root_may_write(generate):
    assert_refused(generate("t.csv --run /proc/runs/a"), "/proc/runs/a|cannot be written")


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 6])
def test_disk_that_is_full(good_table, generate, monkeypatch, nth):
    """The disk fills up at the nth file that is made safe on it, from the first to the last."""
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    before = snapshot(good_table)
    outcome = generate("t.csv --rows 4 --output o.csv")
    assert len(calls) >= nth
    assert_refused(outcome, "space")
    assert snapshot(good_table) == before


def test_attainable_epsilon_is_attainable(generate):
    refused = generate("t.csv --epsilon 0.05 --dry-run")
    attainable = re.search(r"--epsilon (\S+);", refused.err)[1]
    assert generate(f"t.csv --epsilon {attainable} --dry-run").code == 0
    assert "--steps 0" in refused.err
    assert generate("t.csv --epsilon 0.05 --dry-run --steps 0").code == 0


@pytest.mark.parametrize(
    ("delta", "warning"),
    [
        ("0.02", "WARNING: δ = 0.02 is not below 1/N"),
        ("0.0166", "is not below 0.01/N for N = 60"),
        ("1.7e-4", "is not below 0.01/N for N = 60"),  # from 0.01/60 = 1.67e-4 on
        ("1.6e-4", None),
    ],
)
def test_a_large_delta_is_warned_of_however_quiet(generate, delta, warning):
    outcome = generate(f"t.csv --delta {delta} --dry-run")
    assert outcome.code == 0
    assert warning in outcome.err if warning else "WARNING" not in outcome.err


def test_drop_empty_leaves_rows_out(generate):
    table(review=FOUR_BLANK)()
    outcome = generate("t.csv --drop-empty --dry-run --json")
    assert (outcome.code, json.loads(outcome.out)["records"]) == (0, 56)


def test_a_few_empty_rows_are_left_out_unasked(generate):
    cell(None)()
    outcome = generate("t.csv --dry-run --json")
    assert (outcome.code, json.loads(outcome.out)["records"]) == (0, 59)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("sample t.csv --output o.csv", "t.csv|no model folder"),
        ("sample gone", "gone|--output"),
        ("verify gone", "gone"),
        ("plan", "--records"),
        ("plan --records 0", "--records"),
        ("plan --records 100 --epsilon nan", "--epsilon"),
        ("magic", "magic"),
    ],
)
def test_other_commands_refuse(good_table, capsys, given, parts):
    before = snapshot(good_table)
    assert_refused(run_twinset(capsys, *given.split()), parts)
    assert snapshot(good_table) == before


def test_unexpected_errors_do_not_show_their_message(good_table, generate, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError(f"could not handle {MARKER}")

    monkeypatch.setattr("twinset.run.story.records_from_frame", broken)
    before = snapshot(good_table)
    outcome = generate("t.csv")
    (line,) = outcome.err.splitlines()
    assert outcome.code == 1
    assert re.fullmatch(r"error: unexpected RuntimeError in story.py:\d+; TWINSET_DEBUG=1.*", line)
    assert snapshot(good_table) == before
    monkeypatch.setenv("TWINSET_DEBUG", "1")
    assert MARKER in generate("t.csv").err  # asked for


def test_failed_verification_is_exit_code_1(capsys, monkeypatch):
    def altered(path):
        raise VerificationError(f"{path}: was altered")

    monkeypatch.setattr("twinset.release.verify.verify", altered)
    outcome = run_twinset(capsys, "verify", "share")
    assert (outcome.code, outcome.err) == (1, "error: share: was altered\n")
