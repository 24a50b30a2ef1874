"""What a terminal shows of the time that is left, by a clock that the test turns."""

import io
import re

import pytest
from rich.console import Console as RichConsole

from twinset.commandline import console as shown
from twinset.config.options import run_config
from twinset.config.plan import make_plan
from twinset.progress import StepReport, TimeLeft


@pytest.fixture
def clock(monkeypatch):
    """A clock at 0; call it with seconds to go on."""
    now = [0.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])

    def turn(seconds):
        now[0] += seconds
        return now[0]

    return turn


@pytest.fixture
def console(monkeypatch, clock):
    """A console whose live lines are kept, with what its bar shows."""
    made, lines = shown.Console(), []
    made._out = RichConsole(file=io.StringIO(), force_terminal=True, width=200)
    update = shown.Console._update

    def kept(self, line, completed, total):
        time = next(part for part in line.split(" | ") if re.search("left|eta", part))
        lines.append((time, round(completed / total, 3)))
        update(self, line, completed, total)

    monkeypatch.setattr(shown.Console, "_update", kept)
    with made:
        yield made, lines


PLAN = make_plan(1000, run_config({"steps": 4, "batch_size": 50}))


def step(console, number, seconds, taken=None):
    console.step(StepReport(number, 50, 4.0, 0.5, 0, seconds, taken or number), PLAN)


def test_a_terminal_shows_the_end_of_the_whole_run(console, clock):
    progress, lines = console
    progress.expect([("training", 40.0), ("rows", 60.0)])
    for number in (1, 2, 3, 4):
        step(progress, number, clock(10))
    for rows in (0, 10, 20):
        progress.count("rows", rows, 20)
        clock(30)
    assert lines == [
        ("01:30 left", 0.1),
        ("01:20 left", 0.2),
        ("01:10 left", 0.3),
        ("01:00 left", 0.4),
        ("01:00 left", 0.4),
        ("00:30 left", 0.7),
        ("00:00 left", 1.0),
    ]


def test_what_the_present_phase_shows_corrects_those_to_come(console, clock):
    """A machine that is half as fast as it was when it was measured."""
    progress, lines = console
    progress.expect([("training", 40.0), ("rows", 60.0)])
    step(progress, 1, clock(20))
    assert lines[-1] == ("03:00 left", 0.1)  # 3 steps of 20 s, and twice 60 s


def test_a_narrow_terminal_shows_the_time_that_is_left(console, clock):
    progress, _ = console
    progress._out = RichConsole(file=io.StringIO(), force_terminal=True, width=60)
    progress.expect([("training", 40.0), ("rows", 60.0)])
    step(progress, 1, clock(10))
    progress.say("done")
    assert "01:30 left | step 1/4" in progress._out.file.getvalue()


def test_a_resumed_phase_counts_what_this_process_does(console, clock):
    progress, lines = console
    step(progress, 3, clock(30), taken=1)
    assert lines[-1] == ("eta 00:30", 0.75)
    progress.count("rows", 2048, 4096)
    clock(100)
    progress.count("rows", 2148, 4096)
    assert lines[-1][0] == "eta 32:28"  # a second a row


def test_parts_that_take_longer_count_for_more(console, clock):
    """The longest rows come first: when few are written, much of the work is done."""
    progress, lines = console
    progress.count("rows", 0, 100, 0.0)
    clock(60)
    progress.count("rows", 20, 100, 0.5)
    assert lines[-1][0] == "eta 01:00"
    clock(60)
    progress.count("rows", 100, 100, 1.0)
    assert lines[-1][0] == "eta 00:00"


def test_a_resumed_phase_shows_what_was_spent_before_at_once(clock):
    progress = shown.Console()
    progress._out = RichConsole(file=io.StringIO(), width=200)
    many = make_plan(1000, run_config({"steps": 100, "batch_size": 50}))
    clock(20)
    progress.step(StepReport(50, 10, 1.0, 0.5, 0, 1.0, 1), many)
    assert f"| eps {many.epsilon_after(50):.2f}/8.00 |" in progress._out.file.getvalue()


def test_without_a_plan_of_its_time_a_phase_shows_its_own_end(console, clock):
    progress, lines = console
    step(progress, 1, clock(10))
    assert lines == [("eta 00:30", 0.25)]


def test_other_output_shows_the_phase(clock):
    progress = shown.Console()
    progress._out = RichConsole(file=io.StringIO(), width=200)
    progress.expect([("training", 40.0), ("rows", 60.0)])
    step(progress, 1, clock(20))
    assert progress._out.file.getvalue().rstrip().endswith("| 2.5 rec/s | eta 01:00")


def test_two_phases_of_one_name_follow_each_other():
    """Selective noise trains twice."""
    left = TimeLeft([("training", 40.0), ("training", 40.0), ("rows", 20.0)])
    seen = [left.after("training", step, 4, 10.0) for step in (2, 4, 1, 4)]
    assert seen == [80.0, 60.0, 50.0, 20.0]


def test_a_phase_that_was_not_planned_delays_the_others():
    left = TimeLeft([("training", 40.0), ("rows", 20.0)])
    assert left.after("texts masked", 10, 30, 1.0) == 80.0
    assert left.after("training", 1, 4, 10.0) == 50.0
