"""A run's progress on stderr: a live line with a bar on a terminal, else a plain line now and then.

The live line shows when the whole run will end, if that was planned. A plain line shows its phase.
Knows how things look, and nothing of how they are computed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn

from twinset.commandline.entry_point import with_flags
from twinset.config.plan import Plan
from twinset.errors import InputError
from twinset.privacy.accounting.accountant import up_decimals
from twinset.progress import PretrainingReport, StepReport, TimeLeft, clock

PLAIN_SECONDS = 10.0  # between two plain lines
LOG_TIME = "%Y-%m-%d %H:%M:%S"
EPSILON_UPDATES = 20  # a run: the accountant takes its time


class Console:
    """Shows progress to people.

    Example:
        `with Console() as progress: generate(…, progress)`

    Args:
        quiet: show warnings only.
        log_file: gets the same lines, with the time. Only its owner may read it.

    Raises:
        InputError: it cannot be written.
    """

    def __init__(self, quiet: bool = False, log_file: Path | None = None) -> None:
        self._out = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._log = None if log_file is None else _logger(log_file)
        self._live: tuple[Progress, Any] | None = None
        self._phase = ""
        self._bits = 0.0  # per byte, of the last validation
        self._began = self._last = self._spent = 0.0
        self._done = 0.0  # of the phase that is shown
        self._first = 0.0  # of the phase's parts, done when it was seen first
        self._ahead: TimeLeft | None = None
        self._run_began = 0.0

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
        self._note(with_flags(line))
        if not self._quiet:
            self._out.print(with_flags(line), markup=False)

    def warn(self, line: str) -> None:
        """Show a line that no option hides."""
        self._end_phase()
        self._note(f"WARNING: {with_flags(line)}")
        self._out.print(f"WARNING: {with_flags(line)}", markup=False, style="bold red")

    def expect(self, phases: Sequence[tuple[str, float]]) -> None:
        """See `twinset.progress.Progress`."""
        self._ahead, self._run_began = TimeLeft(phases), time.monotonic()

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `twinset.progress.Progress`."""
        if self._is_silent:
            return
        due = report.step == plan.steps or not (report.step - 1) % -(-plan.steps // EPSILON_UPDATES)
        first = report.taken <= 1  # a resumed run begins with what was spent before
        if (due or first) and plan.is_covered:
            self._spent = plan.epsilon_after(report.step)
        each = report.seconds / max(1, report.taken)
        line = step_line(report, plan, self._spent)
        self._show("training", line, report.step, plan.steps, each)

    def pretraining_step(self, report: PretrainingReport) -> None:
        """See `twinset.progress.Progress`."""
        if self._is_silent:
            return
        self._bits = report.bits or self._bits
        line, each = pretraining_line(report, self._bits), report.seconds / max(1, report.taken)
        self._show("pre-training", line, report.step, report.steps, each)

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """See `twinset.progress.Progress`. A picture of it is in the run folder."""

    def count(self, what: str, done: int, total: int, share: float | None = None) -> None:
        """See `twinset.progress.Progress`. Its pace is that of parts of usual size."""
        if self._is_silent:
            return
        worked = done if share is None else share * total
        self._begin_phase(what, worked)
        seconds, seen = time.monotonic() - self._began, worked - self._first
        each = seconds / seen if seen else 0.0
        line = f"{what} {done:0{len(str(total))}}/{total}{_pace(each)}"
        self._show(what, line, worked, total, each)

    def _show(self, phase: str, line: str, done: float, total: int, each: float) -> None:
        """Show how far a phase is and when it ends. A bar shows the end of a planned run."""
        self._begin_phase(phase, done)
        left = each * (total - done)
        is_due = done == total or time.monotonic() - self._last >= PLAIN_SECONDS
        if is_due:
            self._last = time.monotonic()
            self._note(f"{line} | eta {clock(left)}")
        if self._quiet:
            return
        if self._live and self._ahead:
            left = self._ahead.after(phase, done, total, each)
            spent = time.monotonic() - self._run_began
            # The time stands first, as a narrow terminal cuts the line.
            self._update(f"{clock(left)} left | {line}", spent, spent + left)
        elif self._live:
            self._update(f"{line} | eta {clock(left)}", done, total)
        elif is_due:
            self._out.print(f"{line} | eta {clock(left)}", markup=False)

    @property
    def _is_silent(self) -> bool:
        """Whether nobody reads how far a phase is."""
        return self._quiet and self._log is None

    def _note(self, line: str) -> None:
        if self._log:
            self._log.info(line)

    def _update(self, line: str, completed: float, total: float) -> None:
        assert self._live
        bar, task = self._live
        bar.update(task, completed=completed, total=total, description=line)

    def _begin_phase(self, phase: str, done: float) -> None:
        is_begun, self._done = phase == self._phase and done >= self._done, done
        if is_begun:  # else another phase, or the same once more
            return
        self._end_phase()
        self._phase, self._began, self._first = phase, time.monotonic(), done
        self._last = 0.0 if phase == "training" else self._began  # the first step tells at once
        if self._out.is_terminal and not self._quiet:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            bar = Progress(*columns, console=self._out)
            self._live = bar, bar.add_task("")
            bar.start()

    def _end_phase(self) -> None:
        if self._live:
            self._live[0].stop()
        self._live, self._phase = None, ""


def _logger(path: Path) -> logging.Logger:
    """Return a log that continues a file, which must be empty or a log: it may be a table."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(len("2024-02-29 12:00:00")).decode(errors="replace")
            try:
                time.strptime(start or time.strftime(LOG_TIME), LOG_TIME)
            except ValueError:
                raise InputError(
                    f"`log_file={path}`: exists and is no log; name another file"
                ) from None
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        path.chmod(0o600)
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise InputError(f"`log_file={path}`: cannot be written ({error.strerror})") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", LOG_TIME))
    found = logging.Logger("twinset")
    found.addHandler(handler)
    return found


def _pace(each: float) -> str:
    """Return how fast it goes, if that is known. Slow paces are by the minute.

    >>> _pace(0.004), _pace(20.0), _pace(0.0)
    (' | 250/s', ' | 3/min', '')
    """
    if not each:
        return ""
    return f" | {1 / each:.3g}/s" if each < 1 else f" | {60 / each:.3g}/min"


def step_line(report: StepReport, plan: Plan, spent: float) -> str:
    """Return one aligned line: step, loss, clipped share, ε spent of target, speed."""
    width = len(str(plan.steps))
    speed = plan.batch_size * report.taken / report.seconds if report.seconds > 0 else 0.0
    loss = "  none" if report.loss != report.loss else f"{report.loss:6.3f}"
    budget = f"{up_decimals(spent)}/{up_decimals(plan.highest)}" if plan.is_covered else "none"
    return (
        f"step {report.step:0{width}}/{plan.steps} | loss {loss} | clipped {report.clipped:4.0%} | "
        f"eps {budget} | {speed:.3g} rec/s"
    )


def pretraining_line(report: PretrainingReport, bits: float) -> str:
    """Return one line: step, loss, last validation, speed."""
    each = report.seconds / max(1, report.taken)
    speed = report.tokens / max(1, report.step) / each if each > 0 else 0.0
    loss = "  none" if report.loss is None else f"{report.loss:6.3f}"
    validation = f"{bits:.3f} bits/byte" if bits else "not validated"
    return (
        f"step {report.step:0{len(str(report.steps))}}/{report.steps} | loss {loss} | "
        f"{validation} | {speed:.3g} tokens/s"
    )
