"""What a terminal shows of the time that is left, by a clock that the test turns."""

import io
import re

import pytest
from rich.console import Console as RichConsole

from twinset.commandline import console as shown
from twinset.config.options import run_config
from twinset.config.plan import make_plan
from twinset.progress import StepReport, TimeLeft

PLAN = make_plan(1000, run_config({"steps": 4, "batch_size": 50}))
PHASES = [("training", 40.0), ("rows", 60.0)]


@pytest.fixture
def clock(monkeypatch):
    """A clock at 0. Call it with seconds to go on."""
    now = [0.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])

    def turn(seconds):
        now[0] += seconds
        return now[0]

    return turn


@pytest.fixture
def console(monkeypatch, clock):
    """A console on a terminal, with the time and the bar of its live lines."""
    made, lines = console_of(width=200, is_terminal=True), []
    update = shown.Console._update

    def kept(self, line, completed, total):
        time = next(part for part in line.split(" | ") if re.search("left|eta", part))
        lines.append((time, round(completed / total, 3)))
        update(self, line, completed, total)

    monkeypatch.setattr(shown.Console, "_update", kept)
    with made:
        yield made, lines


def console_of(width, is_terminal=False):
    made = shown.Console()
    made._out = RichConsole(file=io.StringIO(), force_terminal=is_terminal, width=width)
    return made


def step(console, number, seconds, taken=None, plan=PLAN):
    console.step(StepReport(number, 50, 4.0, 0.5, 0, seconds, taken or number), plan)


def test_a_terminal_shows_the_end_of_the_whole_run(console, clock):
    progress, lines = console
    progress.expect(PHASES)
    for number in (1, 2, 3, 4):
        step(progress, number, clock(10))
    for rows in (0, 10, 20):
        progress.count("rows", rows, 20)
        clock(30)
    left = ["01:30", "01:20", "01:10", "01:00", "01:00", "00:30", "00:00"]
    done = [0.1, 0.2, 0.3, 0.4, 0.4, 0.7, 1.0]
    assert lines == [(f"{time} left", part) for time, part in zip(left, done, strict=True)]


def test_the_present_phase_corrects_those_to_come_and_a_narrow_terminal_shows_it(clock, console):
    """The machine is half as fast as it was when it was measured."""
    progress, lines = console
    progress._out = RichConsole(file=io.StringIO(), force_terminal=True, width=60)
    progress.expect(PHASES)
    step(progress, 1, clock(20))
    assert lines[-1] == ("03:00 left", 0.1)  # 3 steps of 20 s, and twice 60 s
    progress.say("done")
    assert "03:00 left | step 1/4" in progress._out.file.getvalue()


def test_without_a_plan_of_its_time_a_phase_shows_its_own_end(console, clock):
    progress, lines = console
    step(progress, 3, clock(30), taken=1)  # resumed: this process took one step
    assert lines == [("eta 00:30", 0.75)]
    progress.count("rows", 2048, 4096)
    clock(100)
    progress.count("rows", 2148, 4096)
    assert lines[-1][0] == "eta 32:28"  # a second a row
    # The longest texts come first: when few are masked, much of the work is done.
    for done, share, left in ((0, 0.0, None), (20, 0.5, "01:00"), (100, 1.0, "00:00")):
        progress.count("texts masked", done, 100, share)
        assert left is None or lines[-1][0] == f"eta {left}"
        clock(60)


def test_other_output_shows_the_phase_and_what_was_spent_before(clock):
    progress = console_of(width=200)
    progress.expect(PHASES)
    step(progress, 1, clock(20))
    assert progress._out.file.getvalue().rstrip().endswith("| 2.5 rec/s | eta 01:00")
    many = make_plan(1000, run_config({"steps": 100, "batch_size": 50}))
    resumed = console_of(width=200)
    step(resumed, 50, 1.0, taken=1, plan=many)
    assert f"| eps {many.epsilon_after(50):.2f}/8.00 |" in resumed._out.file.getvalue()


def test_phases_of_one_name_follow_each_other_and_others_delay_them():
    """Selective noise trains twice."""
    left = TimeLeft([("training", 40.0), ("training", 40.0), ("rows", 20.0)])
    seen = [left.after("training", step, 4, 10.0) for step in (2, 4, 1, 4)]
    assert seen == [80.0, 60.0, 50.0, 20.0]
    left = TimeLeft([("training", 40.0), ("rows", 20.0)])
    assert left.after("texts masked", 10, 30, 1.0) == 80.0
    assert left.after("training", 1, 4, 10.0) == 50.0
