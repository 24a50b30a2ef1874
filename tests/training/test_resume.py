"""Killed at any moment: what is kept, what is counted, and what is refused."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import twinset.training.resume as resumption
import twinset.training.step_log as journal
from tests.helpers.commands import MARKER, arguments, good_table_in, run_twinset, snapshot
from twinset.errors import InputError
from twinset.privacy.accounting.events import SubsampledGaussian
from twinset.privacy.statement.ledger import Ledger
from twinset.release.verify import verify
from twinset.training.private_optimizer import PrivateOptimizer
from twinset.training.step_log import StepLog, StepRange

RUN = ("t.csv", "--run", "r", "--rows", "6", "--steps", "5", "--epsilon", "20")
ROOT = Path(__file__).parents[2]
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
    plain = PrivateOptimizer.apply

    def arm(step):
        def killing(self, gradients):
            if self.done == step:
                raise Killed
            plain(self, gradients)

        monkeypatch.setattr(PrivateOptimizer, "apply", plain if step is None else killing)

    return arm


@pytest.fixture
def meanwhile(monkeypatch):
    """Have something happen once, while the next run has done `step` steps."""
    plain = PrivateOptimizer.apply

    def arm(step, happen):
        def stepping(self, gradients):
            if self.done == step:
                monkeypatch.setattr(PrivateOptimizer, "apply", plain)
                happen()
            plain(self, gradients)

        monkeypatch.setattr(PrivateOptimizer, "apply", stepping)

    return arm


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without locks, as of some networks."""

    def refuse(self, **_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(journal.FileLock, "acquire", refuse)


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
    assert again.code == 2 and "another process took the run from step 3 to step 5" in again.err
    assert generate(capsys, tiny_base, "--resume", "--accept-spend").code == 0
    assert steps_in(Path("first/model/ledger.json")) == 5
    assert steps_in(Path("r/model/ledger.json")) == 7  # 5, and the 2 that were taken twice


COPY = (*RUN, "--run", "copy", "--resume")


def stopped_and_copied(capsys, base, kill_at, *more):
    """Leave a run that was killed at step 3, and a copy of its folder."""
    kill_at(3)
    generate(capsys, base, *more)
    kill_at(None)
    shutil.copytree(".r.partial", ".copy.partial")


def test_while_one_trains_no_copy_does(place, tiny_base, capsys, kill_at, meanwhile):
    stopped_and_copied(capsys, tiny_base, kill_at)
    before, others = snapshot(place / ".copy.partial"), []

    def other():
        others.append(generate(capsys, tiny_base, given=COPY))
        others.append(generate(capsys, tiny_base, "--accept-spend", given=COPY))

    meanwhile(3, other)
    assert generate(capsys, tiny_base, "--resume").code == 0
    assert [one.code for one in others] == [2, 2]
    assert all("another process is training this run now" in one.err for one in others)
    assert snapshot(place / ".copy.partial").keys() == before.keys()
    after = generate(capsys, tiny_base, given=COPY)
    assert after.code == 2 and "from step 3 to step 5" in after.err
    assert generate(capsys, tiny_base, "--accept-spend", given=COPY).code == 0
    found = [steps_in(Path(run, "model/ledger.json")) for run in ("r", "copy")]
    assert found == [5, 7]


@pytest.mark.parametrize("looks_again", [True, False])
def test_where_no_lock_is_to_be_had_the_second_look_sees_the_other(
    place, tiny_base, capsys, kill_at, meanwhile, monkeypatch, no_locks, looks_again
):
    """Both begin from one state, unseen. The negative control looks once: both are accepted."""
    stopped_and_copied(capsys, tiny_base, kill_at)
    others = []
    meanwhile(3, lambda: others.append(generate(capsys, tiny_base, given=COPY)))
    if not looks_again:
        monkeypatch.setattr(resumption.Resumption, "_others", lambda self: [])
    mine = generate(capsys, tiny_base, "--resume")
    assert others[0].code == 0 and steps_in(Path("copy/model/ledger.json")) == 5
    if not looks_again:
        assert mine.code == 0 and steps_in(Path("r/model/ledger.json")) == 5
        weights = [Path(run, "model/model.safetensors").read_bytes() for run in ("r", "copy")]
        assert weights[0] != weights[1]  # two releases, and each says that it was one
        return
    assert mine.code == 2 and "from step 3 to step 5" in mine.err and "--accept-spend" in mine.err
    assert not Path(".r.partial/model/checksums.json").exists()
    assert generate(capsys, tiny_base, "--resume").code == 2
    assert generate(capsys, tiny_base, "--resume", "--accept-spend").code == 0
    assert steps_in(Path("r/model/ledger.json")) == 7


def test_who_accepts_beforehand_counts_who_trains_meanwhile(
    place, tiny_base, capsys, kill_at, meanwhile, no_locks
):
    stopped_and_copied(capsys, tiny_base, kill_at)
    meanwhile(3, lambda: generate(capsys, tiny_base, given=COPY))
    assert generate(capsys, tiny_base, "--resume", "--accept-spend").code == 0
    assert steps_in(Path("r/model/ledger.json")) == 7


def test_a_state_left_beside_another_process_holds_none_of_its_steps(
    place, tiny_base, capsys, kill_at, meanwhile, no_locks
):
    """The other took steps 4 and 5, this one step 4: from there all three count, and one more."""
    stopped_and_copied(capsys, tiny_base, kill_at)

    def other():
        generate(capsys, tiny_base, given=COPY)
        kill_at(4)

    meanwhile(3, other)
    assert generate(capsys, tiny_base, "--resume").code == 1
    kill_at(None)
    assert "from step 3 to step 5" in generate(capsys, tiny_base, "--resume").err
    assert generate(capsys, tiny_base, "--resume", "--accept-spend").code == 0
    assert steps_in(Path("r/model/ledger.json")) == 7


def test_who_began_and_left_nothing_is_nobody(place, tiny_base, capsys, kill_at):
    stopped_and_copied(capsys, tiny_base, kill_at)
    kill_at(3)
    assert generate(capsys, tiny_base, "--resume").code == 1
    kill_at(None)
    assert generate(capsys, tiny_base, given=COPY).code == 0
    assert steps_in(Path("copy/model/ledger.json")) == 5


def test_killed_between_a_state_and_its_line_the_next_process_writes_it(
    place, tiny_base, capsys, kill_at, monkeypatch
):
    stopped_and_copied(capsys, tiny_base, kill_at)
    plain = StepLog.reach

    def reach(self, step):
        if step == 4:
            raise Killed
        plain(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(StepLog, "reach", reach)
        assert generate(capsys, tiny_base, "--resume").code == 1
    assert generate(capsys, tiny_base, "--resume").code == 0
    assert "from step 3 to step 5" in generate(capsys, tiny_base, given=COPY).err
    assert generate(capsys, tiny_base, "--accept-spend", given=COPY).code == 0
    assert steps_in(Path("copy/model/ledger.json")) == 7  # and not 6


def test_steps_accepted_in_a_phase_without_noise_are_counted_in_the_other(
    place, tiny_base, capsys, kill_at
):
    """A state of phase 1 does not hold them yet, though they were accepted when it was made."""
    more = ("--noise-policy", "selective")
    stopped_and_copied(capsys, tiny_base, kill_at, *more)
    assert generate(capsys, tiny_base, *more, "--resume").code == 0
    kill_at(4)
    assert generate(capsys, tiny_base, *more, "--accept-spend", given=COPY).code == 1
    kill_at(None)
    again = generate(capsys, tiny_base, *more, given=COPY)
    assert again.code == 2 and "from step 3 to step 10" in again.err
    assert generate(capsys, tiny_base, *more, "--accept-spend", given=COPY).code == 0
    found = [steps_in(Path(run, "model/ledger.json")) for run in ("r", "copy")]
    assert found == [5, 10]


@pytest.mark.parametrize("removed", [UNFINISHED / "checkpoints", UNFINISHED])
def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(
    place, tiny_base, capsys, kill_at, removed
):
    kill_at(3)
    generate(capsys, tiny_base)
    kill_at(None)
    shutil.rmtree(removed)
    again = generate(capsys, tiny_base, "--resume")
    assert again.code == 2 and "checkpoints are missing" in again.err
    assert "stays spent" in again.err


def test_without_the_cache_it_says_what_is_not_seen(place, tiny_base, capsys, monkeypatch):
    Path("file").write_text("")
    monkeypatch.setenv("TWINSET_CACHE", str(place / "file" / "cache"))
    outcome = generate(capsys, tiny_base)
    assert outcome.code == 0 and "neither would see the steps of the other" in outcome.err


def test_a_cache_that_is_lost_meanwhile_is_told_once(place, tiny_base, capsys, meanwhile):
    def lose():
        shutil.rmtree(place.parent / "cache")
        (place.parent / "cache").write_text("")

    meanwhile(3, lose)
    outcome = generate(capsys, tiny_base)
    assert outcome.code == 0 and outcome.err.count("neither would see") == 1


# what happened in a copy of a run that was left at step 3 -> what the run's state lacks
ELSEWHERE = {
    "nothing": ([], []),
    "begun, and died": ([("begin", 3)], []),
    "one state": ([("begin", 3), ("reach", 4)], [(3, 4)]),
    "to the end": ([("begin", 3), ("reach", 4), ("reach", 5)], [(3, 5)]),
    "from an older state": ([("begin", 2), ("reach", 5)], [(2, 5)]),
    "anew": ([("begin", 0), ("reach", 1)], [(0, 1)]),
}


@pytest.mark.parametrize(("done", "lacking"), ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("further", [0, 1])
def test_what_a_copy_did_is_seen_whoever_writes_first(tmp_path, done, lacking, further):
    own, copy, cache = (tmp_path / name for name in ("own", "copy", "cache"))
    own.mkdir()
    first = StepLog(own, cache)
    cache.mkdir()
    first.begin(0, {})
    first.reach(3)
    shutil.copytree(own, copy)
    mine, other = StepLog(own, cache), StepLog(copy, cache)
    counted = {first.process: 3}
    mine.begin(3, counted)
    for call, step in done:
        other.begin(step, counted) if call == "begin" else other.reach(step)
    if further:
        mine.reach(4)
    assert mine.uncounted(counted) == [StepRange(other.process, *steps) for steps in lacking]
    mirrored = [StepRange(mine.process, 3, 4)] if further else []
    assert other.uncounted(counted) == mirrored


def test_the_lock_is_the_runs_whatever_its_folder_is_called(tmp_path):
    (tmp_path / "own").mkdir()
    one = StepLog(tmp_path / "own", tmp_path / "cache")
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    other = StepLog(tmp_path / "copy", tmp_path / "cache")
    with one.alone():
        with pytest.raises(InputError, match="another process is training"), other.alone():
            pytest.fail("the block ran")
    with other.alone():
        assert one.sees_copies and other.sees_copies


HOLDING = """
import sys, time
from pathlib import Path
from twinset.training.step_log import StepLog
journal = StepLog(*map(Path, sys.argv[1:3]))
with journal.alone():
    journal.begin(3, {})
    for step in sys.argv[3:]:
        journal.reach(int(step))
    print(journal.process, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("reached", [(), (4,)])
def test_a_live_process_is_seen_and_a_killed_one_by_what_it_left_alone(tmp_path, reached):
    own, copy, cache = (tmp_path / name for name in ("own", "copy", "cache"))
    own.mkdir()
    mine = StepLog(own, cache)
    shutil.copytree(own, copy)
    command = [sys.executable, "-c", HOLDING, *map(str, (copy, cache, *reached))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        with pytest.raises(InputError, match="another process is training"), mine.alone():
            pytest.fail("the block ran")
        other.kill()
    with mine.alone():
        assert mine.uncounted({}) == [StepRange(name, 3, step) for step in reached]


@pytest.mark.parametrize(
    "line", ["null", "[]", "{}", '{"run": "../../x"}', '{"process": "a", "begun": 0, "reached": 1}']
)
def test_a_line_that_is_none_is_named(tmp_path, line):
    StepLog(tmp_path, tmp_path)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"journal\.jsonl, line 2: is damaged"):
        StepLog(tmp_path, tmp_path)


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
        ("checksums.json", lambda path: path.write_text("{")),
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
    assert "another process took the run from step 2 to step 3" in refused.err
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
    (mirror,) = Path("..", "cache", "journals").glob("*.jsonl")
    for path in (UNFINISHED / "journal.jsonl", mirror):
        with path.open("a") as file:
            file.write('{"process": "ab')
    assert generate(capsys, tiny_base, "--resume").code == 0
    assert mirror.read_text().count('"ab') == 0


def test_killed_while_rows_are_written_only_rows_are_left_to_do(
    place, tiny_base, capsys, monkeypatch
):
    from twinset.sampling import row_shards
    from twinset.sampling.sampler import RowGroups

    monkeypatch.setattr(row_shards, "GROUP_ROWS", 2)
    assert generate(capsys, tiny_base, "--run", "whole").code == 0
    plain, written = RowGroups.write, []

    def write(self, number, rows):
        if len(written) == 2:
            raise Killed
        written.append(number)
        plain(self, number, rows)

    monkeypatch.setattr(RowGroups, "write", write)
    assert generate(capsys, tiny_base).code == 1
    files = sorted(path.name for path in (UNFINISHED / "rows").glob("rows-*"))
    assert files == ["rows-000000.json", "rows-000001.json"]
    ledger = Path(".r.partial/model/ledger.json").read_bytes()
    monkeypatch.setattr(RowGroups, "write", plain)
    assert generate(capsys, tiny_base, "--resume").code == 0
    assert Path("r/model/ledger.json").read_bytes() == ledger
    assert json.loads(Path("r/share/privacy.json").read_text())["files"]["twin"]["rows"] == 6


SAMPLING = ("--rows", "4", "--temperature", "0.7", "--guidance", "0.5")


def test_once_the_model_is_trained_rows_and_decoding_may_differ(
    place, tiny_base, capsys, monkeypatch
):
    """Rows that were drawn before belong to other settings: none of them is in the twin."""
    from twinset.sampling import row_shards
    from twinset.sampling.sampler import RowGroups

    monkeypatch.setattr(row_shards, "GROUP_ROWS", 2)
    plain = RowGroups.write

    def write(self, number, rows):
        if number == 1:
            raise Killed
        plain(self, number, rows)

    monkeypatch.setattr(RowGroups, "write", write)
    assert generate(capsys, tiny_base).code == 1
    assert (UNFINISHED / "rows/rows-000000.json").is_file()
    model = snapshot(Path(".r.partial/model"))
    monkeypatch.setattr(RowGroups, "write", plain)
    assert generate(capsys, tiny_base, *SAMPLING, "--resume").code == 0
    assert snapshot(Path("r/model")) == model
    stored = json.loads(Path("r/internal/config.json").read_text())
    assert (stored["sampling"]["temperature"], stored["rows"]["rows"]) == (0.7, 4)
    anew = run_twinset(capsys, "sample", "r", *SAMPLING, "--output", "o.csv", "--quiet")
    assert anew.code == 0
    assert Path("r/share/twin.csv").read_bytes() == Path("o.csv").read_bytes()
    assert verify("r").rows == 4


def test_no_failure_after_training_makes_anybody_pay_twice(place, tiny_base, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("twinset.sampling.sampler.is_usable", lambda text: False)
        failed = generate(capsys, tiny_base)
    assert failed.code == 2 and len(failed.err.splitlines()) == 1
    assert "usable" in failed.err and "--resume" in failed.err and "--overwrite" not in failed.err
    named = failed.err.split("`twinset ")[1].split("`")[0]
    assert named == f"sample {place.resolve()}/.r.partial --output FILE"
    command = named.replace("FILE", "o.csv").split()
    assert run_twinset(capsys, *command, "--rows", "3", "--quiet").code == 0
    assert verify("o.csv").rows == 3
    assert generate(capsys, tiny_base, "--resume", "--temperature", "0.9").code == 0
    assert steps_in(Path("r/model/ledger.json")) == 5


def test_an_error_nobody_foresaw_is_told_with_what_is_safe(place, tiny_base, capsys, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(MARKER)

    monkeypatch.setattr("twinset.sampling.twin_model.TwinModel.sample", fail)
    failed = generate(capsys, tiny_base)
    warning, error = failed.err.splitlines()
    assert failed.code == 1 and MARKER not in failed.err
    assert warning.startswith("WARNING: the trained model is safe") and "twinset sample" in warning
    assert error.startswith("error: unexpected RuntimeError")


def test_a_trained_model_is_not_deleted_unsaid(place, tiny_base, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("twinset.sampling.sampler.is_usable", lambda text: False)
        generate(capsys, tiny_base)
    model = snapshot(Path(".r.partial/model"))
    waits = generate(capsys, tiny_base)
    other = generate(capsys, tiny_base, "--resume", "--learning-rate", "0.5")
    for refused in (waits, other):
        assert refused.code == 2 and "stays spent" in refused.err
        assert f"`twinset sample {place.resolve()}/.r.partial" in refused.err
    bad = generate(capsys, tiny_base, "--overwrite", "--text", "nothing")
    assert bad.code == 2 and "--overwrite will delete its trained model" in bad.err
    assert snapshot(Path(".r.partial/model")) == model
    assert generate(capsys, tiny_base, "--overwrite").code == 0
    exists = generate(capsys, tiny_base)
    assert exists.code == 2 and f"`twinset sample {place.resolve()}/r " in exists.err
    assert "stays spent" in exists.err
    assert "WARNING" in generate(capsys, tiny_base, "--overwrite").err
    assert sorted(path.name for path in place.iterdir()) == ["r", "t.csv"]


def test_stopped_by_hand_it_says_how_to_go_on(place, tiny_base, capsys, monkeypatch):
    import os
    import signal

    from twinset.commandline.console import Console

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
import cli, twinset.training.resume, twinset.sampling.row_shards
twinset.training.resume.CHECKPOINT_SECONDS, twinset.sampling.row_shards.GROUP_ROWS = 0.0, 4
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
