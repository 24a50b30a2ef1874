"""A plan fits the time by this machine's speed and public facts, and never by private lengths."""

import pandas as pd
import pytest

from tests.helpers.commands import Heard, texts
from twinset.config.options import run_config
from twinset.config.plan import size_for
from twinset.privacy.mechanism.counts import release_label_counts
from twinset.privacy.mechanism.randomness import Randomness
from twinset.run import plan as timing
from twinset.run import releases, story
from twinset.run.generate import fit, plan_run, prepare
from twinset.run.plan import PLANNED_SHARE, Workload
from twinset.run.releases import open_ledger
from twinset.run.request import Run, Source
from twinset.sampling.allocation import RowsRequest
from twinset.table.labels import LabelRules

USUAL = (8, 60)  # of 60 records
A_MINUTE = 60 * PLANNED_SHARE
LABELS = ["good", "bad"] * 30
SHORT, LONG = ["So so."] * 60, ["so much longer than the other one, and so on"] * 60


@pytest.fixture
def machine(monkeypatch):
    """Have a machine measured that takes so many seconds for each token of a record."""

    def measured(record: float) -> None:
        step = lambda base, config, plan, tokens, progress: (record * tokens, 0.0)  # noqa: E731
        monkeypatch.setattr(timing, "measure_step", step)
        monkeypatch.setattr(timing, "SLOWEST", 1.0)  # so that it is measured at all
        monkeypatch.setattr(timing, "FEWEST_VISITS", 64)

    return measured


@pytest.fixture
def planned(tiny_base):
    """Prepare a table of 60 texts; return the run, and the notes."""

    def plan(rows=None, data=None, **options):
        known = {"base_model": str(tiny_base), "epsilon": 1000, "max_tokens": 12}
        known |= {"marginal_share": 0, "teacher_share": 0}  # so that times are round
        frame = pd.DataFrame({"text": data or texts(), "label": LABELS})
        notes, config = Heard(), run_config({**known, **options})
        return prepare(Source(frame, "text", ("label",)), config, rows, notes), notes

    return plan


@pytest.fixture
def alone(planned) -> Run:
    """The run without a limit."""
    return planned(max_minutes=None)[0]


def seconds_of(visits: int, run: Run) -> float:
    """Seconds a token with which so many visits just fit into a minute."""
    return A_MINUTE / visits / story.find_workload(run).tokens(run.config, run.base)


@pytest.mark.parametrize("visits", [480, 128])
def test_a_time_limit_makes_batches_smaller(planned, alone, machine, visits):
    machine(seconds_of(visits, alone) * 0.999)
    found, notes = planned(max_minutes=1.0)
    steps, batch = found.plan.steps, found.plan.batch_size
    assert (alone.plan.steps, alone.plan.batch_size) == USUAL and not notes.warnings
    assert "measuring speed on this machine" in notes.lines
    assert visits - steps < steps * batch <= visits
    assert (steps, batch) == size_for(60, visits)
    fewer = any(f"There will be {steps} of {batch}" in line for line in notes.lines)
    assert fewer == (visits < 480)


def test_private_lengths_move_no_plan_and_no_clock(planned, alone, machine, monkeypatch):
    machine(seconds_of(300, alone))
    found = [planned(RowsRequest(), data, max_minutes=1.0) for data in (SHORT, LONG)]
    (short, said), (long, said_too) = found
    assert short.plan == long.plan and short.plan.steps * short.plan.batch_size <= 300
    assert (short.phases, short.rows_seconds) == (long.phases, long.rows_seconds)
    assert [line for line in said.lines if " s, " not in line] == [
        line for line in said_too.lines if " s, " not in line
    ]
    # control: a plan by private lengths would be noticed
    spying = lambda run: Workload(max(len(text) for text in run.records.texts), 0)  # noqa: E731
    monkeypatch.setattr(story, "find_workload", spying)
    found = [planned(data=data, max_minutes=1.0)[0] for data in (SHORT, LONG)]
    assert found[0].plan != found[1].plan


@pytest.mark.parametrize(("options", "is_said"), [({}, True), ({"max_minutes": None}, False)])
def test_the_ledger_says_what_steps_follow_from(planned, options, is_said):
    run, _ = planned(**options)
    run.randomness = Randomness.for_tests(1)
    public = open_ledger(run).public_inputs
    assert any("the speed of the machine" in one for one in public) == is_said
    run.rows_seconds = 9.0 if is_said else None
    assert any("number of rows" in one for one in open_ledger(run).public_inputs) == is_said


@pytest.mark.parametrize(("owner", "most"), [(None, 1), ("who", 3)])
def test_a_plan_states_the_noise_that_counts_get(tiny_base, monkeypatch, owner, most):
    """Of owners it is as large as m records: `release_label_counts` says so."""
    frame = pd.DataFrame({"text": texts(), "label": LABELS, "who": [i // 3 for i in range(60)]})
    drawn = []

    def spy(*given):
        drawn.append(given[2] * given[4])  # σ · m
        return release_label_counts(*given)

    monkeypatch.setattr(releases, "release_label_counts", spy)
    options = {"max_records_per_owner": most} if owner else {}
    known = {"base_model": str(tiny_base), "steps": 2, "max_tokens": 12, "marginal_share": 0}
    config = run_config({**known, **options, "teacher_share": 0})
    declared = LabelRules({"label": LABELS[:2]})
    source = Source(frame, "text", ("label",), owner=owner, labels=declared)
    planned = plan_run(source, None, config, 5, Heard())
    fit(source, config, Heard())
    assert f"± {drawn[0]:.1f} records" in str(planned) and drawn[0] > most


@pytest.mark.parametrize(("owners", "warns"), [(100, True), (400, False)])
def test_few_owners_are_warned_that_values_may_not_be_selected(tiny_base, owners, warns):
    rows = range(2 * owners)
    frame = pd.DataFrame(
        {"text": [f"text {i}" for i in rows], "label": [LABELS[i % 2] for i in rows]}
    )
    config = run_config({"base_model": str(tiny_base), "steps": 0, "max_tokens": 12})
    source, heard = (
        Source(frame.assign(who=frame.index // 2), "text", ("label",), owner="who"),
        Heard(),
    )
    plan_run(source, None, config, 5, heard)
    assert ("declare `labels`" in " ".join(heard.warnings)) == warns


def test_a_plan_does_not_contradict_itself(planned, alone, machine, tiny_base):
    """Nothing trained beside choices that train; rows that "do not fit" beside minutes that do."""
    machine(seconds_of(1, alone))
    slow, notes = planned(RowsRequest(), steps=0, max_minutes=1.0)
    assert slow.rows_seconds and not [line for line in notes.lines if "do not fit" in line]
    assert not [line for line in notes.warnings if "fewer" in line]
    machine(1e-9)
    known = {"base_model": str(tiny_base), "max_tokens": 12}
    for steps, trains in ((0, False), (2, True)):
        notes = Heard()
        report = plan_run(None, 60, run_config(known | {"steps": steps}), None, notes)
        shown = str(report)
        assert ("nothing is trained" in shown) is not trains
        assert ("`noise_policy=" in shown) == bool(report.policies) == trains
        assert not [line for line in notes.lines if "do not fit" in line]
