"""Killed at any moment: what is kept, what is counted, and what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import (
    COLUMNS,
    MARKER,
    arguments,
    good_table_in,
    python_environment,
    run_twinset,
    snapshot,
)
from tests.helpers.machines import machine_of
from twinset.commandline.console import Console
from twinset.config.plan import RELEASED
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.privacy.accounting.events import TEACHER, SubsampledGaussian
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.statement.ledger import Ledger
from twinset.release.verify import verify
from twinset.run import checkpoint, releases, story
from twinset.run.checkpoint import Checkpoints, Journal, StepRange
from twinset.sampling import rows as row_groups
from twinset.sampling.rows import RowGroups
from twinset.sampling.twin_model import TwinModel
from twinset.training.loop import PrivateOptimizer

RUN = tuple("t.csv --run r --rows 6 --steps 5 --epsilon 20 --teacher-share 0".split())
UNFINISHED = Path(".r.partial/internal/unfinished")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", -1.0)  # after each step
    (tmp_path / "here").mkdir()
    return good_table_in(tmp_path / "here", monkeypatch)


@pytest.fixture
def generate(place, tiny_base, capsys):
    """Run `generate`: of the run `r` where nothing else is given."""
    return lambda *more, given=RUN: run_twinset(capsys, *arguments(tiny_base, (*given, *more)))


class Killed(BaseException):
    """What no code catches: as good as SIGKILL, for all that is on the disk."""


@pytest.fixture
def at_step(monkeypatch):
    """Have something happen, once, when a run has done `step` steps."""
    plain = PrivateOptimizer.apply

    def arm(step, happen):
        def stepping(self, gradients):
            if self.done == step:
                monkeypatch.setattr(PrivateOptimizer, "apply", plain)
                happen()
            plain(self, gradients)

        monkeypatch.setattr(PrivateOptimizer, "apply", stepping)

    return arm


def die():
    raise Killed


@pytest.fixture
def killed(at_step, generate):
    """Run `generate`, and kill it once `step` steps are done."""

    def run(step, *more, given=RUN):
        at_step(step, die)
        assert generate(*more, given=given).code == 1

    return run


def steps_of(run) -> int:
    """Count the steps that the ledger of a run states."""
    events = Ledger.load(Path(run, "model/ledger.json")).events
    return sum(e.steps for e in events if isinstance(e, SubsampledGaussian))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def weights_of(run) -> bytes:
    return Path(run, "model/model.safetensors").read_bytes()


def teachers_of(run) -> int:
    """Count the teachers that the ledger of a run states."""
    events = Ledger.load(Path(run, "model/ledger.json")).events
    return sum(getattr(event, "what", None) == TEACHER for event in events)


TAUGHT, UNTRAINED = ("--teacher-share", "0.1"), ("--steps", "0")


@pytest.fixture
def killed_before(generate, monkeypatch):
    """Run `generate` with a teacher, and kill it before a method is called."""

    def run(owner, method, *more):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, lambda *given: die())
            assert generate(*TAUGHT, *more).code == 1

    return run


@pytest.mark.parametrize(
    ("owner", "method", "fits"),
    [(Checkpoints, "keep_teacher", 1), (TwinModel, "save", 0)],
)
def test_a_teacher_is_released_anew_only_where_nobody_saw_it(
    generate, killed_before, monkeypatch, owner, method, fits
):
    killed_before(owner, method)
    fitted, plain = [], story.fit_teacher
    monkeypatch.setattr(story, "fit_teacher", lambda *of: fitted.append(0) or plain(*of))
    assert generate("--resume", *TAUGHT).code == 0
    assert (len(fitted), teachers_of("r"), steps_of("r")) == (fits, 1, 5)
    assert TwinModel.load("r").words is not None


@pytest.mark.parametrize(("method", "fits"), [("keep_teacher", 1), ("save", 0)])
def test_a_run_without_steps_resumes_with_what_it_counted(
    generate, killed_before, monkeypatch, method, fits
):
    owner = TwinModel if method == "save" else Checkpoints
    killed_before(owner, method, *UNTRAINED)
    fitted, plain = [], story.fit_teacher
    monkeypatch.setattr(story, "fit_teacher", lambda *of: fitted.append(0) or plain(*of))
    monkeypatch.setattr(story, "count_labels", lambda run: die())
    assert generate("--resume", *TAUGHT, *UNTRAINED).code == 0
    assert (len(fitted), teachers_of("r"), steps_of("r")) == (fits, 1, 0)
    ledger = Ledger.load(Path("r/model/ledger.json"))
    assert [event.what for event in ledger.events] == list(RELEASED)


def test_a_prompt_that_was_chosen_is_not_chosen_again(generate, killed, monkeypatch):
    """Steps before and after would be behind two prompts, if rounding tipped the balance."""
    kind = "a question"
    monkeypatch.setattr(releases, "FEWEST_RECORDS", 1)
    misfits = lambda base, t, marginals: 99.0 * (kind not in t.pattern)  # noqa: E731
    monkeypatch.setattr(releases, "prompt_misfit", misfits)
    killed(3)
    monkeypatch.setattr(releases, "prompt_misfit", lambda *given: die())
    assert generate("--resume").code == 0
    assert kind in TwinModel.load("r").template.pattern
    assert kind in Path("r/share/README.md").read_text("utf-8")


@pytest.mark.parametrize("policy", ["uniform", "importance", "selective"])
def test_killed_and_resumed_it_ends_as_planned(place, generate, killed, capsys, policy):
    more = ("--noise-policy", policy)
    killed(2, *more)
    assert not (UNFINISHED / "tokens").exists()  # they hold the texts
    for step in (3, 4):
        killed(step, *more, "--resume")
        assert not Path("r").exists()
    done = generate(*more, "--resume")
    assert (done.code, MARKER in done.err) == (0, False)
    assert steps_of("r") == 5
    kinds = [event.__class__.__name__ for event in Ledger.load(Path("r/model/ledger.json")).events]
    assert kinds.count("GaussianRelease") == 2  # label counts and token marginals, each once
    noise = {"noise.json", "noise.png"} if policy == "importance" else set()
    written = {path.name for path in Path("r/internal").iterdir()}
    assert written == {"config.json", "metrics.jsonl", "notes.txt"} | noise
    assert names_in(place) == ["r", "t.csv"]
    assert run_twinset(capsys, "verify", "r").code == 0


def test_resumed_training_starts_from_the_very_state(generate, killed):
    """Without noise and with every record in each batch nothing is random: weights are equal."""
    plain = ("t.csv", "--rows", "6", "--steps", "5", "--no-privacy", "--batch-size", "60")
    assert generate("--run", "whole", given=plain).code == 0
    killed(3, "--run", "r", given=plain)
    assert generate("--run", "r", "--resume", given=plain).code == 0
    assert weights_of("whole") == weights_of("r")
    assert Path("whole/share/twin.csv").read_bytes() == Path("r/share/twin.csv").read_bytes()


def test_without_resume_an_unfinished_run_is_kept(place, generate, killed):
    killed(3)
    before = snapshot(place)
    again = generate()
    assert again.code == 2 and "--resume resumes it" in again.err
    assert snapshot(place) == before
    assert generate("--overwrite").code == 0
    assert names_in(place) == ["r", "t.csv"]


def test_killed_before_the_first_checkpoint_nothing_is_left(place, generate, killed):
    before = snapshot(place)
    killed(0)
    assert snapshot(place) == before
    assert "no unfinished run" in generate("--resume").err


def write_scale(base, low, high):
    stated = WeightScale(load_base(str(base)).origin, low, high, "public texts", (0.2,) * 5)
    Path("scale.json").write_text(json.dumps(stated.to_dict()))


ADAPTIVE = ("--noise-policy", "adaptive", "--weight-scale", "scale.json")


@pytest.fixture
def weighed(monkeypatch):
    """The privacy weights of each run."""
    plain, found = story.weigh_records, []

    def weights(*given):
        found.append(plain(*given))
        return found[-1]

    monkeypatch.setattr(story, "weigh_records", weights)
    return found


def test_records_are_weighed_by_the_scale_that_the_ledger_states(
    place, tiny_base, generate, killed, weighed
):
    """Also where nothing refused another file, as of a run of an older version."""
    write_scale(tiny_base, 1.0, 2.0)  # by which every text here has weight 1
    killed(2, *ADAPTIVE)
    write_scale(tiny_base, 90.0, 99.0)  # by which every text has weight 0
    begun = Path(".r.partial/internal/config.json")
    stated = json.loads(begun.read_text())
    begun.write_text(json.dumps({k: v for k, v in stated.items() if k != "scale"}))
    assert generate(*ADAPTIVE, "--resume").code == 0
    assert Ledger.load(Path("r/model/ledger.json")).weight_scale.low == 1.0
    assert [set(weights.tolist()) for weights in weighed] == [{1.0}, {1.0}]


def change_table():
    Path("t.csv").write_text(Path("t.csv").read_text().replace("number 7", "number 8"))


def change_base():
    weights = Path("base/model.safetensors")
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))


@pytest.mark.parametrize(
    ("begun", "again", "change", "named"),
    [
        ((), ("--learning-rate", "0.5"), None, "training, plan"),
        ((), (), change_table, "table"),
        (("--hold-out", "0.3"), ("--hold-out", "0.2"), None, "hold_out"),
        (("--base-model", "base"), ("--base-model", "base"), change_base, "base"),
        (ADAPTIVE, ADAPTIVE, lambda: write_scale("base", 90.0, 99.0), "scale"),
    ],
    ids=["training", "table", "hold-out", "base", "scale"],
)
def test_other_settings_are_refused(
    place, tiny_base, generate, killed, begun, again, change, named
):
    shutil.copytree(tiny_base, "base")
    write_scale(tiny_base, 1.0, 2.0)
    killed(3, *begun)
    partial = snapshot(place / ".r.partial")
    if change:
        change()
    other = generate("--resume", *again)
    assert other.code == 2 and f"other settings ({named})" in other.err and MARKER not in other.err
    assert snapshot(place / ".r.partial") == partial


@pytest.fixture
def timed(place, tiny_base, capsys):
    """Run `generate` where the time chooses the steps."""
    given = ["generate", "t.csv", *COLUMNS, "--base-model", tiny_base, "--run", "r", "--quiet"]
    given += "--max-tokens 12 --epsilon 1000 --max-minutes 1".split()
    given += "--marginal-share 0 --teacher-share 0".split()
    return lambda *more: run_twinset(capsys, *given, *more)


@pytest.mark.parametrize("faster", [20, 1 / 20], ids=["faster", "slower"])
def test_resumed_on_another_machine_it_keeps_its_plan(timed, at_step, monkeypatch, faster):
    machine_of(monkeypatch, record=0.03)
    at_step(3, die)
    assert timed().code == 1
    begun = json.loads(Path(".r.partial/internal/config.json").read_text())
    assert 8 <= begun["plan"]["steps"] < 16  # with a rate of their own
    assert 0 < begun["rows"]["seconds"] < 60
    machine_of(monkeypatch, record=0.03 / faster)
    assert timed("--resume").code == 0
    assert steps_of("r") == begun["plan"]["steps"]
    ended = json.loads(Path("r/internal/config.json").read_text())
    assert (ended["plan"], ended["rows"]) == (begun["plan"], begun["rows"])


def test_a_resumed_run_that_was_planned_anew_would_be_noticed(timed, at_step, monkeypatch):
    machine_of(monkeypatch, record=0.03)
    at_step(3, die)
    assert timed().code == 1
    machine_of(monkeypatch, record=0.001)
    monkeypatch.setattr(story, "read_settings", lambda internal: None)
    again = timed("--resume")
    assert again.code == 2 and "other settings (plan)" in again.err


CHECKPOINTS = UNFINISHED / "checkpoints"


@pytest.fixture
def set_back(killed):
    """A run that was killed at step 3 and at step 5, and whose checkpoints are of step 3 again."""

    def run(*more):
        killed(3, *more)
        shutil.copytree(CHECKPOINTS, "kept")
        killed(4, *more, "--resume")
        shutil.rmtree(CHECKPOINTS)
        shutil.copytree("kept", CHECKPOINTS)

    return run


def test_steps_taken_twice_are_two_releases(generate, set_back):
    set_back()
    again = generate("--resume")
    assert again.code == 2 and "another process took the run from step 3 to step 4" in again.err
    assert generate("--resume", "--accept-spend").code == 0
    assert steps_of("r") == 6  # 5, and the one that was taken twice


def test_control_without_the_journal_the_ledger_is_short(generate, set_back, monkeypatch):
    set_back()
    monkeypatch.setattr(Journal, "uncounted", lambda self, counted: [])
    assert generate("--resume").code == 0 and steps_of("r") == 5


def test_two_teachers_are_two_releases(generate, killed_before):
    killed_before(Checkpoints, "keep_teacher")
    shutil.copytree(CHECKPOINTS, "kept")
    killed_before(TwinModel, "save", "--resume")
    shutil.rmtree(CHECKPOINTS)
    shutil.copytree("kept", CHECKPOINTS)
    refused = generate("--resume", *TAUGHT)
    assert refused.code == 2 and "from step 5 to step 6" in refused.err
    assert generate("--resume", *TAUGHT, "--accept-spend").code == 0
    assert (teachers_of("r"), steps_of("r")) == (2, 5)


def test_steps_accepted_in_a_phase_without_noise_are_counted_in_the_other(
    generate, killed, at_step
):
    """A state of phase 1 does not hold them yet, though they were accepted when it was made."""
    more = ("--noise-policy", "selective", "--resume")
    killed(3, *more[:2])
    shutil.copytree(CHECKPOINTS, "kept")
    with pytest.MonkeyPatch.context() as patch:  # killed once all ten steps are kept
        patch.setattr(TwinModel, "save", lambda *given: die())
        assert generate(*more).code == 1
    shutil.rmtree(CHECKPOINTS)
    shutil.copytree("kept", CHECKPOINTS)
    killed(4, *more, "--accept-spend")
    again = generate(*more)
    assert again.code == 2 and "from step 3 to step 10" in again.err
    assert generate(*more, "--accept-spend").code == 0
    assert steps_of("r") == 10


def test_who_started_and_left_nothing_is_nobody(generate, killed):
    killed(3)
    killed(3, "--resume")
    assert generate("--resume").code == 0 and steps_of("r") == 5


def test_killed_between_a_state_and_its_line_the_next_process_writes_it(
    generate, killed, monkeypatch
):
    killed(3)
    shutil.copytree(CHECKPOINTS, "kept")
    plain = Journal.reach

    def reach(self, step):
        if step == 4:
            die()
        plain(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "reach", reach)
        assert generate("--resume").code == 1
    killed(4, "--resume")  # writes the line of the one before, and then leaves nothing new
    shutil.rmtree(CHECKPOINTS)
    shutil.copytree("kept", CHECKPOINTS)
    assert "from step 3 to step 4" in generate("--resume").err
    assert generate("--resume", "--accept-spend").code == 0 and steps_of("r") == 6


def test_what_was_accepted_once_is_not_asked_again(generate, killed, set_back):
    set_back()
    killed(4, "--resume", "--accept-spend")
    assert generate("--resume").code == 0 and steps_of("r") == 6


# what another process did after a run was left at step 3 -> what the run's state lacks
ELSEWHERE = {
    "nothing": ([], []),
    "started, and died": ([("begin", 3)], []),
    "one state": ([("begin", 3), ("reach", 4)], [(3, 4)]),
    "to the end": ([("begin", 3), ("reach", 4), ("reach", 5)], [(3, 5)]),
    "from an older state": ([("begin", 2), ("reach", 5)], [(2, 5)]),
    "anew": ([("begin", 0), ("reach", 1)], [(0, 1)]),
}


@pytest.mark.parametrize(("done", "lacking"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_a_state_does_not_hold_is_seen(tmp_path, done, lacking):
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.begin(0, {})
    first.reach(3)
    counted, other = {first.process: 3}, Journal(path)
    for call, step in done:
        other.begin(step, counted) if call == "begin" else other.reach(step)
    mine = Journal(path)
    assert mine.uncounted(counted) == [StepRange(other.process, *steps) for steps in lacking]


@pytest.mark.parametrize("removed", [UNFINISHED / "checkpoints", UNFINISHED])
def test_a_run_whose_checkpoints_are_gone_is_not_started_again(generate, killed, removed):
    killed(3)
    shutil.rmtree(removed)
    again = generate("--resume")
    assert again.code == 2 and "checkpoints are missing" in again.err
    assert "stays spent" in again.err


@pytest.mark.parametrize("line", ["null", "[]", "{}", '{"process": "a", "begun": 0, "reached": 1}'])
def test_a_line_that_is_none_is_named(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    Journal(path).begin(0, {})
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"journal\.jsonl, line 2: is damaged"):
        Journal(path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("state.pt", lambda path: path.write_bytes(path.read_bytes()[:-40])),
        ("ledger.json", lambda path: path.write_text(path.read_text().replace("2", "1", 1))),
        ("facts.json", lambda path: path.unlink()),
        ("checksums.json", lambda path: path.write_text("{")),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_taken(generate, killed, name, damage):
    killed(3)
    assert names_in(UNFINISHED / "checkpoints") == ["step-2", "step-3"]
    damage(UNFINISHED / "checkpoints" / "step-3" / name)
    refused = generate("--resume")
    assert refused.code == 2 and f"step-3/{name}" in refused.err
    assert "another process took the run from step 2 to step 3" in refused.err
    assert generate("--resume", "--accept-spend").code == 0
    assert steps_of("r") == 6  # the third was taken twice


def test_without_a_whole_checkpoint_or_the_journal_nothing_is_resumed(generate, killed):
    killed(3)
    journal = UNFINISHED / "journal.jsonl"
    kept = journal.read_text()
    journal.unlink()
    assert "journal.jsonl is missing" in generate("--resume").err
    journal.write_text(kept)
    for state in (UNFINISHED / "checkpoints").glob("*/state.pt"):
        state.write_bytes(b"")
    assert "every checkpoint is damaged" in generate("--resume").err


def test_a_journal_cut_off_in_its_last_line_is_mended(generate, killed):
    killed(3)
    with (UNFINISHED / "journal.jsonl").open("a") as file:
        file.write('{"process": "no hex')
    assert generate("--resume").code == 0 and steps_of("r") == 5


@pytest.fixture
def killed_at_rows(generate, monkeypatch):
    """Run `generate` in groups of two rows, and kill it when one number of them is written."""

    def run(number):
        plain = RowGroups.write

        def write(self, at, rows):
            if at == number:
                die()
            plain(self, at, rows)

        with monkeypatch.context() as patch:
            patch.setattr(RowGroups, "write", write)
            assert generate().code == 1

    monkeypatch.setattr(row_groups, "GROUP_ROWS", 2)
    return run


def test_killed_while_rows_are_written_only_rows_are_left_to_do(generate, killed_at_rows):
    killed_at_rows(2)
    files = sorted(path.name for path in (UNFINISHED / "rows").glob("rows-*"))
    assert files == ["rows-000000.json", "rows-000001.json"]
    ledger = Path(".r.partial/model/ledger.json").read_bytes()
    assert generate("--resume").code == 0
    assert Path("r/model/ledger.json").read_bytes() == ledger
    assert json.loads(Path("r/share/privacy.json").read_text())["files"]["twin"]["rows"] == 6


SAMPLING = ("--rows", "4", "--temperature", "0.7", "--guidance", "0.5")


def test_once_the_model_is_trained_rows_and_decoding_may_differ(generate, capsys, killed_at_rows):
    """Rows that were drawn before belong to other settings: none of them is in the twin."""
    killed_at_rows(1)
    assert (UNFINISHED / "rows/rows-000000.json").is_file()
    model = snapshot(Path(".r.partial/model"))
    assert generate(*SAMPLING, "--resume").code == 0
    assert snapshot(Path("r/model")) == model
    stored = json.loads(Path("r/internal/config.json").read_text())
    assert (stored["sampling"]["temperature"], stored["rows"]["rows"]) == (0.7, 4)
    anew = run_twinset(capsys, "sample", "r", *SAMPLING, "--output", "o.csv", "--quiet")
    assert anew.code == 0
    assert Path("r/share/twin.csv").read_bytes() == Path("o.csv").read_bytes()
    assert verify("r").rows == 4


@pytest.fixture
def no_usable_row(generate, monkeypatch):
    """A run that was trained and wrote no row: what it printed."""
    with monkeypatch.context() as patch:
        patch.setattr("twinset.sampling.sampler.is_usable", lambda text: False)
        return generate()


def test_no_failure_after_training_makes_anybody_pay_twice(place, generate, capsys, no_usable_row):
    failed = no_usable_row
    assert failed.code == 2 and len(failed.err.splitlines()) == 1
    assert "usable" in failed.err and "--resume" in failed.err and "--overwrite" not in failed.err
    named = failed.err.split("`twinset ")[1].split("`")[0]
    assert named == f"sample {place.resolve()}/.r.partial --output FILE"
    command = named.replace("FILE", "o.csv").split()
    assert run_twinset(capsys, *command, "--rows", "3", "--quiet").code == 0
    assert verify("o.csv").rows == 3
    assert generate("--resume", "--temperature", "0.9").code == 0
    assert steps_of("r") == 5


def test_an_unexpected_error_is_reported_with_what_is_safe(generate, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(MARKER)

    monkeypatch.setattr("twinset.sampling.twin_model.TwinModel.sample", fail)
    failed = generate()
    warning, error = failed.err.splitlines()
    assert failed.code == 1 and MARKER not in failed.err
    assert warning.startswith("WARNING: the trained model is safe") and "twinset sample" in warning
    assert error.startswith("error: unexpected RuntimeError")


def test_a_trained_model_is_not_deleted_without_a_word(place, generate, no_usable_row):
    model = snapshot(Path(".r.partial/model"))
    for refused in (generate(), generate("--resume", "--learning-rate", "0.5")):
        assert refused.code == 2 and "stays spent" in refused.err
        assert f"`twinset sample {place.resolve()}/.r.partial" in refused.err
    bad = generate("--overwrite", "--text", "nothing")
    assert bad.code == 2 and "--overwrite will delete its trained model" in bad.err
    assert snapshot(Path(".r.partial/model")) == model
    assert generate("--overwrite").code == 0
    exists = generate()
    assert exists.code == 2 and f"`twinset sample {place.resolve()}/r " in exists.err
    assert "stays spent" in exists.err
    assert "WARNING" in generate("--overwrite").err
    assert names_in(place) == ["r", "t.csv"]


def test_stopped_by_hand_it_keeps_a_checkpoint_of_the_last_step(generate, monkeypatch):
    def stop(self, report, plan):
        if report.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", 1e9)
        patch.setattr(Console, "step", stop)
        stopped = generate()
    assert (stopped.code, stopped.err) == (130, "stopped; the same command with --resume goes on\n")
    assert names_in(UNFINISHED / "checkpoints") == ["step-3"]


COMMAND = ("t.csv", "--run", "r", "--rows", "40", "--steps", "12", "--epsilon", "20")
AT_ONCE = """
import sys
import cli, twinset.run.checkpoint, twinset.sampling.rows
twinset.run.checkpoint.CHECKPOINT_SECONDS, twinset.sampling.rows.GROUP_ROWS = 0.0, 4
sys.exit(cli.main())
"""


@pytest.mark.slow
def test_killed_at_thirty_random_moments_it_ends_as_planned(place, tiny_base):
    """Runs that end before the thirtieth kill are checked, and another is started."""
    environment = python_environment()
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
        assert steps_of("r") == 12
        assert verify("r").rows == 40
        assert names_in(place) == ["r", "t.csv"]
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
    shell = ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "sh", *run]
    done = subprocess.run(shell, env=python_environment(), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("code")] == ["code 2", "code 0"], done
    assert "No space left" in done.stderr or "disk is full" in done.stderr
    assert MARKER not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert lines[-2:] == ["r", "t.csv"]
