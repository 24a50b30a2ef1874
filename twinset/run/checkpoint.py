"""What a run keeps on the disk to resume from: no step is spent twice without being counted.

Steps that a killed process took after its last checkpoint are lost with it. Nobody has seen them,
so they are taken again and counted once. Steps that left a checkpoint, or a model, are a release.
They count even if the run goes on from another state: because the newest checkpoint is damaged, or
because an older one was put in its place.

So a journal beside the checkpoints holds a line for each process that began, and one for each state
it left. What a state holds of each process is known from the state. Whatever else stands in the
journal was released besides: the run refuses to go on, or (`accept_spend`) counts both. A copy of
the run folder has a journal of its own, and neither copy sees what the other spends.

All of this is in the run's private part.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import (
    CHECKSUMS,
    JsonLines,
    fault,
    flush,
    write_checksums,
    write_json,
    write_text,
)
from twinset.models.device import CPU
from twinset.privacy.accounting.events import Event
from twinset.privacy.mechanism.counts import TokenMarginals
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.wording import SPENT
from twinset.progress import Progress
from twinset.release.share import LEDGER
from twinset.table.schema import Combination
from twinset.table.templates import Template
from twinset.training.loop import KeepState

CHECKPOINTS, STATE, FACTS = "checkpoints", "state.pt", "facts.json"
MARGINALS, JOURNAL = "marginals.npz", "journal.jsonl"
CHECKPOINT_SECONDS = 180.0
KEPT = 2  # checkpoints: if the newest is damaged later, there is one more
BEGIN_AGAIN = f"`overwrite=True` deletes the run and starts a new one, and {SPENT}"


@dataclass(frozen=True)
class ResumeState:
    """Where a fine-tuning resumes.

    Args:
        phase: of training; 0 is the first.
        state: of the training loop.
        counts: noisy label counts, released before.
        ledger: what was spent until then.
        marginals: noisy counts of tokens, released before; None: they are not.
        teacher: folder of the teacher, released before; None: it is not.
        template: of the prompts, as chosen before; None: an older version chose none.
    """

    phase: int
    state: dict[str, Any]
    counts: dict[Combination, int]
    ledger: Ledger
    marginals: TokenMarginals | None = None
    teacher: Path | None = None
    template: Template | None = None


class StepRange(NamedTuple):
    """Steps that a process took: the step before the first of them, and the last."""

    process: str
    first: int
    last: int


class Checkpoints:
    """The checkpoints and the journal of one fine-tuning.

    Steps are numbered through all phases. The teacher is the step behind the last one.

    Args:
        folder: private to its owner.
        steps: T, of each phase.
        phases: how many; only in the last one steps spend ε.
        progress: is notified of what is damaged.
        accept_spend: take steps again that a process released before, and count theirs too.
        on_kept: is called when there is something to resume from.
        is_resumed: whether there must be something to resume from.

    Raises:
        InputError: what it would resume from is missing, or the journal is damaged.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        phases: int,
        progress: Progress,
        accept_spend: bool = False,
        on_kept: Callable[[], object] = lambda: None,
        is_resumed: bool = False,
    ) -> None:
        self._folder, self._progress = folder / CHECKPOINTS, progress
        self.steps, self.last_step = steps, phases * steps
        self._accept_spend, self._on_kept = accept_spend, on_kept
        there = bool(self._found())
        if is_resumed and not there:
            raise InputError(f"its checkpoints are missing; {BEGIN_AGAIN}")
        if there and not (folder / JOURNAL).is_file():
            raise InputError(f"{JOURNAL} is missing: what was spent is not known; {BEGIN_AGAIN}")
        self._journal = Journal(folder / JOURNAL)
        self._counted: dict[str, int] = {}  # last step of each process that is in the ledger

    def resume_state(self) -> ResumeState | None:
        """Return the newest whole state; None if there is no checkpoint.

        Raises:
            InputError: every state is damaged, or the journal has steps that the newest whole one
                does not hold.
        """
        import torch

        found, newest = self._found(), None
        for step, folder in found:
            if damage := fault(folder):
                self._progress.warn(f"{CHECKPOINTS}/{damage}; looking for an older one")
            elif newest is None:
                newest = step, folder
        if newest is None:
            if found:
                raise InputError(f"every checkpoint is damaged; {BEGIN_AGAIN}")
            self._journal.begin(0, {})
            return None
        step, folder = newest
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        self._counted = facts["counted"]
        self._uncounted()  # refuses before anything is read or written
        marginals = folder / MARGINALS
        state = ResumeState(
            facts["phase"],
            torch.load(folder / STATE, weights_only=True, map_location=CPU),
            {tuple(c): n for c, n in facts["label_counts"]},
            Ledger.load(folder / LEDGER),
            TokenMarginals.load(marginals) if marginals.is_file() else None,
            folder if step > self.last_step else None,
            Template.from_dict(facts["template"]) if "template" in facts else None,
        )
        self._journal.begin(step, self._counted)
        return state

    def count_lost(
        self, event: Event, teacher: Event | None, record: Callable[[Event], object]
    ) -> None:
        """Record what other processes released and the state that is resumed does not hold.

        To be called once, before the first step that spends ε. The run folder's lock keeps every
        other process out until this one ends, so nothing is added to the journal meanwhile.

        Args:
            event: of a step.
            teacher: event of the teacher; None: it spends nothing.
            record: the ledger's.

        Raises:
            InputError: there are such steps, and they were not accepted.
        """
        found = self._uncounted()
        steps, teachers = self._spending(found)
        for one in [event] * steps + [teacher] * teachers:
            if one is not None:
                record(one)
        self._counted = self._counted | {one.process: one.last for one in found}

    def _uncounted(self) -> list[StepRange]:
        """Return what others released that is not in the ledger, if that is accepted."""
        lost = self._journal.uncounted(self._counted)
        if any(self._spending(lost)) and not self._accept_spend:
            raise InputError(
                f"another process took the run from step {min(s.first for s in lost)} to step "
                f"{max(s.last for s in lost)}: taking these steps again is another release; "
                "`resume=True` `accept_spend=True` goes on and counts both"
            )
        return lost

    def _spending(self, ranges: list[StepRange]) -> tuple[int, int]:
        """Return how many steps spend ε, and how many teachers, which stand behind the last."""
        free, last = self.last_step - self.steps, self.last_step
        steps = sum(max(0, min(s.last, last) - max(s.first, free)) for s in ranges)
        return steps, sum(s.first <= last < s.last for s in ranges)

    def callback(
        self,
        phase: int,
        ledger: Ledger,
        counts: Mapping[Combination, int],
        marginals: TokenMarginals | None,
        template: Template,
    ) -> KeepState:
        """Return what keeps the training loop's states in a phase: every few minutes, and the last.

        Args:
            phase: of training; 0 is the first.
            ledger: whose events until then are kept with a state.
            counts: noisy label counts.
            marginals: noisy counts of tokens; None: they are not counted.
            template: of the prompts.
        """
        last = time.monotonic()
        facts = {
            "phase": phase,
            "label_counts": [[list(c), n] for c, n in counts.items()],
            "template": template.to_dict(),
        }

        def keep(step: int, state: Callable[[], dict[str, Any]], is_end: bool) -> None:
            nonlocal last
            # At the end also where there are no steps to take: the state holds what was counted.
            due = step or not self.steps
            if not (due if is_end else time.monotonic() - last > CHECKPOINT_SECONDS):
                return

            def save(folder: Path) -> None:
                try:
                    import torch

                    torch.save(state(), folder / STATE)
                except RuntimeError as error:  # torch reports a full disk without a number
                    raise OSError(errno.ENOSPC, "No space left on device") from error
                if marginals is not None:
                    marginals.save(folder / MARGINALS)

            self._write(phase * self.steps + step, facts, ledger, save)
            last = time.monotonic()

        return keep

    def keep_teacher(self, save_teacher: Callable[[Path], object], ledger: Ledger) -> None:
        """Write a checkpoint that holds the teacher too: it is logged as the step behind the last.

        Args:
            save_teacher: writes it into a folder.
            ledger: with its event.
        """
        # Training ends with a checkpoint, so there is a whole one.
        trained = next(folder for _, folder in self._found() if not fault(folder))
        facts = json.loads((trained / FACTS).read_text("utf-8"))

        def save(folder: Path) -> None:
            for path in trained.iterdir():
                if path.name not in (CHECKSUMS, FACTS, LEDGER):
                    shutil.copyfile(path, folder / path.name)
            save_teacher(folder)

        self._write(self.last_step + 1, facts, ledger, save)

    def _write(
        self, step: int, facts: dict[str, Any], ledger: Ledger, save: Callable[[Path], object]
    ) -> None:
        """Write a checkpoint, and remove all but the last two; killed, it leaves those.

        The journal's line comes last. If the process is killed before it, the next one finds its
        own state ahead of the journal and writes the line, see `Journal.begin`.
        """
        new, final = self._folder / f".new-{step}", self._folder / f"step-{step}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        counted = self._counted | {self._journal.process: step}
        write_json(new / FACTS, facts | {"counted": counted})
        write_json(new / LEDGER, ledger.to_dict())
        save(new)
        write_checksums(new)
        shutil.rmtree(final, ignore_errors=True)
        new.rename(final)
        flush(self._folder)
        for _, old in self._found()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        self._journal.reach(step)
        self._on_kept()

    def _found(self) -> list[tuple[int, Path]]:
        """Return steps and folders of the checkpoints, the newest first."""
        paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
        names = [(path, re.fullmatch(r"step-(\d+)", path.name)) for path in paths]
        return sorted(((int(name[1]), path) for path, name in names if name), reverse=True)


class Journal:
    """Which steps a run's processes released, one line each, only ever appended to.

    Attributes:
        process: this one's name, drawn at random.

    Args:
        path: of the file, in the run's private part.

    Raises:
        InputError: a line is damaged, so what was spent is not known.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.process, self._first = path, secrets.token_hex(8), 0
        text = path.read_text("utf-8") if path.is_file() else ""
        if text and not text.endswith("\n"):  # a killed process could not finish its last line
            write_text(path, text[: text.rfind("\n") + 1])
        self._reached: dict[str, tuple[int, int]] = {}  # of each other process: first and last step
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            try:
                found = json.loads(line)
                if "run" in found:  # the first line of an older version, with the run's name
                    continue
                process, first, last = found["process"], found["begun"], found["reached"]
                if not re.fullmatch("[0-9a-f]{16}", process):
                    raise ValueError("no name of a process")
                range(first, last)  # refuses what is no whole number
            except DAMAGED:
                raise InputError(
                    f"{path.name}, line {number}: is damaged, so what was spent is not known; "
                    "start the run again"
                ) from None
            first, before = self._reached.get(process, (first, 0))
            self._reached[process] = first, max(before, last)

    def begin(self, step: int, counted: Mapping[str, int]) -> None:
        """Write down that this process goes on from a state, or from nothing.

        Args:
            step: of the state.
            counted: what the state holds of each process: its last step.
        """
        self._first = step
        for process, (first, last) in self._reached.items():
            if counted.get(process, 0) > last:  # it was killed between its state and its line
                self._append(process, first, counted[process])
        self.reach(step)

    def reach(self, step: int) -> None:
        """Write down that this process left a state, or a model, after `step` steps."""
        self._append(self.process, self._first, step)

    def uncounted(self, counted: Mapping[str, int]) -> list[StepRange]:
        """Return what others released that a state does not hold.

        Args:
            counted: what the state holds of each process: its last step.
        """
        found = [
            StepRange(process, counted.get(process, first), last)
            for process, (first, last) in self._reached.items()
        ]
        return [one for one in found if one.last > one.first]

    def _append(self, process: str, first: int, reached: int) -> None:
        JsonLines(self._path).append({"process": process, "begun": first, "reached": reached})
