"""What a run keeps so that it can resume. Every step that spends ε is counted.

Steps that a killed process took after its last checkpoint are lost with it. Their results were
never seen, so they are taken again and counted once. Steps that left a checkpoint or a model count
as released. They count even if the run continues from another state, because the newest checkpoint
is damaged or an older one was put in its place.

The journal next to the checkpoints has a line for each process that began, and one for each state
that a process left. A state records how many steps of each process it includes. Any other step in
the journal was released as well. The run then refuses to continue, or with `accept_spend` counts
both. A copied run folder has its own journal, and neither copy sees what the other spends.

All of this stays in the run's private folder.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from twinset.errors import DAMAGED, InputError
from twinset.files.atomic import (
    CHECKSUMS,
    append_json,
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
from twinset.release.share import LEDGER
from twinset.run.request import ResumeState, Run
from twinset.run.run_folder import RunFolder
from twinset.sampling.column_model import ColumnModel
from twinset.table.templates import Template
from twinset.training.loop import KeepState

CHECKPOINTS, STATE, FACTS = "checkpoints", "state.pt", "facts.json"
MARGINALS, JOURNAL = "marginals.npz", "journal.jsonl"
CHECKPOINT_SECONDS = 180.0
KEPT = 2  # checkpoints: one more, in case the newest gets damaged
BEGIN_AGAIN = f"`overwrite=True` deletes the run and starts a new one, and {SPENT}"


class StepRange(NamedTuple):
    """A range of steps that one process took."""

    process: str
    first: int  # the step before the first of them
    last: int


class Checkpoints:
    """The checkpoints and the journal of one fine-tuning.

    Steps are numbered through all phases. Only those of the last phase spend ε. The teacher counts
    as the step after the last one.

    Args:
        run: it has a plan.
        run_folder: it is kept from the first checkpoint on.
        folder: private to its owner.

    Raises:
        InputError: the state to resume from is missing, or the journal is damaged.
    """

    def __init__(self, run: Run, run_folder: RunFolder, folder: Path) -> None:
        self._run, self._run_folder, self._folder = run, run_folder, folder / CHECKPOINTS
        self.steps = run.plan.steps
        self.last_step = self.steps * len(run.plan.policy_class.phases())
        there = bool(self._found())
        if run_folder.is_resumed and not there:
            raise InputError(f"its checkpoints are missing. {BEGIN_AGAIN}.")
        if there and not (folder / JOURNAL).is_file():
            raise InputError(f"{JOURNAL} is missing, so the spent ε is unknown. {BEGIN_AGAIN}.")
        self._journal = Journal(folder / JOURNAL)
        self._counted: dict[str, int] = {}  # last step of each process that is in the ledger

    def restore(self) -> ResumeState | None:
        """Return the newest undamaged state, or None if there is no checkpoint.

        The run gets back its ledger, its counts and the prompt that was chosen by them.

        Raises:
            InputError: every state is damaged, or the journal has steps that the newest undamaged
                one does not include.
        """
        import torch

        found, whole = self._found(), []
        for step, folder in found:
            if damage := fault(folder):
                self._run.progress.warn(f"{CHECKPOINTS}/{damage}. Looking for an older one.")
            else:
                whole.append((step, folder))
        if not whole:
            if found:
                raise InputError(f"every checkpoint is damaged. {BEGIN_AGAIN}.")
            self._journal.begin(0, {})
            return None
        step, folder = whole[0]
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        self._counted = facts["counted"]
        self._find_lost()  # refuses before anything is read or written
        run, run.ledger = self._run, Ledger.load(folder / LEDGER)
        run.template = Template.from_dict(facts["template"])
        run.label_counts = {tuple(c): n for c, n in facts["label_counts"]}
        if (marginals := folder / MARGINALS).is_file():
            run.marginals = TokenMarginals.load(marginals)
        run.keep_columns(ColumnModel.load(folder, len(run.label_counts)))
        state = torch.load(folder / STATE, weights_only=True, map_location=CPU)
        self._journal.begin(step, self._counted)
        return ResumeState(facts["phase"], state, folder if step > self.last_step else None)

    def count_lost(self, event: Event, teacher: Event | None) -> None:
        """Record releases by other processes that the resumed state does not include.

        Call it once, before the first step that spends ε. The run folder's lock keeps every other
        process out until this one ends, so the journal does not grow meanwhile. `event` is that of
        a step. Without privacy the teacher has no event.

        Raises:
            InputError: there are such steps, and they were not accepted.
        """
        lost, steps, teachers = self._find_lost()
        for one in [event] * steps + [teacher] * teachers:
            if one is not None:
                self._run.ledger.record(one)
        self._counted = self._counted | {one.process: one.last for one in lost}

    def _find_lost(self) -> tuple[list[StepRange], int, int]:
        """Return released steps that spend ε, and teachers, that the ledger does not include.

        Raises:
            InputError: there are such steps, and they were not accepted.
        """
        lost = self._journal.uncounted(self._counted)
        free, last = self.last_step - self.steps, self.last_step  # steps without noise, all steps
        steps = sum(max(0, min(one.last, last) - max(one.first, free)) for one in lost)
        teachers = sum(one.first <= last < one.last for one in lost)
        if steps + teachers and not self._run.paths.accept_spend:
            raise InputError(
                f"another process took the run from step {min(one.first for one in lost)} to step "
                f"{max(one.last for one in lost)}. Taking these steps again spends privacy again. "
                "`resume=True` `accept_spend=True` takes them and counts both."
            )
        return lost, steps, teachers

    def callback(self, phase: int) -> KeepState:
        """Return a callback that saves a phase's training state every few minutes and at the end.

        Each state includes the ledger as of that step, and what the run released before.
        """
        last, run = time.monotonic(), self._run
        facts = {
            "phase": phase,
            "label_counts": [[list(c), n] for c, n in run.label_counts.items()],
            "template": asdict(run.template),
        }

        def keep(step: int, state: Callable[[], dict[str, Any]], is_end: bool) -> None:
            nonlocal last
            # Also saved at the end if there are no steps to take: the state includes the counts.
            due = step or not self.steps
            if not (due if is_end else time.monotonic() - last > CHECKPOINT_SECONDS):
                return
            import torch

            with self._write(phase * self.steps + step, facts) as new:
                try:
                    torch.save(state(), new / STATE)
                except RuntimeError as error:  # torch reports a full disk without a number
                    raise OSError(errno.ENOSPC, "No space left on device") from error
                if run.marginals is not None:
                    run.marginals.save(new / MARGINALS)
                if run.columns is not None:
                    run.columns.save(new)
            last = time.monotonic()

        return keep

    def keep_teacher(self, save_teacher: Callable[[Path], object]) -> None:
        """Write a checkpoint that includes the teacher. The ledger already has its event."""
        # Training ends with a checkpoint, so there is a whole one.
        trained = next(folder for _, folder in self._found() if not fault(folder))
        facts = json.loads((trained / FACTS).read_text("utf-8"))
        with self._write(self.last_step + 1, facts) as new:
            for path in trained.iterdir():
                if path.name not in (CHECKSUMS, FACTS, LEDGER):
                    shutil.copyfile(path, new / path.name)
            save_teacher(new)

    @contextmanager
    def _write(self, step: int, facts: dict[str, Any]) -> Iterator[Path]:
        """Yield an empty folder, then move it into place and remove all but the last two.

        The journal's line comes last. If the process is killed before that, the next process finds
        the state ahead of the journal and writes the line, see `Journal.begin`.
        """
        new = self._folder / f".new-{step}"
        shutil.rmtree(new, ignore_errors=True)  # one that a killed process left
        new.mkdir(parents=True)
        yield new
        write_json(new / FACTS, facts | {"counted": self._counted | {self._journal.process: step}})
        write_json(new / LEDGER, self._run.ledger.to_dict())
        write_checksums(new)
        final = self._folder / f"step-{step}"
        shutil.rmtree(final, ignore_errors=True)
        new.rename(final)
        flush(self._folder)
        for _, old in self._found()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        self._journal.reach(step)
        self._run_folder.keep()

    def _found(self) -> list[tuple[int, Path]]:
        """Return the checkpoints' steps and folders, newest first."""
        paths = self._folder.glob("step-*")
        return sorted(((int(p.name.removeprefix("step-")), p) for p in paths), reverse=True)


class Journal:
    """Which steps a run's processes released, one line each. Lines are only ever appended.

    Raises:
        InputError: a line is damaged, so the spent ε is unknown.
    """

    def __init__(self, path: Path) -> None:
        self.process = secrets.token_hex(8)  # the name of this one
        self._path, self._first = path, 0
        text = path.read_text("utf-8") if path.is_file() else ""
        if text and not text.endswith("\n"):  # a killed process could not finish its last line
            write_text(path, text[: text.rfind("\n") + 1])
        self._reached: dict[str, tuple[int, int]] = {}  # of each other process: first and last step
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            try:
                found = json.loads(line)
                process, first, last = found["process"], found["begun"], found["reached"]
                if not re.fullmatch("[0-9a-f]{16}", process):
                    raise ValueError("no name of a process")
                range(first, last)  # refuses values that are not whole numbers
            except DAMAGED:
                raise InputError(
                    f"{path.name}, line {number}: is damaged, so the spent ε is unknown. "
                    "Start the run again."
                ) from None
            first, before = self._reached.get(process, (first, 0))
            self._reached[process] = first, max(before, last)

    def begin(self, step: int, counted: Mapping[str, int]) -> None:
        """Record that this process continues from the state of a step, or starts from nothing.

        `counted` is the last step of each process that the state includes.
        """
        self._first = step
        for process, (first, last) in self._reached.items():
            if counted.get(process, 0) > last:  # it was killed between its state and its line
                line = {"process": process, "begun": first, "reached": counted[process]}
                append_json(self._path, line)
        self.reach(step)

    def reach(self, step: int) -> None:
        """Record that this process left a state, or a model, after `step` steps."""
        line = {"process": self.process, "begun": self._first, "reached": step}
        append_json(self._path, line)

    def uncounted(self, counted: Mapping[str, int]) -> list[StepRange]:
        """Return releases by others that a state does not include. `counted` is as in `begin`."""
        found = [
            StepRange(process, counted.get(process, first), last)
            for process, (first, last) in self._reached.items()
        ]
        return [one for one in found if one.last > one.first]
