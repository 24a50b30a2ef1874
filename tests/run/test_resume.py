"""Killed at any moment: what is kept, what is counted, and what is refused.

A run that is killed at some moment is made once, and each test goes on from a copy of its folder.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import cli
from tests.helpers.commands import (
    COLUMNS,
    GOOD,
    MARKER,
    Outcome,
    arguments,
    python_environment,
    snapshot,
)
from tests.helpers.machines import machine_of
from twinset.commandline.console import Console
from twinset.config.plan import RELEASED
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import TEACHER, SubsampledGaussian
from twinset.privacy.mechanism.units import WeightScale
from twinset.privacy.statement.guarantee import guarantee
from twinset.privacy.statement.ledger import Ledger
from twinset.release.verify import verify
from twinset.run import checkpoint, releases, story
from twinset.run.checkpoint import Checkpoints, Journal, StepRange
from twinset.sampling import rows as row_groups
from twinset.sampling.rows import RowGroups
from twinset.sampling.twin_model import TwinModel
from twinset.training.loop import PrivateOptimizer

PLAIN = tuple("t.csv --rows 6 --steps 5 --epsilon 20 --teacher-share 0 --base-model base".split())
PLAIN = (*PLAIN, "--physical-batch", "60")  # a step is quicker
RUN = (*PLAIN, "--run", "r")
COUNTED_ALONE = ("--marginal-share", "0")  # labels alone are counted: a run is quicker
ADAPTIVE = ("--noise-policy", "adaptive", "--weight-scale", "scale.json")
SELECTIVE = ("--noise-policy", "selective")
TAUGHT = ("--teacher-share", "0.1")
TIMED = ("t.csv", "--base-model", "base", "--run", "r", "--quiet", "--max-tokens", "12")
TIMED += tuple("--epsilon 1000 --max-minutes 1 --marginal-share 0 --teacher-share 0".split())
UNFINISHED = Path(".r.partial/internal/unfinished")
CHECKPOINTS, JOURNAL = UNFINISHED / "checkpoints", UNFINISHED / "journal.jsonl"


class Killed(BaseException):
    """What no code catches: as good as SIGKILL, for all that is on the disk."""


def call(*given) -> Outcome:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = cli.main([str(argument) for argument in given])
    return Outcome(code, out.getvalue(), err.getvalue())


def generate(*more, given=(*RUN, *COUNTED_ALONE)) -> Outcome:
    return call(*arguments("base", (*given, *more)))


def die(*given, **named):
    raise Killed


@contextmanager
def replaced(owner, name, happen, when=lambda *given: True):
    """Have something happen in place of a call, where `when` holds of its arguments."""
    plain = getattr(owner, name)

    def replacement(*given, **named):
        return (happen if when(*given) else plain)(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, replacement)
        yield


def kill(owner, name, when, *more, given=(*RUN, *COUNTED_ALONE)):
    """Run `generate`, and kill it before a call for which `when` holds."""
    with replaced(owner, name, die, when):
        assert generate(*more, given=given).code == 1


def kill_at(step, *more, given=(*RUN, *COUNTED_ALONE)):
    """Run `generate`, and kill it once `step` steps are done."""
    kill(PrivateOptimizer, "apply", lambda self, _: self.done == step, *more, given=given)


def always(*given):
    return True


def write_scale(low, high):
    stated = WeightScale(load_base("base").origin, low, high, "public texts", (0.2,) * 5)
    Path("scale.json").write_text(json.dumps(stated.to_dict()))


def events_of(run="r"):
    return Ledger.load(Path(run, "model/ledger.json")).events


def steps_of(run="r") -> int:
    """Count the steps that the ledger of a run states."""
    return sum(e.steps for e in events_of(run) if isinstance(e, SubsampledGaussian))


def teachers_of(run="r") -> int:
    """Count the teachers that the ledger of a run states."""
    return sum(getattr(event, "what", None) == TEACHER for event in events_of(run))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("base", "scale.json"))


def set_back():
    """Put the checkpoints that were kept in place of those that are there."""
    shutil.rmtree(CHECKPOINTS)
    shutil.copytree("kept", CHECKPOINTS)


def no_usable_row():
    with replaced(sys.modules["twinset.sampling.sampler"], "is_usable", lambda text: False):
        Path("failed.json").write_text(json.dumps(generate().__dict__))


def keep_and_kill():
    shutil.copytree(CHECKPOINTS, "kept")
    kill_at(4, "--resume")


# moment -> the moment that it begins from, and what happens then
MOMENTS = {
    "start": (None, lambda: None),
    "step 3": ("start", lambda: kill_at(3)),
    "step 4, with the checkpoints of step 3": ("step 3", keep_and_kill),
    "phase 1, step 3": ("start", lambda: kill_at(3, *SELECTIVE)),
    "rows": (
        "start",
        lambda: kill(RowGroups, "write", lambda self, at, rows: at == 2),
    ),
    "no usable row": ("start", no_usable_row),
}


@pytest.fixture(scope="module", autouse=True)
def cheap_checkpoints(tmp_path_factory):
    """A checkpoint after each step, and groups of two rows.

    The second accountant takes as long as all the rest of a run. It is tested with `verify`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWINSET_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr(row_groups, "GROUP_ROWS", 2)
        patch.setattr("twinset.release.verify.prv_epsilon", epsilon)
        yield


@pytest.fixture(scope="module")
def moments(tmp_path_factory, tiny_base):
    """Make each moment once: return the folder that it left."""
    made = {}

    def folder_at(moment: str) -> Path:
        if moment not in made:
            before, happen = MOMENTS[moment]
            folder = tmp_path_factory.mktemp("moment") / "here"
            if before is not None:
                shutil.copytree(folder_at(before), folder)
            else:
                folder.mkdir()
                shutil.copytree(tiny_base, folder / "base")
                GOOD.to_csv(folder / "t.csv", index=False)
            with chdir(folder):
                happen()
            made[moment] = folder
        return made[moment]

    return folder_at


@pytest.fixture
def begin(moments, tmp_path, monkeypatch):
    """Go into a copy of the folder that a moment left."""

    def copy(moment: str = "start") -> Path:
        here = tmp_path / "here"
        shutil.copytree(moments(moment), here)
        monkeypatch.chdir(here)
        return here

    return copy


# -- it ends as planned ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["uniform", "importance"])
def test_killed_and_resumed_it_ends_as_planned(begin, policy):
    place, more = begin(), ("--noise-policy", policy)
    kill_at(2, *more, given=RUN)
    assert not (UNFINISHED / "tokens").exists()  # they hold the texts
    for step in (2, 4):  # who started and left nothing released nothing
        kill_at(step, *more, "--resume", given=RUN)
        assert not Path("r").exists()
    done = generate(*more, "--resume", given=RUN)
    assert (done.code, MARKER in done.err) == (0, False)
    assert steps_of() == 5
    kinds = [event.__class__.__name__ for event in events_of()]
    assert kinds.count("GaussianRelease") == 2  # label counts and token marginals, each once
    noise = {"noise.json", "noise.png"} if policy == "importance" else set()
    written = {path.name for path in Path("r/internal").iterdir()}
    assert written == {"config.json", "metrics.jsonl", "notes.txt"} | noise
    assert names_in(place) == ["r", "t.csv"]
    assert call("verify", "r").code == 0
    if policy == "uniform":  # ε is that of a run that nobody killed
        assert generate("--run", "whole", given=RUN).code == 0
        whole = Ledger.load(Path("whole/model/ledger.json"))
        assert events_of() == whole.events
        assert guarantee(Ledger.load(Path("r/model/ledger.json"))) == guarantee(whole)


def test_resumed_training_starts_from_the_very_state(begin):
    """Without noise and with every record in each batch nothing is random: weights are equal."""
    begin()
    plain = (*"t.csv --rows 6 --steps 5 --no-privacy --batch-size 60 --base-model base".split(),)
    plain += ("--physical-batch", "60")
    assert generate("--run", "whole", given=plain).code == 0
    kill_at(3, "--run", "r", given=plain)
    assert generate("--run", "r", "--resume", given=plain).code == 0
    for file in ("model/model.safetensors", "share/twin.csv"):
        assert Path("whole", file).read_bytes() == Path("r", file).read_bytes()


def test_killed_before_the_first_checkpoint_nothing_is_left(begin):
    place = begin()
    before = snapshot(place)
    kill_at(0)
    assert snapshot(place) == before
    assert "no unfinished run" in generate("--resume").err


def test_killed_between_phases_it_goes_on_with_the_next(begin):
    begin("phase 1, step 3")
    kill(story, "weigh_records", always, *SELECTIVE, "--resume")  # as the last phase begins
    assert sorted(path.name for path in CHECKPOINTS.iterdir()) == ["step-4", "step-5"]
    phases, plain = [], story.run_training
    with replaced(
        story, "run_training", lambda *given: phases.append(len(given[1])) or plain(*given)
    ):
        assert generate(*SELECTIVE, "--resume").code == 0
    assert (phases, steps_of()) == ([0, 5], 5)


@pytest.mark.parametrize("steps", [5, 0])
def test_a_teacher_is_released_again_only_where_nobody_saw_it(begin, monkeypatch, steps):
    """Killed before it is kept, and killed after; nothing is counted twice."""
    begin()
    more, given = ("--steps", steps, *TAUGHT), RUN
    kill(Checkpoints, "keep_teacher", always, *more, given=given)
    shutil.copytree(CHECKPOINTS, "kept")
    fitted, plain = [], story.fit_teacher
    monkeypatch.setattr(story, "fit_teacher", lambda *given: fitted.append(0) or plain(*given))
    monkeypatch.setattr(story, "count_labels", die)
    kill(TwinModel, "save", always, *more, "--resume", given=given)
    assert len(fitted) == 1
    shutil.copytree(".", "../there")
    assert generate(*more, "--resume", given=given).code == 0
    assert (len(fitted), teachers_of(), steps_of()) == (1, 1, steps)
    assert TwinModel.load("r").words is not None
    if not steps:
        assert [event.what for event in events_of()] == list(RELEASED)
        return
    monkeypatch.chdir("../there")  # two teachers are two releases
    set_back()
    refused = generate(*more, "--resume", given=given)
    assert refused.code == 2 and "from step 5 to step 6" in refused.err
    assert generate(*more, "--resume", "--accept-spend", given=given).code == 0
    assert (teachers_of(), steps_of()) == (2, 5)


def test_a_prompt_that_was_chosen_is_not_chosen_again(begin, monkeypatch):
    """Steps before and after would be behind two prompts, if rounding tipped the balance."""
    begin()
    kind = "a question"
    monkeypatch.setattr(releases, "FEWEST_RECORDS", 1)
    misfits = lambda base, t, marginals: 99.0 * (kind not in t.pattern)  # noqa: E731
    monkeypatch.setattr(releases, "prompt_misfit", misfits)
    kill_at(3, given=RUN)
    monkeypatch.setattr(releases, "prompt_misfit", die)
    assert generate("--resume", given=RUN).code == 0
    assert kind in TwinModel.load("r").template.pattern
    assert kind in Path("r/share/README.md").read_text("utf-8")


def test_stopped_by_hand_it_keeps_a_checkpoint_of_the_last_step(begin, monkeypatch):
    begin("step 3")
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 1e9)
    stop = lambda self, report, plan: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    with replaced(Console, "step", stop):
        stopped = generate("--resume")
    assert (stopped.code, stopped.err) == (130, "stopped; the same command with --resume goes on\n")
    assert sorted(path.name for path in CHECKPOINTS.iterdir()) == ["step-3", "step-4"]


# -- other settings -------------------------------------------------------------------------------


def change_table():
    Path("t.csv").write_text(Path("t.csv").read_text().replace("number 7", "number 8"))


def change_base():
    weights = Path("base/model.safetensors")
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))


@pytest.mark.parametrize(
    ("again", "change", "named"),
    [
        (("--learning-rate", "0.5"), None, "training, plan"),
        ((), change_table, "table"),
        (("--hold-out", "0.2"), None, "hold_out"),
        ((), change_base, "base"),
    ],
    ids=["training", "table", "hold-out", "base"],
)
def test_other_settings_are_refused(begin, again, change, named):
    place = begin("step 3")
    partial = snapshot(place / ".r.partial")
    if change:
        change()
    other = generate("--resume", *again)
    assert other.code == 2 and f"other settings ({named}" in other.err and MARKER not in other.err
    assert snapshot(place / ".r.partial") == partial
    if change is None:  # without `resume` an unfinished run is kept
        new = generate()
        assert new.code == 2 and "--resume resumes it" in new.err
        assert snapshot(place / ".r.partial") == partial


def test_records_are_weighed_by_the_scale_that_the_ledger_states(begin, monkeypatch):
    """Also where nothing refused another file."""
    begin()
    weighed, plain = [], story.weigh_records
    monkeypatch.setattr(
        story, "weigh_records", lambda *given: weighed.append(plain(*given)) or weighed[-1]
    )
    write_scale(1.0, 2.0)  # by which every text here has weight 1
    kill_at(2, *ADAPTIVE)
    write_scale(90.0, 99.0)  # by which every text has weight 0
    refused = generate(*ADAPTIVE, "--resume")
    assert refused.code == 2 and "other settings (scale)" in refused.err
    begun = Path(".r.partial/internal/config.json")
    stated = json.loads(begun.read_text())
    stated["scale"] = json.loads(Path("scale.json").read_text())
    begun.write_text(json.dumps(stated))
    assert generate(*ADAPTIVE, "--resume").code == 0
    assert Ledger.load(Path("r/model/ledger.json")).weight_scale.low == 1.0
    assert [set(weights.tolist()) for weights in weighed] == [{1.0}, {1.0}]


def test_resumed_on_another_machine_it_keeps_its_plan(begin, monkeypatch):
    def timed(*more):
        return call("generate", *TIMED, *COLUMNS, *more)

    begin()
    monkeypatch.setattr(row_groups, "GROUP_ROWS", 256)  # many rows are drawn here: together
    machine_of(monkeypatch, record=0.03)
    with replaced(PrivateOptimizer, "apply", die, lambda self, _: self.done == 3):
        assert timed().code == 1
    begun = json.loads(Path(".r.partial/internal/config.json").read_text())
    assert 8 <= begun["plan"]["steps"] < 16  # with a rate of their own
    assert 0 < begun["rows"]["seconds"] < 60
    machine_of(monkeypatch, record=0.001)
    with replaced(story, "read_settings", lambda internal: None):  # control: planned once more
        again = timed("--resume")
    assert again.code == 2 and "other settings (plan)" in again.err
    shutil.copytree(".", "../slower")
    for place, faster in ((".", 20), ("../slower", 1 / 20)):
        with chdir(place):
            machine_of(monkeypatch, record=0.03 / faster)
            assert timed("--resume").code == 0
            assert steps_of() == begun["plan"]["steps"]
            ended = json.loads(Path("r/internal/config.json").read_text())
            assert (ended["plan"], ended["rows"]) == (begun["plan"], begun["rows"])


# -- steps taken twice ----------------------------------------------------------------------------


def test_steps_taken_twice_are_two_releases_accepted_once(begin):
    begin("step 4, with the checkpoints of step 3")
    set_back()
    again = generate("--resume")
    assert again.code == 2 and "another process took the run from step 3 to step 4" in again.err
    kill_at(4, "--resume", "--accept-spend")
    assert generate("--resume").code == 0  # what was accepted once is not asked again
    assert steps_of() == 6  # 5, and the one that was taken twice


def test_control_without_the_journal_the_ledger_is_short(begin, monkeypatch):
    begin("step 4, with the checkpoints of step 3")
    set_back()
    monkeypatch.setattr(Journal, "uncounted", lambda self, counted: [])
    assert generate("--resume").code == 0 and steps_of() == 5


def test_steps_accepted_in_a_phase_without_noise_are_counted_in_the_other(begin):
    """A state of phase 1 does not hold them yet, though they were accepted when it was made."""
    begin("phase 1, step 3")
    more = (*SELECTIVE, "--resume")
    shutil.copytree(CHECKPOINTS, "kept")
    kill(TwinModel, "save", always, *more)  # once all ten steps are kept
    set_back()
    kill_at(4, *more, "--accept-spend")
    again = generate(*more)
    assert again.code == 2 and "from step 3 to step 10" in again.err
    assert generate(*more, "--accept-spend").code == 0
    assert steps_of() == 10


def test_killed_between_a_state_and_its_line_the_next_process_writes_it(begin):
    begin("step 3")
    shutil.copytree(CHECKPOINTS, "kept")
    kill(Journal, "reach", lambda self, step: step == 4, "--resume")
    kill_at(4, "--resume")  # writes the line of the one before, and then leaves nothing new
    set_back()
    assert "from step 3 to step 4" in generate("--resume").err
    assert generate("--resume", "--accept-spend").code == 0 and steps_of() == 6


# what another process did after a run was left at step 3 -> what the run's state lacks
ELSEWHERE = {
    "nothing": ([], []),
    "started, and died": ([("begin", 3)], []),
    "one state": ([("begin", 3), ("reach", 4)], [(3, 4)]),
    "to the end": ([("begin", 3), ("reach", 4), ("reach", 5)], [(3, 5)]),
    "from an older state": ([("begin", 2), ("reach", 5)], [(2, 5)]),
    "from the beginning": ([("begin", 0), ("reach", 1)], [(0, 1)]),
}


@pytest.mark.parametrize(("done", "lacking"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_a_state_does_not_hold_is_seen(tmp_path, done, lacking):
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.begin(0, {})
    first.reach(3)
    counted, other = {first.process: 3}, Journal(path)
    for name, step in done:
        other.begin(step, counted) if name == "begin" else other.reach(step)
    with path.open("a") as file:
        file.write('{"process": "no hex')  # a killed process could not finish its last line
    mine = Journal(path)
    assert mine.uncounted(counted) == [StepRange(other.process, *steps) for steps in lacking]
    assert path.read_text().endswith("}\n")


@pytest.mark.parametrize("line", ["null", "[]", "{}", '{"process": "a", "begun": 0, "reached": 1}'])
def test_a_line_that_is_none_is_named(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    Journal(path).begin(0, {})
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"journal\.jsonl, line 2: is damaged"):
        Journal(path)


# -- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("state.pt", lambda path: path.write_bytes(path.read_bytes()[:-40])),
        ("ledger.json", lambda path: path.write_text(path.read_text().replace("2", "1", 1))),
        ("facts.json", lambda path: path.unlink()),
        ("checksums.json", lambda path: path.write_text("{")),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_taken(begin, name, damage):
    begin("step 3")
    assert sorted(path.name for path in CHECKPOINTS.iterdir()) == ["step-2", "step-3"]
    damage(CHECKPOINTS / "step-3" / name)
    refused = generate("--resume")
    assert refused.code == 2 and f"step-3/{name}" in refused.err
    assert "another process took the run from step 2 to step 3" in refused.err
    if name == "state.pt":
        assert generate("--resume", "--accept-spend").code == 0
        assert steps_of() == 6  # the third was taken twice


@pytest.mark.parametrize(
    ("lose", "named"),
    [
        (lambda: shutil.rmtree(UNFINISHED), "checkpoints are missing"),
        (lambda: shutil.rmtree(CHECKPOINTS), "checkpoints are missing"),
        (JOURNAL.unlink, "journal.jsonl is missing"),
        (
            lambda: [path.write_bytes(b"") for path in CHECKPOINTS.glob("*/state.pt")],
            "every checkpoint is damaged",
        ),
    ],
    ids=["all", "checkpoints", "journal", "states"],
)
def test_without_a_whole_checkpoint_or_the_journal_nothing_is_resumed(begin, lose, named):
    begin("step 3")
    lose()
    again = generate("--resume")
    assert again.code == 2 and named in again.err and "stays spent" in again.err


# -- after training -------------------------------------------------------------------------------

SAMPLING = ("--rows", "4", "--temperature", "0.7", "--guidance", "0.5")


def test_killed_while_rows_are_written_only_rows_are_left_to_do(begin):
    begin("rows")
    files = sorted(path.name for path in (UNFINISHED / "rows").glob("rows-*"))
    assert files == ["rows-000000.json", "rows-000001.json"]
    model = snapshot(Path(".r.partial/model"))
    with replaced(TwinModel, "sample", lambda *_, **__: 1 / 0):  # an error nobody expects
        failed = generate("--resume")
    warning, error = failed.err.splitlines()
    assert failed.code == 1 and warning.startswith("WARNING: the trained model is safe")
    assert "twinset sample" in warning and error.startswith("error: unexpected ZeroDivisionError")
    assert generate("--resume").code == 0
    assert snapshot(Path("r/model")) == model
    assert json.loads(Path("r/share/privacy.json").read_text())["files"]["twin"]["rows"] == 6


def test_once_the_model_is_trained_rows_and_decoding_may_differ(begin):
    """Rows that were drawn before belong to other settings: none of them is in the twin."""
    begin("rows")
    model = snapshot(Path(".r.partial/model"))
    assert generate(*SAMPLING, "--resume").code == 0
    assert snapshot(Path("r/model")) == model
    stored = json.loads(Path("r/internal/config.json").read_text())
    assert (stored["sampling"]["temperature"], stored["rows"]["rows"]) == (0.7, 4)
    assert call("sample", "r", *SAMPLING, "--output", "o.csv", "--quiet").code == 0
    assert Path("r/share/twin.csv").read_bytes() == Path("o.csv").read_bytes()
    assert verify("r").rows == 4


def test_no_failure_after_training_makes_anybody_pay_twice(begin, moments):
    begin("no usable row")
    failed = json.loads(Path("failed.json").read_text())
    err = failed["err"]
    assert failed["code"] == 2 and len(err.splitlines()) == 1
    assert "usable" in err and "--resume" in err and "--overwrite" not in err
    named = err.split("`twinset ")[1].split("`")[0]
    there = moments("no usable row").resolve()
    assert named == f"sample {there}/.r.partial --output FILE"
    command = named.replace("FILE", "o.csv").split()
    assert call(*command, "--rows", "3", "--quiet").code == 0
    assert verify("o.csv").rows == 3
    assert generate("--resume", "--temperature", "0.9").code == 0
    assert steps_of() == 5


def test_a_trained_model_is_not_deleted_without_a_word(begin):
    place = begin("no usable row")
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
    assert "WARNING" in generate("--overwrite", "--text", "nothing").err
    assert names_in(place) == ["failed.json", "r", "t.csv"]


COMMAND = ("t.csv", "--run", "r", "--rows", "40", "--steps", "12", "--epsilon", "20")
AT_ONCE = """
import sys
import cli, twinset.run.checkpoint, twinset.sampling.rows
twinset.run.checkpoint.CHECKPOINT_SECONDS, twinset.sampling.rows.GROUP_ROWS = 0.0, 4
sys.exit(cli.main())
"""


@pytest.mark.slow
def test_killed_at_thirty_random_moments_it_ends_as_planned(begin):
    """Runs that end before the thirtieth kill are checked, and another is started."""
    place, environment = begin(), python_environment()
    rng, kills, resume = np.random.default_rng(), 0, ()
    while True:
        wait = rng.uniform(2.0, 9.0) if kills < 30 else 120.0
        given = map(str, arguments("base", COMMAND))
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
        assert steps_of() == 12
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
def test_a_disk_that_fills_up_is_named_and_nothing_is_lost(begin):
    """On a small disk of its own, in a namespace of its own."""
    begin()
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs a namespace of one's own to mount a small disk in")
    Path("small").mkdir()
    base = Path("base").resolve()
    run = [sys.executable, "-c", AT_ONCE, *map(str, arguments(base, COMMAND))]
    shell = ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "sh", *run]
    done = subprocess.run(shell, env=python_environment(), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("code")] == ["code 2", "code 0"], done
    assert "No space left" in done.stderr or "disk is full" in done.stderr
    assert MARKER not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert lines[-2:] == ["r", "t.csv"]
