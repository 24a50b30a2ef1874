"""A plan fits the time by this machine's speed and public facts, and never by private lengths."""

import random
from functools import partial

import pandas as pd
import pytest
import torch
from transformers import AutoTokenizer

from tests.helpers.commands import texts
from tests.helpers.models import machine_of
from twinset import generate
from twinset.config.options import run_config
from twinset.config.plan import make_plan, size_for
from twinset.models.assets import shipped_folder
from twinset.models.base_model import load_base
from twinset.privacy.mechanism.randomness import Randomness
from twinset.progress import Progress
from twinset.run import plan as timing
from twinset.run import story
from twinset.run.generate import finetune, plan_run, prepare
from twinset.run.plan import PLANNED_SHARE, ROWS_SHARE, Workload, measure_step, size_notes
from twinset.run.releases import open_ledger
from twinset.run.request import Run, Source
from twinset.sampling.allocation import RowsRequest
from twinset.table.tokenization import times_english

USUAL = (40, 32)  # of 60 records
A_MINUTE = 60 * PLANNED_SHARE
LABELS = ["good", "bad"] * 30
SHORT, LONG = ["So so."] * 60, ["so much longer than the other one, and so on"] * 60


class Notes(Progress):
    """Keeps what it is notified of."""

    def __init__(self):
        self.said, self.warned, self.phases = [], [], []
        self.say, self.warn = self.said.append, self.warned.append

    def expect(self, phases):
        self.phases = list(phases)


@pytest.fixture
def machine(monkeypatch):
    """Have a machine measured; see `machine_of`."""
    return partial(machine_of, monkeypatch)


@pytest.fixture
def planned(tiny_base):
    """Prepare a table of 60 texts; return the run, and the notes."""

    def plan(rows=None, data=None, source=None, **options):
        known = {"base_model": str(tiny_base), "epsilon": 1000, "max_tokens": 12}
        known |= {"marginal_share": 0, "teacher_share": 0}  # so that times are round
        frame = pd.DataFrame({"text": data or texts(), "label": LABELS})
        frame["who"] = frame.index // 3
        source = Source(frame, "text", ("label",), **(source or {}))
        notes, config = Notes(), run_config({**known, **options})
        return prepare(source, config, rows, notes), notes

    return plan


@pytest.fixture
def alone(planned) -> Run:
    """The run without a limit."""
    return planned(max_minutes=None)[0]


def visits_of(run: Run) -> int:
    return run.plan.steps * run.plan.batch_size


def seconds_of(visits: int, run: Run) -> float:
    """Seconds a token with which so many visits just fit into a minute."""
    return A_MINUTE / visits / story.find_workload(run).tokens(run.config, run.base)


@pytest.mark.parametrize("visits", [1280, 600, 128])
def test_as_many_visits_as_fit_first_in_fewer_steps(planned, alone, machine, visits):
    machine(seconds_of(visits, alone) * 0.999)
    found, notes = planned(max_minutes=1.0)
    steps, batch = found.plan.steps, found.plan.batch_size
    assert (alone.plan.steps, alone.plan.batch_size) == USUAL and notes.warned == []
    assert "measuring speed on this machine" in notes.said
    assert visits - steps < steps * batch <= visits
    assert (steps, batch) == size_for(60, visits) and (batch >= 32 or steps == 8)
    fewer = any(f"there are {steps} of {batch}" in line for line in notes.said)
    assert fewer == (visits < 1280)


@pytest.mark.parametrize(
    ("options", "rate"), [({}, 0.006), ({"learning_rate": 0.1}, 0.1), ({"method": "full"}, 1e-4)]
)
def test_few_steps_are_larger_ones_unless_a_rate_is_named(planned, alone, machine, options, rate):
    machine(seconds_of(200, alone))
    plan = planned(max_minutes=1.0, **options)[0].plan
    assert (plan.steps, plan.learning_rate) == (8, rate)


@pytest.mark.parametrize("visits", [1e9, 640, 1])
def test_rows_have_a_clock_of_what_training_leaves_and_no_less_than_their_share(
    planned, alone, machine, visits
):
    """A machine that has time for so many visits in all."""
    machine(seconds_of(visits, alone))
    found, _ = planned(RowsRequest(), max_minutes=1.0)
    training = visits_of(found) / visits * A_MINUTE
    assert found.rows_seconds == pytest.approx(max(ROWS_SHARE * A_MINUTE, A_MINUTE - training))
    if visits == 640:
        assert training <= (1 - ROWS_SHARE) * A_MINUTE


def test_rows_that_somebody_counted_have_no_clock_and_leave_less_training(planned, alone, machine):
    machine(seconds_of(1280, alone) * 0.999)
    found = {n: planned(RowsRequest(n), max_minutes=1.0)[0] for n in (10, 1500)}
    assert visits_of(found[10]) > 1200 > 900 > visits_of(found[1500])
    assert [run.rows_seconds for run in found.values()] == [None, None]
    machine(1e-2)
    _, notes = planned(RowsRequest(60_000), max_minutes=1.0)
    assert len(notes.warned) == 1 and "`rows=" in notes.warned[0]


@pytest.mark.parametrize("given", [{"steps": 3}, {"batch_size": 8}, {"steps": 3, "batch_size": 8}])
def test_what_is_given_wins_and_is_warned_of(planned, machine, given):
    machine(10.0)
    found, notes = planned(max_minutes=1.0, **given)
    assert {name: getattr(found.plan, name) for name in given} == given
    assert len(notes.warned) == 1 and "and not `max_minutes=1`" in notes.warned[0]


def test_what_would_drown_in_noise_is_not_taken(planned, alone, machine, monkeypatch):
    machine(seconds_of(8, alone) * 0.999)
    monkeypatch.setattr(timing, "FEWEST_VISITS", 8)
    assert visits_of(planned(max_minutes=1.0)[0]) == 8
    monkeypatch.setattr("twinset.config.plan.FEW", 0)  # which would train nothing
    found, notes = planned(max_minutes=1.0, epsilon=8)
    assert visits_of(found) == 40 * 32 and "and not `max_minutes=1`" in notes.warned[0]


def test_owners_may_have_several_records_in_a_step(planned, alone, machine):
    machine(seconds_of(40 * 32, alone) * 0.99)
    owners = {"source": {"owner": "who"}, "max_minutes": 1.0}
    found = {m: planned(max_records_per_owner=m, **owners)[0] for m in (1, 4)}
    assert found[1].plan.records == 20 and visits_of(found[4]) < visits_of(found[1])


# --- what it may depend on ----------------------------------------------------------------------


def test_private_lengths_move_no_plan_and_no_clock(planned, alone, machine, monkeypatch):
    machine(seconds_of(600, alone))
    found = [planned(RowsRequest(), data, max_minutes=1.0) for data in (SHORT, LONG)]
    (short, said), (long, said_too) = found
    assert short.plan == long.plan and visits_of(short) <= 600
    assert (short.phases, short.rows_seconds) == (long.phases, long.rows_seconds)
    assert [line for line in said.said if " s, " not in line] == [
        line for line in said_too.said if " s, " not in line
    ]
    # control: a plan by private lengths would be noticed
    spying = lambda run: Workload(max(len(text) for text in run.records.texts), 0)  # noqa: E731
    monkeypatch.setattr(story, "find_workload", spying)
    found = [planned(data=data, max_minutes=1.0)[0] for data in (SHORT, LONG)]
    assert visits_of(found[0]) != visits_of(found[1])


@pytest.mark.parametrize(
    ("options", "source"),
    [({"max_tokens": 40}, None), ({}, {"prompt": "Write a very, very long and {label} text:"})],
)
def test_public_lengths_move_it(planned, alone, machine, options, source):
    machine(seconds_of(600, alone))
    assert visits_of(planned(max_minutes=1.0, source=source, **options)[0]) < 550


@pytest.mark.parametrize(
    ("options", "is_said"),
    [({}, True), ({"max_minutes": None}, False), ({"steps": 2, "batch_size": 8}, False)],
)
def test_the_ledger_says_what_steps_follow_from(planned, options, is_said):
    run, _ = planned(**options)
    run.randomness = Randomness.for_tests(1)
    public = open_ledger(run).public_inputs
    assert any("the speed of the machine" in one for one in public) == is_said


# --- measuring ----------------------------------------------------------------------------------


def test_what_is_short_on_any_machine_is_not_measured(planned, monkeypatch):
    monkeypatch.setattr(timing, "measure_step", lambda *_: pytest.fail("measured"))
    assert planned(RowsRequest(10))[0].phases == ()
    monkeypatch.setattr(timing, "SLOWEST", 1.0)
    assert planned(RowsRequest(10), max_minutes=None)[0].phases == ()


@pytest.mark.parametrize("method", ["lora", "full"])
def test_measuring_leaves_the_model_and_the_random_numbers_as_they_were(
    tiny_base, monkeypatch, method
):
    monkeypatch.setattr(timing, "PROBE_SECONDS", 0.1)
    base, config = load_base(str(tiny_base)), run_config({"method": method, "steps": 2})
    before = {name: t.clone() for name, t in base.model.state_dict().items()}
    numbers = torch.random.get_rng_state(), random.getstate()
    speed = measure_step(base, config, make_plan(1000, config), 12, Notes())
    assert torch.equal(numbers[0], torch.random.get_rng_state())
    assert numbers[1] == random.getstate() and min(speed) > 0
    after = base.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(t, after[name]) for name, t in before.items())


def test_a_run_is_the_same_whether_it_was_measured(planned, monkeypatch):
    options = {"insecure_noise_seed": 1, "steps": 2, "batch_size": 8, "epsilon": 50}
    plain, _ = planned(**options)
    monkeypatch.setattr(timing, "SLOWEST", 1.0)
    monkeypatch.setattr(timing, "PROBE_SECONDS", 0.1)
    timed, _ = planned(**options)
    assert timed.phases
    ours, others = (finetune(run).model.state_dict() for run in (plain, timed))
    assert all(torch.equal(t, others[name]) for name, t in ours.items())


def test_a_run_reports_the_time_of_its_phases_and_of_what_it_did(
    tiny_base, machine, tmp_path, monkeypatch
):
    machine(1e-3)
    monkeypatch.chdir(tmp_path)
    frame, notes = pd.DataFrame({"text": texts(), "label": LABELS}), Notes()
    options = {"epsilon": 50, "steps": 2, "batch_size": 8, "max_tokens": 12, "run": "r"}
    options |= {"noise_policy": "selective", "max_minutes": 1.0, "rows": 4}
    generate(frame, "text", "label", base_model=str(tiny_base), progress=notes, **options)
    names = [name for name, _ in notes.phases]
    assert names == (
        ["rows of the base", "training", "training"]
        + ["reference rows", "texts read by the teacher", "rows"]
    )
    said = [line.split()[0] for line in notes.said if "% of `max_minutes=1`" in line]
    assert said == ["read", "plan", "count", "train", "teach", "sample", "share", "judge"]


def test_processes_share_records():
    one, four = (run_config({"processes": n, "max_tokens": 12}) for n in (1, 4))
    plan = make_plan(1000, one)
    seconds = [dict(Workload(9, 0).phases(plan, c, 1.0, 0.0))["training"] for c in (one, four)]
    assert seconds[1] == pytest.approx(seconds[0] / 4)


# --- what people are shown ----------------------------------------------------------------------


def test_a_plan_of_owners_says_so_and_policies_have_its_steps(tiny_base, machine):
    machine(0.03)
    frame = pd.DataFrame({"text": texts(), "label": LABELS, "who": [n // 2 for n in range(60)]})
    known = {"base_model": str(tiny_base), "epsilon": 3000, "max_tokens": 12, "max_minutes": 1.0}
    source = Source(frame, "text", ("label",), owner="who")
    found = plan_run(source, None, run_config(known), None, Notes())
    said = str(found)
    assert "owners N               30, of 60 records" in said and "for every owner" in said
    assert "every record" not in said and "time in all            about" in said
    same = found.policies["uniform"]
    assert 0 < found.plan.steps < 40  # usual are 40
    assert (same.steps, same.batch_size) == (found.plan.steps, found.plan.batch_size)
    assert same.noise_multiplier == found.plan.noise_multiplier
    assert found.to_dict()["seconds"] == found.seconds > 0


CHINESE = [f"这部电影非常好,我会推荐给所有喜欢慢节奏故事的人{i}" for i in range(20)]
ARABIC = [f"كان الفيلم جيدا جدا وأوصي به لكل من يحب قصة بطيئة {i}" for i in range(20)]
CLINICAL = [f"Pt {i} c/o SOB x3d, hx of COPD; Rx furosemide 40mg PO BID, f/u" for i in range(20)]


@pytest.mark.parametrize(
    ("found", "warned"),
    [(texts(), False), (CLINICAL, False), (CHINESE, True), (ARABIC, True), (["😀"] * 9, True)],
)
def test_a_language_that_the_base_hardly_reads_is_told(found, warned):
    english = AutoTokenizer.from_pretrained(shipped_folder("gpt2-mini"))
    assert (times_english(found, english) > story.HARDLY_READ) == warned


@pytest.mark.parametrize(
    ("records", "options", "asked", "part", "said"),
    [
        (8_749, {"epsilon": 8.0}, None, "8749 records are few for", True),
        (8_750, {"epsilon": 8.0}, None, "records are few for", False),
        (60, {"epsilon": None}, None, "records are few for", False),
        (124, {"epsilon": 8.0, "steps": 0}, None, "not be worth making", True),
        (125, {"epsilon": 8.0, "steps": 0}, None, "not be worth making", False),
        (999, {"epsilon": 1.0, "steps": 0}, None, "not be worth making", True),
        (1000, {"epsilon": 1.0, "steps": 0}, None, "nothing is trained", True),
        (1000, {"epsilon": 1.0}, None, "`steps=0`", True),
        (1000, {}, 2000, "each step has all", True),
        (1000, {"steps": 0}, 2000, "each step has all", False),
        (1000, {}, 1000, "each step has all", False),
    ],
)
def test_what_an_owner_should_hear_of_its_numbers(records, options, asked, part, said):
    known = {"steps": 4, "batch_size": asked or 32} | options
    notes = list(size_notes(make_plan(records, run_config(known)), asked))
    assert any(part in note for note in notes) == said
