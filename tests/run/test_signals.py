"""Ctrl-C or SIGTERM at any point: code 130, one line, nothing half-written and nothing lost."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.commands import arguments, call, older_run, snapshot

NOTHING_DONE = {
    "reading": "twinset.run.story.read_frame",
    "counting": "twinset.run.releases.count_labels",
}
RESUMABLE = {
    "training": "twinset.commandline.console.Console.step",
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
        os.kill(os.getpid(), signal.SIGTERM if where == "sampling" else signal.SIGINT)
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
