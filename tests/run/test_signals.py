"""Ctrl-C at any point: exit code 130, one line, nothing half-written and nothing lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cli
from tests.helpers.commands import arguments, call, older_run, python_environment, snapshot

NOTHING_DONE = {
    "reading": "twinset.run.story.read_frame",
    "planning": "twinset.run.story.make_plan",
    "counting": "twinset.run.releases.count_labels",
}
RESUMABLE = {
    "training": "twinset.commandline.console.Console.step",
    "saving": "twinset.sampling.twin_model.TwinModel.save",
    "sampling": "twinset.sampling.sampler.Sampler.sample",
    "publishing": "twinset.release.publish.shutil.copyfile",
}
ANYWHERE = NOTHING_DONE | RESUMABLE
GIVEN = ("t.csv", "--rows", "4", "--run", "older", "--output", "o.csv", "--marginal-share", "0")
GIVEN += ("--teacher-share", "0", "--physical-batch", "60", "--epsilon", "20")
HIDDEN = ".older.partial"


def visible(place: Path) -> dict[str, tuple[int, int]]:
    return {name: facts for name, facts in snapshot(place).items() if not name.startswith(HIDDEN)}


@pytest.mark.parametrize("where", ANYWHERE)
def test_stopped_anywhere_leaves_nothing_half_written(good_table, tiny_base, monkeypatch, where):
    import twinset.commandline.console  # noqa: F401 (so that the names to patch exist)
    import twinset.run.story  # noqa: F401

    older_run()
    Path("o.csv").write_text("older")
    Path("o.privacy.json").write_text("older")
    before, reached = snapshot(good_table), []

    def stop(*_, **__):
        reached.append(where)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)  # the signal comes first

    given = [*arguments(tiny_base, GIVEN), "--overwrite"]
    with monkeypatch.context() as patch:
        patch.setattr(ANYWHERE[where], stop)
        outcome = call(*given)
    assert reached == [where] and outcome.code == 130
    assert visible(good_table) == before
    can_resume = where in RESUMABLE
    assert Path(HIDDEN).exists() == can_resume
    how = "the same command with --resume goes on" if can_resume else "nothing half-written is left"
    assert outcome.err.splitlines()[-1] == f"stopped; {how}"
    if where == "publishing":
        assert call(*given, "--resume").code == 0 and not Path(HIDDEN).exists()
        assert call("verify", "o.csv").code == 0


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_signal_to_a_running_process(good_table, tiny_base, number):
    given = arguments(tiny_base, ("t.csv", "--run", "r", "--steps", "100000", "--no-privacy"))
    given.remove("--quiet")
    process = subprocess.Popen(
        [sys.executable, cli.__file__, *map(str, given)],
        stderr=subprocess.PIPE,
        text=True,
        env=python_environment(),
    )
    assert process.stderr is not None
    next(line for line in process.stderr if line.startswith("step "))
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    assert rest.splitlines()[-1] == "stopped; the same command with --resume goes on"
    assert "Traceback" not in rest
    assert sorted(path.name for path in good_table.iterdir()) == [".r.partial", "t.csv"]
    checkpoints = Path(".r.partial/internal/unfinished/checkpoints")
    assert [len(list(step.iterdir())) for step in checkpoints.iterdir()] == [5]
