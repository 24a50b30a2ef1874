"""What a private fine-tuning keeps on the disk to resume from, when it was killed or stopped.

Steps that a killed process took after its last checkpoint are lost with it: nobody has seen them,
so they are taken anew and counted once. Steps that left a checkpoint, or a model, count even if the
run goes on from another state. So others are looked for twice: before the first step, and when the
last one is written down. Of two processes that take the same steps at a time at least the one that
ends later sees the other. All of it lies in the run's private part.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinset.errors import InputError
from twinset.files.atomic import CHECKSUMS, cache_dir, write_json
from twinset.files.checkpoints import Checkpoint, Checkpoints, save_state
from twinset.models.device import CPU
from twinset.privacy.accounting.events import Event
from twinset.privacy.mechanism.counts import TokenMarginals
from twinset.privacy.statement.ledger import Ledger
from twinset.privacy.statement.wording import SPENT
from twinset.progress import Progress
from twinset.release.run_format import LEDGER
from twinset.table.schema import Combination
from twinset.table.templates import Template
from twinset.training.distributed import ProcessGroup
from twinset.training.step_log import FILE, StepLog, StepRange

CHECKPOINTS, STATE, FACTS = "checkpoints", "state.pt", "facts.json"
MARGINALS = "marginals.npz"
CHECKPOINT_SECONDS = 180.0
ANEW = f"`overwrite=True` deletes the run and starts anew, and {SPENT}"

State = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class ResumeState:
    """Where a fine-tuning resumes.

    Args:
        phase: of it; 0 is the first.
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

    def steps_of(self, phase: int) -> int:
        """Return how many steps of a phase the state holds, where it is of that phase."""
        return int(self.state["done"]) if phase == self.phase else 0


class Resumption:
    """The checkpoints and the step log of one fine-tuning.

    Args:
        folder: private to its owner.
        steps: T, of each phase.
        phases: how many; only in the last one steps spend ε.
        progress: is notified of what is damaged, and of what is not seen.
        accept_spend: resume although others took steps of the run, and count theirs.
        kept: is called when there is something to resume from.
        is_resumed: whether there must be something to resume from.

    Raises:
        InputError: what it would resume from is missing.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        phases: int,
        progress: Progress,
        accept_spend: bool = False,
        kept: Callable[[], object] = lambda: None,
        is_resumed: bool = False,
    ) -> None:
        self._progress = progress
        self.steps, self._last_step = steps, phases * steps
        self._accept_spend, self._kept = accept_spend, kept
        self._checkpoints = Checkpoints(folder / CHECKPOINTS)
        found = self._checkpoints.all()
        if is_resumed and not found:
            raise InputError(f"its checkpoints are missing; {ANEW}")
        if found and not (folder / FILE).is_file():
            raise InputError(f"{FILE} is missing: what was spent is not known; {ANEW}")
        self._log = StepLog(folder, cache_dir() / "journals")
        self._counted: dict[str, int] = {}  # last step of each process that is in the ledger
        self._found, self._warned = found, False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process train this run in the block; see `StepLog.alone`."""
        with self._log.alone():
            yield

    def resume_state(self) -> ResumeState | None:
        """Return what to resume from; None where there is nothing.

        Raises:
            InputError: every state is damaged, or others took steps that the newest whole one does
                not hold.
        """
        for damaged in (one for one in self._found if one.fault):
            self._progress.warn(f"{CHECKPOINTS}/{damaged.fault}; looking for an older one")
        newest = next((one for one in self._found if not one.fault), None)
        if newest is None and self._found:
            raise InputError(f"every checkpoint is damaged; {ANEW}")
        state = None if newest is None else self._read(newest)
        self._log.begin(newest.step if newest else 0, self._counted)
        self._warn_unseen()
        return state

    def _warn_unseen(self) -> None:
        """Say, once, that steps taken in copies of the folder are not seen."""
        if not self._log.sees_copies and not self._warned:
            self._warned = True
            self._progress.warn(
                f"{cache_dir()} cannot be written or locked: should a copy of this run's folder be "
                "resumed, neither would see the steps of the other, and ε must be added up by hand"
            )

    def _read(self, checkpoint: Checkpoint) -> ResumeState:
        import torch

        facts = json.loads((checkpoint.folder / FACTS).read_text("utf-8"))
        marginals = checkpoint.folder / MARGINALS
        has_teacher = checkpoint.step > self._last_step
        self._counted = facts["counted"]
        self._others()
        return ResumeState(
            facts["phase"],
            torch.load(checkpoint.folder / STATE, weights_only=True, map_location=CPU),
            {tuple(c): n for c, n in facts["label_counts"]},
            Ledger.load(checkpoint.folder / LEDGER),
            TokenMarginals.load(marginals) if marginals.is_file() else None,
            checkpoint.folder if has_teacher else None,
            Template.from_dict(facts["template"]) if "template" in facts else None,
        )

    def count_others(
        self, event: Event, teacher: Event | None, record: Callable[[Event], object]
    ) -> None:
        """Count what others did and left something of: releases of their own.

        To be called before the first step that spends ε, after the last, and after the teacher: the
        log holds it by then, so of two that train at a time one sees the other here.

        Args:
            event: of a step.
            teacher: event of the teacher; None: it spends nothing.
            record: the ledger's.

        Raises:
            InputError: there are such steps, and they were not accepted.
        """
        found = self._others()
        self._warn_unseen()
        steps, teachers = self._spending(found)
        for one in [event] * steps + [teacher] * teachers:
            if one is not None:
                record(one)
        self._counted = self._counted | {one.process: one.last for one in found}

    def _others(self) -> list[StepRange]:
        """Return what others did that is not in the ledger, if it may be there."""
        found = self._log.uncounted(self._counted)
        if any(self._spending(found)) and not self._accept_spend:
            first, last = min(s.first for s in found), max(s.last for s in found)
            raise InputError(
                f"another process took the run from step {first} to step {last}: taking these "
                "steps again is another release; `resume=True` `accept_spend=True` goes on and "
                "counts both"
            )
        return found

    def _spending(self, ranges: list[StepRange]) -> tuple[int, int]:
        """Return how many steps spend ε, and how many teachers, which stand behind the last."""
        free, last = self._last_step - self.steps, self._last_step
        steps = sum(max(0, min(s.last, last) - max(s.first, free)) for s in ranges)
        return steps, sum(s.first <= last < s.last for s in ranges)

    def callback(
        self,
        phase: int,
        ledger: Ledger,
        counts: Mapping[Combination, int],
        marginals: TokenMarginals | None,
        template: Template,
    ) -> PhaseCheckpoints:
        """Return what the training loop notifies of its steps in a phase."""
        facts = {
            "phase": phase,
            "label_counts": [[list(c), n] for c, n in counts.items()],
            "template": template.to_dict(),
        }
        return PhaseCheckpoints(self, phase * self.steps, facts, ledger, marginals)

    def keep(
        self,
        step: int,
        facts: dict[str, Any],
        ledger: Ledger,
        state: State,
        marginals: TokenMarginals | None,
    ) -> None:
        """Write a checkpoint."""
        counted = self._counted | {self._log.process: step}

        def save(folder: Path) -> None:
            write_json(folder / FACTS, facts | {"counted": counted})
            write_json(folder / LEDGER, ledger.to_dict())
            save_state(state(), folder / STATE)
            if marginals is not None:
                marginals.save(folder / MARGINALS)

        self._checkpoints.write(step, save)
        self._log.reach(step)
        self._kept()

    def keep_teacher(self, save_teacher: Callable[[Path], object], ledger: Ledger) -> None:
        """Write a checkpoint that holds the teacher too: it is logged as the step behind the last.

        Args:
            save_teacher: writes it into a folder.
            ledger: with its event.
        """
        trained, step = self._checkpoints.newest(), self._last_step + 1
        assert trained is not None  # training ends with one

        def save(folder: Path) -> None:
            for path in trained.folder.iterdir():
                if path.name != CHECKSUMS:
                    shutil.copyfile(path, folder / path.name)
            facts = json.loads((folder / FACTS).read_text("utf-8"))
            facts["counted"] = self._counted | {self._log.process: step}
            write_json(folder / FACTS, facts)
            write_json(folder / LEDGER, ledger.to_dict())
            save_teacher(folder)

        self._checkpoints.write(step, save)
        self._log.reach(step)
        self._kept()


class PhaseCheckpoints:
    """A checkpoint every few minutes, and one at the end.

    See `twinset.training.loop.CheckpointCallback`.
    """

    def __init__(
        self,
        resumption: Resumption,
        before: int,
        facts: dict[str, Any],
        ledger: Ledger,
        marginals: TokenMarginals | None,
    ) -> None:
        self._marginals = marginals
        self._resumption, self._before, self._facts = resumption, before, facts
        self._ledger, self._last = ledger, time.monotonic()

    def on_step(self, step: int, state: State) -> None:
        """Write a checkpoint where one is due."""
        if time.monotonic() - self._last > CHECKPOINT_SECONDS:
            self._keep(step, state)

    def on_end(self, step: int, state: State) -> None:
        """Write a checkpoint now, of a run without steps too: it holds what was counted."""
        if step or not self._resumption.steps:
            self._keep(step, state)

    def _keep(self, step: int, state: State) -> None:
        step += self._before
        self._resumption.keep(step, self._facts, self._ledger, state, self._marginals)
        self._last = time.monotonic()


@dataclass(frozen=True)
class RunContext:
    """Where a fine-tuning runs, what it resumes from, and with whom.

    Args:
        folder: private to its owner, for tokens; None: they are kept in memory.
        resumption: keeps what a stopped fine-tuning resumes from; None: nothing is kept.
        group: processes that form sums together; None: this one alone. It needs a folder.
    """

    folder: Path | None = None
    resumption: Resumption | None = None
    group: ProcessGroup | None = None

    def tokens(self, name: str) -> Path | None:
        """Return a folder for tokens of one kind."""
        if self.folder is None:
            return None
        made = self.folder / name
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Remove all tokens at the end of the block, however it ends: they hold the texts.

        A killed process leaves them, and a run that resumes from there looks at them again.
        """
        try:
            yield
        finally:
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
