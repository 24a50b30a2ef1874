"""Which steps a run's processes took, so that steps taken twice are counted twice.

A process begins at a checkpoint and writes down how far it came. If another begins at the same one,
what the first did beyond it is a release of its own. A copy of the run folder has the same journal:
it is kept in the user's cache too, where copies meet. What another machine does is not seen.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinset.artefact import JsonLines, write_text
from twinset.errors import InputError

FILE = "journal.jsonl"


@dataclass(frozen=True)
class Stretch:
    """Steps that a process took beyond a checkpoint.

    Args:
        process: that took them.
        first: step before the first of them.
        last: of them.
    """

    process: str
    first: int
    last: int


class Journal:
    """A run's journal.

    Args:
        folder: of the run, private.
        elsewhere: folder of the user's, for all runs.

    Raises:
        InputError: the run's own journal is damaged.
    """

    def __init__(self, folder: Path, elsewhere: Path) -> None:
        self._own, self._process = folder / FILE, secrets.token_hex(8)
        _mend(self._own)
        lines = list(_read(self._own))
        self._run = lines[0]["run"] if lines else secrets.token_hex(8)
        if not lines:
            JsonLines(self._own).append({"run": self._run})
        self._mirror = elsewhere / f"{self._run}.jsonl"
        self._begun = 0

    def begin(self, step: int) -> None:
        """Go on from a checkpoint, or from nothing."""
        self._begun = step

    def reach(self, step: int) -> None:
        """Write down that this process came so far."""
        line = {"process": self._process, "begun": self._begun, "reached": step}
        JsonLines(self._own).append(line)
        with suppress(OSError, InputError):  # a cache that cannot be written holds no copy
            self._mirror.parent.mkdir(parents=True, exist_ok=True)
            JsonLines(self._mirror).append(line)

    def beyond(self, step: int, accepted: Mapping[str, int]) -> list[Stretch]:
        """Return what others did beyond a checkpoint.

        Args:
            step: of the checkpoint.
            accepted: last steps of processes whose steps are in its ledger already.
        """
        lines = [*_read(self._own), *_read(self._mirror)]
        reached: dict[str, tuple[int, int]] = {}
        for line in lines:
            if "process" in line and line["process"] != self._process:
                begun, last = reached.get(line["process"], (line["begun"], 0))
                reached[line["process"]] = begun, max(last, line["reached"])
        found = [
            Stretch(process, max(begun, step, accepted.get(process, 0)), last)
            for process, (begun, last) in reached.items()
        ]
        return [stretch for stretch in found if stretch.last > stretch.first]


def _mend(path: Path) -> None:
    """Take away a last line that a killed process could not finish."""
    text = path.read_text("utf-8") if path.is_file() else ""
    if not text.endswith("\n") and text:
        write_text(path, text[: text.rfind("\n") + 1])


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal; a last one that was cut off is left out."""
    lines = path.read_text("utf-8").split("\n") if path.is_file() else []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield json.loads(line)
        except ValueError:
            raise InputError(
                f"{path.name}, line {number}: is damaged; start the run anew"
            ) from None
