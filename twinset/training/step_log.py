"""Which steps a run's processes took, so that steps taken twice are counted twice.

A process writes a line when it begins, and one for each state it leaves on the disk: a release.
What such a state holds of each process is known from the state; whatever else stands here was
released besides. A copy of the run folder has the same log: it is kept in the user's cache too,
where copies meet, beside a lock that one process at a time holds while it trains. What happens on
another machine, or without the cache, is not seen.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import JsonLines, write_text

FILE = "journal.jsonl"


@dataclass(frozen=True)
class StepRange:
    """Steps that a process took.

    Args:
        process: that took them.
        first: step before the first of them.
        last: of them.
    """

    process: str
    first: int
    last: int


class StepLog:
    """A run's log of steps.

    Attributes:
        process: this one's name, drawn at random.
        sees_copies: whether what processes in copies of the folder do is seen; False once the
            cache could not be read, written or locked.

    Args:
        folder: of the run, private.
        elsewhere: folder of the user's, for all runs.

    Raises:
        InputError: the run's own log is damaged.
    """

    def __init__(self, folder: Path, elsewhere: Path) -> None:
        self._own, self.process, self.sees_copies = folder / FILE, secrets.token_hex(8), True
        _mend(self._own)
        lines = _read(self._own)
        self._run = lines[0]["run"] if lines else secrets.token_hex(8)
        if not lines:
            JsonLines(self._own).append({"run": self._run})
        self._mirror = elsewhere / f"{self._run}.jsonl"
        self._first = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process train this run in the block, from whichever copy of its folder.

        The kernel frees the lock when its process dies, however it dies.

        Raises:
            InputError: another one is training it.
        """
        lock = FileLock(self._mirror.with_suffix(".lock"))
        try:
            self._mirror.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
            _mend(self._mirror)
        except Timeout:
            raise InputError(
                "another process is training this run now, in a copy of its folder: taking its "
                "steps here too is another release; wait until it has ended, then `resume=True` "
                "`accept_spend=True` goes on here and counts both"
            ) from None
        except (OSError, InputError, NotImplementedError):  # a file system may have no locks
            self.sees_copies = False
        try:
            yield
        finally:
            lock.release()

    def begin(self, step: int, counted: Mapping[str, int]) -> None:
        """Write down that this process goes on from a state, or from nothing.

        Args:
            step: of the state.
            counted: what the state holds of each process: its last step.
        """
        self._first = step
        for process, (first, last) in self._others().items():
            if counted.get(process, 0) > last:  # it was killed between its state and its line
                self._append(process, first, counted[process])
        self.reach(step)

    def reach(self, step: int) -> None:
        """Write down that this process left a state, or a model, of so many steps."""
        self._append(self.process, self._first, step)

    def uncounted(self, counted: Mapping[str, int]) -> list[StepRange]:
        """Return what others released that a state does not hold.

        Args:
            counted: what the state holds of each process: its last step.
        """
        found = [
            StepRange(process, counted.get(process, first), last)
            for process, (first, last) in self._others().items()
        ]
        return [one for one in found if one.last > one.first]

    def _others(self) -> dict[str, tuple[int, int]]:
        """Return where each other process began, and how far it came."""
        reached: dict[str, tuple[int, int]] = {}
        for line in [*_read(self._own), *self._copied()]:
            if "process" in line and line["process"] != self.process:
                first, last = reached.get(line["process"], (line["begun"], 0))
                reached[line["process"]] = first, max(last, line["reached"])
        return reached

    def _copied(self) -> list[dict[str, Any]]:
        try:
            return _read(self._mirror)
        except OSError:
            self.sees_copies = False
            return []

    def _append(self, process: str, first: int, reached: int) -> None:
        line = {"process": process, "begun": first, "reached": reached}
        JsonLines(self._own).append(line)
        try:
            JsonLines(self._mirror).append(line)
        except (OSError, InputError):
            self.sees_copies = False


def _mend(path: Path) -> None:
    """Take away a last line that a killed process could not finish."""
    text = path.read_text("utf-8") if path.is_file() else ""
    if not text.endswith("\n") and text:
        write_text(path, text[: text.rfind("\n") + 1])


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log; a last one that was cut off is left out.

    Raises:
        InputError: another line is damaged.
        OSError: the file cannot be read.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_checked(json.loads(line)))
        except DAMAGED:
            raise InputError(
                f"{path.name}, line {number}: is damaged, so what was spent is not known; start "
                "the run anew"
            ) from None
    return found


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    if "run" in line:
        _named(line["run"])
    else:
        _named(line["process"])
        range(line["begun"], line["reached"])  # whole numbers
    return line


def _named(name: str) -> None:
    if not re.fullmatch("[0-9a-f]{16}", name):
        raise ValueError("no name of a run or a process")
