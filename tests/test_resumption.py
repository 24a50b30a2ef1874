"""Killed at any moment: what is kept, what is counted, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import MARKER, arguments, good_table_in, run_twinset, snapshot

import twinset.resumption as resumption
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.ledger import Ledger
from twinset.training import _Learning
from twinset.verify import verify

RUN = ("t.csv", "--run", "r", "--rows", "6", "--steps", "5", "--epsilon", "20")
ROOT = Path(__file__).parents[1]
UNFINISHED = Path(".r.partial/internal/unfinished")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(resumption, "CHECKPOINT_SECONDS", -1.0)  # after each step
    (tmp_path / "here").mkdir()
    return good_table_in(tmp_path / "here", monkeypatch)


class Killed(BaseException):
    """What no code catches: as good as SIGKILL, for all that is on the disk."""


@pytest.fixture
def kill_at(monkeypatch):
    """Kill the next run once `step` steps are done."""
    plain = _Learning.step

    def arm(step):
        def killing(self, gradients):
            if self.done == step:
                raise Killed
            plain(self, gradients)

        monkeypatch.setattr(_Learning, "step", plain if step is None else killing)

    return arm


def generate(capsys, base, *more, given=RUN):
    return run_twinset(capsys, *arguments(base, (*given, *more)))


def steps_in(ledger: Path) -> int:
    return sum(e.steps for e in Ledger.load(ledger).events if isinstance(e, SubsampledGaussian))


@pytest.mark.parametrize("policy", ["uniform", "importance", "selective"])
def test_killed_and_resumed_it_ends_as_planned(place, tiny_base, capsys, kill_at, policy):
    more = ("--noise-policy", policy)
    for step in (2, 3, 4):
        kill_at(step)
        resume = ("--resume",) if step > 2 else ()
        assert generate(capsys, tiny_base, *more, *resume).code == 1
        assert not Path("r").exists()
    kill_at(None)
    done = generate(capsys, tiny_base, *more, "--resume")
    assert (done.code, MARKER in done.err) == (0, False)
    assert steps_in(Path("r/model/ledger.json")) == 5
    kinds = [event.__class__.__name__ for event in Ledger.load(Path("r/model/ledger.json")).events]
    assert kinds.count("GaussianRelease") == 1  # label counts are released once
    assert {path.name for path in Path("r/internal").iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "notes.txt",
        *(("noise.json", "noise.png") if policy == "importance" else ()),
    }
    assert sorted(path.name for path in place.iterdir()) == ["r", "t.csv"]
    assert run_twinset(capsys, "verify", "r").code == 0


def test_resumed_training_goes_on_from_the_very_state(place, tiny_base, capsys, kill_at):
    """Without noise and with every record in each batch nothing is random: weights are equal."""
    plain = ("t.csv", "--rows", "6", "--steps", "5", "--no-privacy", "--batch-size", "60")
    assert generate(capsys, tiny_base, "--run", "whole", given=plain).code == 0
    kill_at(3)
    generate(capsys, tiny_base, "--run", "r", given=plain)
    kill_at(None)
    assert generate(capsys, tiny_base, "--run", "r", "--resume", given=plain).code == 0
    weights = [Path(run, "model/model.safetensors").read_bytes() for run in ("whole", "r")]
    assert weights[0] == weights[1]
    assert Path("whole/share/twin.csv").read_bytes() == Path("r/share/twin.csv").read_bytes()


def test_without_resume_an_unfinished_run_is_kept(place, tiny_base, capsys, kill_at):
    kill_at(3)
    generate(capsys, tiny_base)
    before = snapshot(place)
    again = generate(capsys, tiny_base)
    assert again.code == 2 and "--resume goes on with it" in again.err
    assert snapshot(place) == before
    kill_at(None)
    assert generate(capsys, tiny_base, "--overwrite").code == 0
    assert sorted(path.name for path in place.iterdir()) == ["r", "t.csv"]


def test_killed_before_the_first_checkpoint_nothing_is_left(place, tiny_base, capsys, kill_at):
    before = snapshot(place)
    kill_at(0)
    generate(capsys, tiny_base)
    assert snapshot(place) == before
    assert "no unfinished run" in generate(capsys, tiny_base, "--resume").err


def test_other_settings_are_refused(place, tiny_base, capsys, kill_at):
    kill_at(3)
    generate(capsys, tiny_base)
    before = snapshot(place)
    kill_at(None)
    other = generate(capsys, tiny_base, "--resume", "--learning-rate", "0.5")
    assert other.code == 2 and "other settings (training, plan)" in other.err
    table = Path("t.csv")
    table.write_text(table.read_text().replace("number 7", "number 8"))
    other = generate(capsys, tiny_base, "--resume")
    assert other.code == 2 and "other settings (table)" in other.err and MARKER not in other.err
    table.write_text(table.read_text().replace("number 8", "number 7", 1))
    assert {k: v for k, v in snapshot(place).items() if k != "t.csv"} == {
        k: v for k, v in before.items() if k != "t.csv"
    }


def test_going_on_twice_from_one_checkpoint_is_two_releases(place, tiny_base, capsys, kill_at):
    kill_at(3)
    generate(capsys, tiny_base)
    shutil.copytree(".r.partial", "copy")
    kill_at(None)
    assert generate(capsys, tiny_base, "--resume").code == 0
    Path("r").rename("first")
    Path("copy").rename(".r.partial")
    again = generate(capsys, tiny_base, "--resume")
    assert again.code == 2 and "gone on from step 3 before, to step 5" in again.err
    assert generate(capsys, tiny_base, "--resume", "--accept-spend").code == 0
    assert steps_in(Path("first/model/ledger.json")) == 5
    assert steps_in(Path("r/model/ledger.json")) == 7  # 5, and the 2 that were taken twice


def test_what_was_accepted_once_is_not_asked_again(place, tiny_base, capsys, kill_at):
    kill_at(3)
    generate(capsys, tiny_base)
    shutil.copytree(".r.partial", "copy")
    kill_at(None)
    generate(capsys, tiny_base, "--resume")
    shutil.rmtree("r")
    Path("copy").rename(".r.partial")
    kill_at(4)
    assert generate(capsys, tiny_base, "--resume", "--accept-spend").code == 1
    kill_at(None)
    assert generate(capsys, tiny_base, "--resume").code == 0
    assert steps_in(Path("r/model/ledger.json")) == 7


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("state.pt", lambda path: path.write_bytes(path.read_bytes()[:-40])),
        ("ledger.json", lambda path: path.write_text(path.read_text().replace("2", "1", 1))),
        ("facts.json", lambda path: path.unlink()),
        ("seal.json", lambda path: path.write_text("{")),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_taken(
    place, tiny_base, capsys, kill_at, name, damage
):
    kill_at(3)
    generate(capsys, tiny_base)
    checkpoints = UNFINISHED / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-2", "step-3"]
    damage(checkpoints / "step-3" / name)
    kill_at(None)
    refused = generate(capsys, tiny_base, "--resume")
    assert refused.code == 2 and f"step-3/{name}" in refused.err
    assert "gone on from step 2 before, to step 3" in refused.err
    assert generate(capsys, tiny_base, "--resume", "--accept-spend").code == 0
    assert steps_in(Path("r/model/ledger.json")) == 6  # the third was taken twice


def test_without_a_whole_checkpoint_or_the_journal_nothing_goes_on(
    place, tiny_base, capsys, kill_at
):
    kill_at(3)
    generate(capsys, tiny_base)
    kill_at(None)
    journal = UNFINISHED / "journal.jsonl"
    kept = journal.read_text()
    journal.unlink()
    assert "journal.jsonl is missing" in generate(capsys, tiny_base, "--resume").err
    journal.write_text(kept)
    for state in (UNFINISHED / "checkpoints").glob("*/state.pt"):
        state.write_bytes(b"")
    assert "every checkpoint is damaged" in generate(capsys, tiny_base, "--resume").err


def test_a_journal_cut_off_in_its_last_line_is_mended(place, tiny_base, capsys, kill_at):
    kill_at(3)
    generate(capsys, tiny_base)
    kill_at(None)
    with (UNFINISHED / "journal.jsonl").open("a") as file:
        file.write('{"process": "ab')
    assert generate(capsys, tiny_base, "--resume").code == 0


def test_killed_while_rows_are_written_only_rows_are_left_to_do(
    place, tiny_base, capsys, monkeypatch
):
    import twinset.rowgroups as rowgroups

    monkeypatch.setattr(rowgroups, "GROUP_ROWS", 2)
    assert generate(capsys, tiny_base, "--run", "whole").code == 0
    plain, written = rowgroups.RowGroups.write, []

    def write(self, number, rows):
        if len(written) == 2:
            raise Killed
        written.append(number)
        plain(self, number, rows)

    monkeypatch.setattr(rowgroups.RowGroups, "write", write)
    assert generate(capsys, tiny_base).code == 1
    files = sorted(path.name for path in (UNFINISHED / "rows").iterdir())
    assert files == ["rows-000000.json", "rows-000001.json"]
    ledger = Path(".r.partial/model/ledger.json").read_bytes()
    monkeypatch.setattr(rowgroups.RowGroups, "write", plain)
    assert generate(capsys, tiny_base, "--resume").code == 0
    assert Path("r/model/ledger.json").read_bytes() == ledger
    assert json.loads(Path("r/share/privacy.json").read_text())["files"]["twin"]["rows"] == 6


def test_stopped_by_hand_it_says_how_to_go_on(place, tiny_base, capsys, monkeypatch):
    import os
    import signal

    from twinset.console import Console

    def stop(self, report, plan):
        if report.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(resumption, "CHECKPOINT_SECONDS", 1e9)
    monkeypatch.setattr(Console, "step", stop)
    stopped = generate(capsys, tiny_base)
    assert (stopped.code, stopped.err) == (130, "stopped; the same command with --resume goes on\n")
    assert [p.name for p in (UNFINISHED / "checkpoints").iterdir()] == ["step-3"]
    monkeypatch.undo()


COMMAND = ("t.csv", "--run", "r", "--rows", "40", "--steps", "12", "--epsilon", "20")
AT_ONCE = """
import sys
import cli, twinset.resumption, twinset.rowgroups
twinset.resumption.CHECKPOINT_SECONDS, twinset.rowgroups.GROUP_ROWS = 0.0, 4
sys.exit(cli.main())
"""


@pytest.mark.slow
def test_killed_at_thirty_random_moments_it_ends_as_planned(place, tiny_base):
    """Runs that end before the thirtieth kill are checked, and another is begun."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    rng, kills, resume = np.random.default_rng(), 0, ()
    while True:
        wait = rng.uniform(2.0, 9.0) if kills < 30 else 120.0
        given = map(str, arguments(tiny_base, COMMAND))
        command = [sys.executable, "-c", AT_ONCE, *given, *resume]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            _, err = process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            shutil.rmtree("r", ignore_errors=True)  # killed when all was done
            resume = ("--resume",) if Path(".r.partial/.unfinished").exists() else ()
            continue
        assert process.returncode == 0, err
        assert steps_in(Path("r/model/ledger.json")) == 12
        assert verify("r").rows == 40
        assert sorted(path.name for path in place.iterdir()) == ["r", "t.csv"]
        assert not Path("r/internal/unfinished").exists()
        if kills >= 30:
            return
        shutil.rmtree("r")
        resume = ()


ON_A_SMALL_DISK = """
mount -t tmpfs -o size=6m tmpfs small && cp t.csv small/ && cd small || exit 99
head -c 5985k /dev/zero > ballast
"$@"
echo "code $?"
ls -A
rm ballast
"$@" --resume || "$@"
echo "code $?"
ls -A
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_is_named_and_nothing_is_lost(place, tiny_base):
    """On a small disk of its own, in a namespace of its own."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs a namespace of one's own to mount a small disk in")
    Path("small").mkdir()
    run = [sys.executable, "-c", AT_ONCE, *map(str, arguments(tiny_base, COMMAND))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    shell = ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "sh", *run]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("code")] == ["code 2", "code 0"], done
    assert "No space left" in done.stderr or "disk is full" in done.stderr
    assert MARKER not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert lines[-2:] == ["r", "t.csv"]
