"""A run's progress on stderr: a live line with a bar for people, else lines now and then.

People look at a terminal or a notebook. The live line shows when the whole run will end, if that
was planned. A plain line shows its phase. Knows how things look, and nothing of how they are
computed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType, _is_jupyter
from rich.segment import Segment

from twinset.commandline.entry_point import with_flags
from twinset.config.plan import Plan
from twinset.errors import InputError, printable
from twinset.privacy.accounting.accountant import up_decimals
from twinset.progress import Progress, StepReport, TimeLeft, clock

PLAIN_SECONDS = 10.0  # between two plain lines
DRAWN_SECONDS = 0.2  # between two states of a live line
BAR = 20  # characters
LOG_TIME = "%Y-%m-%d %H:%M:%S"
EPSILON_UPDATES = 20  # a run: the accountant takes its time


class Screen(RichConsole):
    """The output for everything that is shown. Text from others cannot control it."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(
            stderr=stderr,
            soft_wrap=stderr,
            highlight=False,
            markup=False,
            emoji=False,
            force_jupyter=False,  # it would write to where results go
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield rich's output without characters that control a terminal."""
        for part in super().render(renderable, options):  # colours are no part of the text
            yield part if part.control else part._replace(text=printable(part.text))


class Console(Progress, AbstractContextManager["Console"]):
    """Shows progress to people. With `quiet` it shows warnings only.

    A log file gets the same lines, with the time. Only its owner may read it. An existing file
    must be empty or a log, because it may be a table. Parameters of the library are shown as flags,
    unless the caller uses Python (`is_shell` False).

    Raises:
        InputError: the log cannot be written.
    """

    def __init__(
        self, quiet: bool = False, log_file: Path | None = None, is_shell: bool = True
    ) -> None:
        self._out, self._spell = Screen(stderr=True), with_flags if is_shell else str
        self._log = logging.Logger("twinset")
        self._log.disabled = log_file is None
        self._quiet, self._is_silent = quiet, quiet and log_file is None
        self._is_live = (self._out.is_terminal or _is_jupyter()) and not quiet
        self._drawn, self._width = 0.0, 0  # of the live line
        self._phase = ""
        self._began = self._last = self._spent = 0.0
        self._done = 0.0  # of the phase that is shown
        self._first = 0.0  # of the phase's parts, done when it was seen first
        self._ahead: TimeLeft | None = None
        self._run_began = 0.0
        if log_file is None:
            return
        try:
            if log_file.is_file():
                with log_file.open("rb") as file:
                    start = file.read(len("2024-02-29 12:00:00")).decode(errors="replace")
                try:
                    time.strptime(start or time.strftime(LOG_TIME), LOG_TIME)
                except ValueError:
                    raise InputError(
                        f"`log_file={log_file}`: exists and is not a log. Name another file."
                    ) from None
            os.close(os.open(log_file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            log_file.chmod(0o600)
            handler = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            said = f"`log_file={log_file}`: cannot be written ({error.strerror}). Check the path."
            raise InputError(said) from None
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", LOG_TIME))
        self._log.addHandler(handler)

    def __enter__(self) -> Self:
        """Explain why nothing else is shown for some seconds."""
        if "torch" not in sys.modules:
            self.say("loading libraries")
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the terminal."""
        self._end_phase()

    def say(self, line: str) -> None:
        """See `twinset.progress.Progress`."""
        self._end_phase()
        line = printable(self._spell(line))
        self._log.info(line)
        if not self._quiet:
            self._out.print(line)

    def warn(self, line: str) -> None:
        """Show a line that no option hides."""
        self._end_phase()
        line = f"WARNING: {printable(self._spell(line))}"
        self._log.info(line)
        self._out.print(line, style="bold red")

    def expect(self, phases: Sequence[tuple[str, float]]) -> None:
        """See `twinset.progress.Progress`."""
        self._ahead, self._run_began = TimeLeft(phases), time.monotonic()

    def step(self, report: StepReport, plan: Plan) -> None:
        """Show step, loss, clipped share, ε spent of target, and speed, aligned."""
        if self._is_silent:
            return
        due = report.step == plan.steps or not (report.step - 1) % -(-plan.steps // EPSILON_UPDATES)
        first = report.taken <= 1  # a resumed run begins with the earlier spending
        if (due or first) and plan.is_covered:
            self._spent = plan.epsilon_after(report.step)
        speed = plan.batch_size * report.taken / report.seconds if report.seconds > 0 else 0.0
        loss = "  none" if report.loss != report.loss else f"{report.loss:6.3f}"
        budget = "none"
        if plan.is_covered:
            budget = f"{up_decimals(self._spent)}/{up_decimals(plan.highest)}"
        self._show(
            "training",
            f"step {report.step:0{len(str(plan.steps))}}/{plan.steps} | loss {loss} | "
            f"clipped {report.clipped:4.0%} | eps {budget} | {speed:.3g} rec/s",
            report.step,
            plan.steps,
            report.seconds / max(1, report.taken),
        )

    def count(
        self, what: str, done: int, total: int, share: float | None = None, more: str = ""
    ) -> None:
        """See `twinset.progress.Progress`. Its pace is that of parts of usual size."""
        if not self._is_silent:
            line = f"{what} {done:0{len(str(total))}}/{total}{f' | {more}' if more else ''}"
            self._show(what, line, done if share is None else share * total, total)

    def _show(
        self, phase: str, line: str, done: float, total: int, each: float | None = None
    ) -> None:
        """Show how far a phase is and when it ends. A bar shows the end of a planned run.

        `each` is the seconds per part. None: measured from here, and shown as a pace.
        """
        line = printable(line)
        if phase == self._phase and done == self._done == total:
            return  # it was shown
        if phase != self._phase or done < self._done:  # another phase, or the same once more
            self._end_phase()
            self._phase, self._began, self._first = phase, time.monotonic(), done
            # The first step tells at once, and so does what says that it begins.
            self._last = 0.0 if phase == "training" or not done else self._began
        self._done = done
        if each is None:
            seen = done - self._first
            each = (time.monotonic() - self._began) / seen if seen else 0.0
            if each:  # slow paces are by the minute
                line += f" | {1 / each:.3g}/s" if each < 1 else f" | {60 / each:.3g}/min"
        left, eta = each * (total - done), ""
        if each or done == total:
            eta = f" | eta {clock(left)}"
        now, is_whole = time.monotonic(), done == total
        is_due = is_whole or now - self._last >= PLAIN_SECONDS
        if is_due:
            self._last = now
            self._log.info(f"{line}{eta}")
        if self._is_live and (is_whole or now - self._drawn >= DRAWN_SECONDS):
            shown, end = f"{line}{eta}", float(total)
            if self._ahead:
                left = self._ahead.after(phase, done, total, each)
                done = time.monotonic() - self._run_began
                # The time comes first, because a narrow terminal cuts the line.
                shown, end = f"{clock(left)} left | {line}", done + left
            whole = round(BAR * min(1.0, done / end)) if end else BAR
            shown = f"{'━' * whole}{'╶' * (BAR - whole)} {shown}"
            if self._out.is_terminal:  # a longer line would go on in the next one
                shown = shown[: self._out.width - 1]
            # a notebook knows no other way to go back
            self._out.file.write(f"\r{shown:{self._width}}")
            self._out.file.flush()
            self._drawn, self._width = now, len(shown)
        elif is_due and not (self._is_live or self._quiet):
            self._out.print(f"{line}{eta}")

    def _end_phase(self) -> None:
        if self._width:
            self._out.file.write("\n")
        self._phase, self._drawn, self._width = "", 0.0, 0
