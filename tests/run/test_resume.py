"""Killed at any moment: what is kept, what is counted, and what is refused.

A run that is killed at some moment is made once, and each test goes on from a copy of its folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import (
    GOOD,
    MARKER,
    Outcome,
    arguments,
    call,
    older_run,
    run_python,
    snapshot,
)
from twinset.commandline import console  # noqa: F401 (so that names to patch exist)
from twinset.privacy.accounting.events import GaussianRelease, LabelSelection, SubsampledGaussian
from twinset.privacy.mechanism.gate import Noisy
from twinset.privacy.statement.ledger import Ledger
from twinset.release.verify import verify
from twinset.run import checkpoint, releases, story
from twinset.run.budget import Book
from twinset.run.checkpoint import Checkpoints, Journal, StepRange
from twinset.sampling import rows as row_groups
from twinset.sampling.rows import RowGroups
from twinset.sampling.twin_model import TwinModel
from twinset.training.loop import PrivateOptimizer

RUN = "t.csv --run r --rows 4 --steps 5 --epsilon 20 --base-model base --physical-batch 60".split()
PLAIN = (*RUN, "--marginal-share", "0", "--teacher-share", "0")  # labels alone are counted
COUNTED = (*RUN, "--teacher-share", "0")
TAUGHT = (*RUN, "--marginal-share", "0", "--teacher-share", "0.1")
UNTRAINED = (*COUNTED, "--steps", "0")
SELECTIVE = (*PLAIN, "--noise-policy", "selective")
PARTIAL = Path(".r.partial")
UNFINISHED = PARTIAL / "internal/unfinished"
CHECKPOINTS, JOURNAL = UNFINISHED / "checkpoints", UNFINISHED / "journal.jsonl"


class Killed(BaseException):
    """What no code catches: as good as SIGKILL, for all that is on the disk."""


def generate(*more, given=PLAIN) -> Outcome:
    return call(*arguments("base", (*given, *more)))


def die(*given, **named):
    raise Killed


def at_step(step):
    """When `step` steps are done."""
    return PrivateOptimizer, "step", lambda self, *_: self.done == step


@contextmanager
def replaced(owner, name, happen, when=lambda *given: True):
    """Have something happen in place of a call, where `when` holds of its arguments."""
    plain = getattr(owner, name)

    def replacement(*given, **named):
        return (happen if when(*given) else plain)(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, replacement)
        yield


def kill(moment, *more, given=PLAIN):
    """Run `generate`, and kill it before a call: its owner, its name, and when if not at once."""
    owner, name, *when = moment
    with replaced(owner, name, die, *when):
        assert generate(*more, given=given).code == 1


def ledger_of(run="r") -> Ledger:
    return Ledger.load(Path(run, "model/ledger.json"))


def steps_of(run="r") -> int:
    """Count the steps that the ledger of a run states."""
    return sum(e.steps for e in ledger_of(run).events if isinstance(e, SubsampledGaussian))


def releases_of(run="r") -> list[str]:
    return [e.what for e in ledger_of(run).events if isinstance(e, GaussianRelease)]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("base", "kept"))


def set_back():
    """Put the checkpoints that were kept in place of those that are there."""
    shutil.rmtree(CHECKPOINTS)
    shutil.copytree("kept", CHECKPOINTS)


@pytest.fixture(scope="module", autouse=True)
def cheap_checkpoints(tmp_path_factory):
    """A checkpoint after each step, and groups of two rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWINSET_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr(row_groups, "GROUP_ROWS", 2)
        yield


@pytest.fixture(scope="module")
def places(tmp_path_factory, tiny_base):
    """A folder where nothing was run, and one where a run was killed at step 3."""
    new, killed = (tmp_path_factory.mktemp("place") / "here" for _ in range(2))
    new.mkdir()
    shutil.copytree(tiny_base, new / "base")
    GOOD.to_csv(new / "t.csv", index=False)
    with chdir(shutil.copytree(new, killed)):
        kill(at_step(3))
        shutil.copytree(CHECKPOINTS, "kept")
    return new, killed


@pytest.fixture
def begin(places, tmp_path, monkeypatch):
    """Go into a copy of one of these folders."""

    def copy(killed: bool = False) -> Path:
        here = shutil.copytree(places[killed], tmp_path / "here")
        monkeypatch.chdir(here)
        return here

    return copy


# -- it ends as planned ---------------------------------------------------------------------------

ROWS = (RowGroups, "write", lambda self, at, rows: at == 1)
LABELS = ["label counts"]
# when -> options, what it is killed before, one time after the other, the steps that are kept then,
# and the steps and releases of the finished run
PHASES = {
    "in training": (PLAIN, [at_step(2), at_step(2), at_step(4)], [2, 2, 4], 5, LABELS),
    "in a policy": ((*PLAIN, "--noise-policy", "importance"), [at_step(2)], [2], 5, LABELS),
    "between phases": (SELECTIVE, [at_step(3), (story, "weigh_records")], [3, 5], 5, LABELS),
    "before a teacher": (TAUGHT, [(Checkpoints, "keep_teacher")], [5], 5, [*LABELS, "teacher"]),
    "after a teacher": (TAUGHT, [(TwinModel, "save")], [6], 5, [*LABELS, "teacher"]),
    "untrained": (UNTRAINED, [(TwinModel, "save")], [0], 0, [*LABELS, "token marginals"]),
    "at rows": (PLAIN, [ROWS], [5], 5, LABELS),
    "at the twin": ((*PLAIN, "--hold-out", "0.3"), [(TwinModel, "share")], [5], 5, LABELS),
}


@pytest.mark.parametrize("killed_at", [at_step(3), (TwinModel, "share")], ids=["steps", "twin"])
def test_label_values_are_selected_once(begin, killed_at):
    """What was selected is kept: a second selection with its noise would be recorded nowhere."""
    begin()
    odd = GOOD.assign(label=["pos", "neg", "pos", "neg", "odd"] * 12)
    odd.to_csv("t.csv", index=False)

    def given_values(texts, selection, randomness):
        return Noisy([{"pos": 24, "neg": 20}], selection)

    with replaced(releases, "select_label_values", given_values):
        kill(killed_at, given=PLAIN)
    with replaced(releases, "select_label_values", die):
        resumed = generate("--resume")
        assert resumed.code == 0, resumed.err
        assert generate("--resume").code == 0  # and where all is done
    ledger = ledger_of()
    assert [type(event) for event in ledger.events].count(LabelSelection) == 1
    assert ledger.records == 60
    assert "leaving out 12 of 60 rows" in Path("r/internal/notes.txt").read_text()
    assert verify("r").rows == 4


@pytest.mark.parametrize(
    ("given", "kills", "kept", "steps", "released"), PHASES.values(), ids=PHASES
)
def test_killed_and_resumed_it_ends_as_planned(begin, given, kills, kept, steps, released):
    place, resume = begin(), ()
    for moment, step in zip(kills, kept, strict=True):
        kill(moment, *resume, given=given)
        resume = ("--resume",)
        assert max(int(path.name.partition("-")[2]) for path in CHECKPOINTS.iterdir()) == step
        assert not Path("r").exists() and not (UNFINISHED / "tokens").exists()  # it holds texts
    held = {path.name: path.read_bytes() for path in (PARTIAL / "internal").glob("held-out.*")}
    with replaced(releases, "count_labels", die):  # they were counted, once
        done = generate("--resume", given=given)
    assert (done.code, MARKER in done.err) == (0, False)
    assert (steps_of(), releases_of()) == (steps, released)
    assert held == {path.name: path.read_bytes() for path in Path("r/internal").glob("held-out.*")}
    assert names_in(place) == ["r", "t.csv"] and verify("r").rows == 4


def test_resumed_training_starts_from_the_very_state(begin):
    """Without noise and with every record in each batch nothing is random: weights are equal."""
    begin()
    plain = "t.csv --rows 4 --steps 5 --no-privacy --batch-size 60 --physical-batch 60".split()
    plain += ["--marginal-share", "0", "--teacher-share", "0"]
    assert generate("--run", "whole", given=plain).code == 0
    kill(at_step(3), "--run", "r", given=plain)
    assert generate("--run", "r", "--resume", given=plain).code == 0
    for file in ("model/model.safetensors", "share/twin.csv"):
        assert Path("whole", file).read_bytes() == Path("r", file).read_bytes()


# -- other settings -------------------------------------------------------------------------------


def change_table():
    Path("t.csv").write_text(Path("t.csv").read_text().replace("number 7", "number 8"))


def change_base():
    weights = Path("base/model.safetensors")
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))


OTHER = {
    "training": (("--learning-rate", "0.5"), None, "training, plan"),
    "table": ((), change_table, "table"),
    "rows held out": (("--hold-out", "0.2"), None, "hold_out"),
    "base": ((), change_base, "base"),
}


@pytest.mark.parametrize(("again", "change", "named"), OTHER.values(), ids=OTHER)
def test_other_settings_are_refused(begin, again, change, named):
    begin(killed=True)
    partial = snapshot(PARTIAL)
    if change:
        change()
    other = generate("--resume", *again)
    assert other.code == 2 and f"other settings ({named}" in other.err and MARKER not in other.err
    assert snapshot(PARTIAL) == partial
    new = generate()  # without `resume` an unfinished run is kept
    assert new.code == 2 and "--resume resumes it" in new.err and snapshot(PARTIAL) == partial


AFTER = (
    ("sample", "r", "--output", "o.csv"),
    ("evaluate", "r", "--train", "t.csv"),
    ("audit", "r", "--members", "t.csv"),
    ("report", "r"),
    ("verify", "r"),
)


@pytest.mark.parametrize("after", AFTER, ids=lambda after: after[0])
def test_what_comes_after_a_run_finds_a_stopped_one(begin, after):
    """It lies in a hidden folder. The line names it and says how to go on."""
    place = begin(killed=True)
    told = call(*after)
    assert told.code == 2 and len(told.err.splitlines()) == 1, told.err
    assert (
        f"{place.resolve()}/.r.partial" in told.err
        and "generate TABLE --run r --resume" in told.err
    )
    shutil.copytree(PARTIAL / "internal", "r/internal")  # the control: something else is there
    assert ".r.partial" not in call(*after).err
    shutil.rmtree("r")
    (PARTIAL / ".unfinished").unlink()  # and before a checkpoint
    assert "was killed early" in call(*after).err


# -- steps taken twice ----------------------------------------------------------------------------


def test_steps_taken_twice_are_two_releases_accepted_once(begin, monkeypatch):
    begin(killed=True)
    kill(at_step(4), "--resume")
    set_back()
    again = generate("--resume")
    assert again.code == 2 and "another process took the run from step 3 to step 4" in again.err
    kill(at_step(4), "--resume", "--accept-spend", "--budget", "99")
    shutil.copytree(".", "../there")

    def steps_counted() -> int:  # in the table's account
        (own,) = Book.load(Path("t.csv.budget.json")).runs
        return sum(e.steps for e in own.ledger.events if isinstance(e, SubsampledGaussian))

    assert steps_counted() == 6  # as it may spend
    kill((story, "teach"), "--resume")
    assert steps_counted() == 6
    assert generate("--resume").code == 0  # what was accepted once is not asked again
    assert steps_of() == steps_counted() == 6  # 5, and the one that was taken twice
    monkeypatch.chdir("../there")
    set_back()  # control: without the journal the ledger is short
    monkeypatch.setattr(Journal, "uncounted", lambda self, counted: [])
    assert generate("--resume").code == 0 and steps_of() == 5


def test_two_teachers_are_two_releases(begin):
    begin()
    kill((Checkpoints, "keep_teacher"), given=TAUGHT)
    shutil.copytree(CHECKPOINTS, "kept")
    kill((TwinModel, "save"), "--resume", given=TAUGHT)
    set_back()
    refused = generate("--resume", given=TAUGHT)
    assert refused.code == 2 and "from step 5 to step 6" in refused.err
    assert generate("--resume", "--accept-spend", given=TAUGHT).code == 0
    assert (releases_of().count("teacher"), steps_of()) == (2, 5)


def test_steps_accepted_in_a_phase_without_noise_are_counted_in_the_other(begin):
    """A state of phase 1 does not hold them yet, though they were accepted when it was made."""
    begin()
    kill(at_step(3), given=SELECTIVE)
    shutil.copytree(CHECKPOINTS, "kept")
    kill((TwinModel, "save"), "--resume", given=SELECTIVE)  # once all ten steps are kept
    set_back()
    kill(at_step(4), "--resume", "--accept-spend", given=SELECTIVE)
    again = generate("--resume", given=SELECTIVE)
    assert again.code == 2 and "from step 3 to step 10" in again.err
    assert generate("--resume", "--accept-spend", given=SELECTIVE).code == 0
    assert steps_of() == 10


def test_killed_between_a_state_and_its_line_the_next_process_writes_it(begin):
    begin(killed=True)
    kill((Journal, "reach", lambda self, step: step == 4), "--resume")
    kill(at_step(4), "--resume")  # writes the line of the one before, and leaves nothing new
    set_back()
    assert "from step 3 to step 4" in generate("--resume").err


def test_releases_missing_in_a_state_are_found(tmp_path):
    """Another process went on from an older state. A killed one could not finish its line."""
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.begin(0, {})
    first.reach(3)
    counted, other = {first.process: 3}, Journal(path)
    assert Journal(path).uncounted(counted) == []
    other.begin(2, counted)
    other.reach(5)
    with path.open("a") as file:
        file.write('{"process": "no hex')
    assert Journal(path).uncounted(counted) == [StepRange(other.process, 2, 5)]
    assert path.read_text().endswith("}\n")


# -- damage ---------------------------------------------------------------------------------------

STATE, LEDGER = (CHECKPOINTS / "step-3" / name for name in ("state.pt", "ledger.json"))
TWICE = "another process took the run from step 2 to step 3"
LOST = ("every checkpoint is damaged", "stays spent")
DAMAGE = {
    "state cut": (lambda: STATE.write_bytes(STATE.read_bytes()[:-40]), ("step-3/state.pt", TWICE)),
    "ledger altered": (
        lambda: LEDGER.write_text(LEDGER.read_text().replace("2", "1", 1)),
        ("step-3/ledger.json", TWICE),
    ),
    "no journal": (JOURNAL.unlink, ("journal.jsonl is missing",)),
    "no whole state": (lambda: [p.write_bytes(b"") for p in CHECKPOINTS.glob("*/state.pt")], LOST),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_and_an_older_state_taken_only_if_both_are_counted(begin, damage, said):
    begin(killed=True)
    damage()
    refused = generate("--resume")
    assert refused.code == 2 and all(part in refused.err for part in said), refused.err
    if "step-3/state.pt" in said:
        assert generate("--resume", "--accept-spend").code == 0
        assert steps_of() == 6  # the third was taken twice


# -- after training -------------------------------------------------------------------------------


def test_a_failure_after_training_spends_no_epsilon_twice(begin):
    """And a trained model is not deleted without a word."""
    place = begin()
    with replaced(sys.modules["twinset.sampling.sampler"], "is_usable", lambda text: False):
        failed = generate()
    err, model = failed.err, snapshot(PARTIAL / "model")
    assert failed.code == 2 and len(err.splitlines()) == 1
    assert "usable" in err and "--resume" in err and "--overwrite" not in err
    named = err.split("`twinset ")[1].split("`")[0]
    assert named == f"sample {place.resolve()}/.r.partial --output FILE"
    for refused in (generate(), generate("--resume", "--learning-rate", "0.5")):
        assert refused.code == 2 and "stays spent" in refused.err
        assert f"`twinset {named}" in refused.err
    bad = generate("--overwrite", "--text", "nothing")
    assert bad.code == 2 and "--overwrite will delete its trained model" in bad.err
    assert snapshot(PARTIAL / "model") == model
    assert call(*named.replace("FILE", "o.csv").split(), "--rows", "3", "--quiet").code == 0
    assert generate("--resume", "--temperature", "0.9").code == 0
    assert steps_of() == 5


# -- stopped by Ctrl-C or SIGTERM: code 130, one line, nothing half-written and nothing lost ------

ANYWHERE = {
    "reading": "twinset.run.story.read_frame",
    "counting": "twinset.run.releases.count_labels",
    "training": "twinset.commandline.console.Console.step",
    "sampling": "twinset.sampling.sampler.Sampler.sample",
    "publishing": "twinset.release.publish.shutil.copyfile",
}
GIVEN = ("t.csv", "--rows", "4", "--run", "older", "--output", "o.csv", "--marginal-share", "0")
GIVEN += ("--teacher-share", "0", "--physical-batch", "60", "--epsilon", "20")
HIDDEN = ".older.partial"


@pytest.mark.parametrize("where", ANYWHERE)
def test_stopped_anywhere_leaves_nothing_half_written(good_table, tiny_base, monkeypatch, where):
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
    after = snapshot(good_table).items()
    assert {name: facts for name, facts in after if not name.startswith(HIDDEN)} == before
    can_resume = where not in ("reading", "counting")
    assert Path(HIDDEN).exists() == can_resume
    how = "Run the same command with --resume" if can_resume else "Nothing half-written"
    assert outcome.err.splitlines()[-1].startswith(f"Stopped. {how}")
    if where == "publishing":
        assert call(*given, "--resume").code == 0 and not Path(HIDDEN).exists()
        assert call("verify", "o.csv").code == 0


AT_ONCE = """
import sys
import cli, twinset.run.checkpoint, twinset.sampling.rows
twinset.run.checkpoint.CHECKPOINT_SECONDS, twinset.sampling.rows.GROUP_ROWS = 0.0, 4
sys.exit(cli.main())
"""
COMMAND = ("t.csv", "--run", "r", "--rows", "40", "--steps", "12", "--epsilon", "20")


@pytest.mark.slow
def test_killed_at_thirty_random_moments_it_ends_as_planned(begin):
    """Runs that end before the thirtieth kill are checked, and another is started."""
    place, rng, kills, resume = begin(), np.random.default_rng(), 0, ()
    while True:
        wait = rng.uniform(2.0, 9.0) if kills < 30 else 120.0
        try:
            ended = run_python("-c", AT_ONCE, *arguments("base", COMMAND), *resume, timeout=wait)
        except subprocess.TimeoutExpired:
            kills += 1
            shutil.rmtree("r", ignore_errors=True)  # killed when all was done
            resume = ("--resume",) if (PARTIAL / ".unfinished").exists() else ()
            continue
        assert ended.returncode == 0, ended.stderr
        assert steps_of() == 12 and verify("r").rows == 40 and names_in(place) == ["r", "t.csv"]
        if kills >= 30:
            return
        shutil.rmtree("r")
        resume = ()
