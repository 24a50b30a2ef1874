"""Ctrl-C at any point: exit code 130, one line, nothing half-written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import arguments, good_table_in, older_run, run_twinset, snapshot

import cli


@pytest.fixture
def place(tmp_path, monkeypatch):
    return good_table_in(tmp_path, monkeypatch)


INTERRUPTED = {
    "reading": "twinset.generate.read_frame",
    "loading": "twinset.generate.load_base",
    "planning": "twinset.generate.make_plan",
    "training": "twinset.console.Console.step",
    "saving": "twinset.twinmodel.TwinModel.save",
    "sampling": "twinset.console.Console.count",
    "writing": "twinset.share.write_text",
    "publishing": "twinset.publish.shutil.copyfile",
}


@pytest.mark.parametrize("where", INTERRUPTED.values(), ids=INTERRUPTED.keys())
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
def test_stopped_anywhere_leaves_nothing_half_written(
    place, tiny_base, capsys, monkeypatch, where, overwrite
):
    import twinset.console  # noqa: F401 (so that the names to patch exist)
    import twinset.generate  # noqa: F401

    if overwrite:
        older_run()
        Path("o.csv").write_text("older")
    before, reached = snapshot(place), []

    def stop(*_, **__):
        reached.append(where)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)  # the signal comes first

    monkeypatch.setattr(where, stop)
    given = ("t.csv", "--rows", "4", "--run", "older", "--output", "o.csv")
    more = ["--overwrite"] if overwrite else []
    outcome = run_twinset(capsys, *arguments(tiny_base, given), *more)
    assert reached == [where]
    assert (outcome.code, outcome.err) == (130, "stopped; nothing half-written is left\n")
    assert snapshot(place) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_a_running_process(place, tiny_base, number):
    before = snapshot(place)
    given = arguments(tiny_base, ("t.csv", "--steps", "100000", "--no-privacy"))
    given.remove("--quiet")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, cli.__file__, *map(str, given)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step "):
            break
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    assert rest.splitlines()[-1] == "stopped; nothing half-written is left"
    assert "Traceback" not in rest
    assert snapshot(place) == before
