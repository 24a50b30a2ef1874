"""Every bad input: exit code 2, one line, no traceback, nothing written, nothing private shown."""

import errno
import os
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.helpers.commands import (
    GOOD,
    MARKER,
    arguments,
    call,
    good_table_in,
    older_run,
    snapshot,
    texts,
)
from twinset.commandline import entry_point

FOUR_BLANK = [None if i in (6, 8, 9, 20) else t for i, t in enumerate(texts())]
RESERVED = [f"{MARKER} <|endoftext|> b" if i == 6 else t for i, t in enumerate(texts())]
DEEP, LONG = "[" * 100_000, "x" * 5000


def lay_out_files() -> None:
    """Write everything that the cases below name into the working folder."""
    for name, reviews in (("gaps", FOUR_BLANK), ("end", RESERVED)):
        GOOD.assign(review=reviews).to_csv(f"{name}.csv", index=False)
    files = {"t.docx": "x", "o.csv": "x", "key.toml": "epsilom = 3"}
    for name, content in (files | {"deep.jsonl": f'{{"review": "{MARKER}"}}\n{DEEP}'}).items():
        Path(name).write_text(content)
    for folder in ("mine/internal", "other/share"):
        Path(folder).mkdir(parents=True)
        Path(folder, "privacy.json").touch()
    older_run()


# A command with its flags => parts of the one line that refuses it. `generate` is left out, as are
# --text, --attribute and --base-model. LONG stands for 5000 letters.
CASES = """
missing.csv => missing.csv|no such file
t.csv --text reviw => t.csv|reviw|review
gaps.csv => gaps.csv|4 of 60|row 8|--drop-empty
end.csv --strict => end.csv|row 8
t.docx => t.docx|ending
t.csv --rows-per-label meh=3 => meh|neg, pos
t.csv --output t.csv --overwrite => --output t.csv|private table
t.csv --log-file t.csv => --log-file t.csv|not a log
t.csv --output other/share/o.csv => other/share belongs to a run
t.csv --rows 5 --rows-per-label 5 => --rows-per-label|give only one
t.csv --epsilon=nan => --epsilon|from 0.001
t.csv --steps ten => --steps
t.csv --epsilon 8 --no-privacy => contradict
t.csv --prompt '{label} {film}:' => {film}
t.csv --base-model ./none => ./none|smollm2-135m
t.csv --run older => older|--overwrite
t.csv --run mine --overwrite => mine|not a twinset run
t.csv --run /proc/runs/a => /proc/runs/a|cannot be written
t.csv --output o.csv => o.csv: exists
t.csv --epsilom 3 => --epsilom|--help
t.csv --steps 0 --noise-policy importance => --noise-policy importance|--steps 0
t.csv --config key.toml => key.toml|Did you mean epsilon
LONG.csv => too long
"""
OTHERS = """
detect deep.jsonl --text review --quiet => deep.jsonl
report mine => no such run
verify gone => gone
plan => --records
"""


def rows_of(table: str) -> list[list[str]]:
    return [line.split(" => ") for line in table.strip().splitlines()]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    """A working folder for all cases: no refusal writes anything into it."""
    with pytest.MonkeyPatch.context() as patch:
        place = good_table_in(tmp_path_factory.mktemp("bad"), patch)
        lay_out_files()
        yield place


def assert_refused(outcome, parts: str):
    (line,) = outcome.err.splitlines()
    assert (outcome.code, outcome.out) == (2, "")
    assert line.startswith("error: ") and MARKER not in line
    assert "Traceback" not in line and "unexpected" not in line
    assert all(part in line for part in parts.split("|")), line


@pytest.fixture
def generate(tiny_base):
    def run(given: str):
        words = shlex.split(given.replace("LONG", LONG))
        return call(*arguments(tiny_base, words))

    return run


@pytest.mark.parametrize(("given", "parts"), rows_of(CASES))
def test_generate_refuses_before_anything_is_written(bad_files, generate, given, parts):
    before = snapshot(bad_files)
    assert_refused(generate(given), parts)
    assert snapshot(bad_files) == before


@pytest.mark.parametrize(("given", "parts"), rows_of(OTHERS))
def test_other_commands_refuse(bad_files, given, parts):
    before = snapshot(bad_files)
    assert_refused(call(*given.split()), parts)
    assert snapshot(bad_files) == before


@pytest.mark.parametrize("nth", [1, 6])
def test_disk_that_is_full(good_table, generate, monkeypatch, nth):
    """The disk fills up at the nth file that is made safe on it: an early and a late one."""
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) >= nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    before = snapshot(good_table)
    outcome = generate("t.csv --rows 4 --output o.csv --marginal-share 0 --teacher-share 0")
    assert len(calls) >= nth
    assert_refused(outcome, "space")
    assert snapshot(good_table) == before


def test_the_epsilon_that_a_refusal_names_is_attainable(good_table, generate):
    table = "t.csv --labels label=pos,neg"  # noisy counts would select no value
    refused = generate(f"{table} --epsilon 0.05 --dry-run")
    attainable = re.search(r"--epsilon (\S+) on", refused.err)[1]
    assert generate(f"{table} --epsilon {attainable} --dry-run").code == 0
    assert "--steps 0" in refused.err
    assert generate(f"{table} --epsilon 0.05 --dry-run --steps 0").code == 0


def test_quiet_does_not_hide_the_warning_of_a_large_delta(good_table, generate):
    for delta, warning in (("0.02", "WARNING: δ = 0.02 is not below 1/N"), ("1.6e-4", "")):
        outcome = generate(f"t.csv --delta {delta} --dry-run")
        assert outcome.code == 0 and ("WARNING" in outcome.err) == bool(warning)
        assert warning in outcome.err


def test_unexpected_errors_do_not_show_their_message(good_table, generate, monkeypatch):
    def broken(*_, error=RuntimeError, **__):
        raise error(f"could not handle {MARKER}")

    full = partial(broken, error=torch.OutOfMemoryError)  # a device without memory left
    monkeypatch.setattr("twinset.run.story.records_from_frame", full)
    outcome = generate("t.csv")
    assert outcome.code == 1 and MARKER not in outcome.err
    assert "memory ran out" in outcome.err and "--sample-batch" in outcome.err
    monkeypatch.setattr("twinset.run.story.records_from_frame", broken)
    before = snapshot(good_table)
    outcome = generate("t.csv")
    (line,) = outcome.err.splitlines()
    assert outcome.code == 1
    assert re.fullmatch(r"error: unexpected RuntimeError in story.py:\d+. TWINSET_DEBUG=1.*", line)
    assert snapshot(good_table) == before
    with monkeypatch.context() as patch:
        patch.setattr(entry_point, "describe_end", broken)  # even that fails in one line
        said = "error: unexpected RuntimeError. TWINSET_DEBUG=1 shows more.\n"
        assert generate("t.csv").err == said
    monkeypatch.setenv("TWINSET_DEBUG", "1")
    assert MARKER in generate("t.csv").err  # asked for
