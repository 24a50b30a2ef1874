"""A run's progress on stderr: a live line with a bar on a terminal, else a plain line now and then.

Knows how things look, and nothing of how they are computed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn

from twinset.commandline.entry_point import with_flags
from twinset.config.plan import Plan
from twinset.progress import PretrainingReport, StepReport, clock

PLAIN_SECONDS = 10.0  # between two plain lines
EPSILON_UPDATES = 20  # a run; the accountant takes its time


class Console:
    """Shows progress to people.

    Example:
        `with Console() as progress: generate(…, progress)`

    Args:
        quiet: show warnings only.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._out = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._live: tuple[Progress, Any] | None = None
        self._phase = ""
        self._bits = 0.0  # per byte, of the last validation
        self._began = self._last = self._spent = 0.0

    def __enter__(self) -> Console:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self._end_phase()

    def say(self, line: str) -> None:
        """See `twinset.progress.Progress`."""
        self._end_phase()
        if not self._quiet:
            self._out.print(with_flags(line), markup=False)

    def warn(self, line: str) -> None:
        """Show a line that no option hides."""
        self._end_phase()
        self._out.print(f"WARNING: {with_flags(line)}", markup=False, style="bold red")

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `twinset.progress.Progress`."""
        if self._quiet:
            return
        due = report.step == plan.steps or not (report.step - 1) % -(-plan.steps // EPSILON_UPDATES)
        if due and plan.is_covered:
            self._spent = plan.epsilon_after(report.step)
        self._show("training", step_line(report, plan, self._spent), report.step, plan.steps)

    def pretraining_step(self, report: PretrainingReport) -> None:
        """See `twinset.progress.Progress`."""
        if self._quiet:
            return
        self._bits = report.bits or self._bits
        line = pretraining_line(report, self._bits)
        self._show("pre-training", line, report.step, report.steps)

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """See `twinset.progress.Progress`; a picture of it is in the run folder."""

    def count(self, what: str, done: int, total: int) -> None:
        """See `twinset.progress.Progress`."""
        if self._quiet:
            return
        self._begin_phase(what)
        seconds = time.monotonic() - self._began
        left = seconds * (total - done) / done if done else 0.0
        width = len(str(total))
        rate = done / seconds if seconds > 0 else 0.0
        line = f"{what} {done:0{width}}/{total} | {rate:.3g}/s | eta {clock(left)}"
        self._show(what, line, done, total)

    def _show(self, phase: str, line: str, done: int, total: int) -> None:
        self._begin_phase(phase)
        if self._live:
            bar, task = self._live
            bar.update(task, completed=done, total=total, description=line)
        elif done == total or time.monotonic() - self._last >= PLAIN_SECONDS:
            self._last = time.monotonic()
            self._out.print(line, markup=False)

    def _begin_phase(self, phase: str) -> None:
        if phase == self._phase:
            return
        self._end_phase()
        self._phase, self._began = phase, time.monotonic()
        self._last = 0.0 if phase == "training" else self._began  # the first step tells at once
        if self._out.is_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            bar = Progress(*columns, console=self._out)
            self._live = bar, bar.add_task("")
            bar.start()

    def _end_phase(self) -> None:
        if self._live:
            self._live[0].stop()
        self._live, self._phase = None, ""


def step_line(report: StepReport, plan: Plan, spent: float) -> str:
    """Return one aligned line: step, loss, clipped share, ε spent of target, speed, time left."""
    width = len(str(plan.steps))
    left = report.seconds * (plan.steps - report.step) / report.step
    speed = plan.batch_size * report.step / report.seconds if report.seconds > 0 else 0.0
    loss = "  none" if report.loss != report.loss else f"{report.loss:6.3f}"
    budget = f"{spent:.2f}/{plan.highest:.2f}" if plan.is_covered else "none"
    return (
        f"step {report.step:0{width}}/{plan.steps} | loss {loss} | clipped {report.clipped:4.0%} | "
        f"eps {budget} | {speed:.3g} rec/s | eta {clock(left)}"
    )


def pretraining_line(report: PretrainingReport, bits: float) -> str:
    """Return one line: step, loss, last validation, speed, time left."""
    each = report.seconds / max(1, report.taken)
    speed = report.tokens / max(1, report.step) / each if each > 0 else 0.0
    loss = "  none" if report.loss is None else f"{report.loss:6.3f}"
    validation = f"{bits:.3f} bits/byte" if bits else "not validated"
    return (
        f"step {report.step:0{len(str(report.steps))}}/{report.steps} | loss {loss} | "
        f"{validation} | {speed:.3g} tokens/s | eta {clock(each * (report.steps - report.step))}"
    )
