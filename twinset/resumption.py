"""What a private fine-tuning keeps on the disk to go on from, when it was killed or stopped.

Steps that a killed process took after its last checkpoint are lost with it: nobody has seen them,
so they are taken anew and counted once. Steps that left a later checkpoint, or a model, count even
if the run goes on from an earlier one. All of it lies in the run's private part.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinset.artefact import write_json
from twinset.assets import cache_dir
from twinset.checkpoints import Checkpoint, Checkpoints, save_state
from twinset.errors import InputError
from twinset.journal import FILE, Journal
from twinset.privacy.ledger import Ledger
from twinset.progress import Progress
from twinset.schema import Combination

CHECKPOINTS, STATE, LEDGER, FACTS = "checkpoints", "state.pt", "ledger.json", "facts.json"
CHECKPOINT_SECONDS = 180.0

State = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Begun:
    """Where a fine-tuning goes on.

    Args:
        phase: of it; 0 is the first.
        state: of the training loop.
        counts: noisy label counts, released before.
        ledger: what was spent until then.
        taken_elsewhere: steps that others took beyond this state: releases of their own.
    """

    phase: int
    state: dict[str, Any]
    counts: dict[Combination, float]
    ledger: Ledger
    taken_elsewhere: int


class Resumption:
    """The checkpoints and the journal of one fine-tuning.

    Args:
        folder: private to its owner.
        steps: T, of each phase.
        phases: how many; only in the last one steps spend ε.
        progress: is told what is damaged.
        accept_spend: go on from a state that was gone on from before.
        kept: is called when there is something to go on from.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        phases: int,
        progress: Progress,
        accept_spend: bool = False,
        kept: Callable[[], object] = lambda: None,
    ) -> None:
        self._progress = progress
        self._steps, self._phases = steps, phases
        self._accept_spend, self._kept = accept_spend, kept
        self._checkpoints = Checkpoints(folder / CHECKPOINTS)
        found = self._checkpoints.all()
        if found and not (folder / FILE).is_file():
            raise InputError(f"{FILE} is missing: what was spent is not known; start the run anew")
        self._journal = Journal(folder, cache_dir() / "journals")
        self._accepted: dict[str, int] = {}
        self._found = found

    def begun(self) -> Begun | None:
        """Return what to go on from; None where there is nothing.

        Raises:
            InputError: every state is damaged, or others went on from the newest whole one.
        """
        for damaged in (one for one in self._found if one.fault):
            self._progress.warn(f"{CHECKPOINTS}/{damaged.fault}; looking for an older one")
        newest = next((one for one in self._found if not one.fault), None)
        if newest is None:
            if self._found:
                raise InputError("every checkpoint is damaged; start the run anew: --overwrite")
            return None
        return self._read(newest)

    def _read(self, checkpoint: Checkpoint) -> Begun:
        import torch

        facts = json.loads((checkpoint.folder / FACTS).read_text("utf-8"))
        elsewhere = self._taken_elsewhere(checkpoint.step, facts["accepted"])
        self._journal.begin(checkpoint.step)
        return Begun(
            facts["phase"],
            torch.load(checkpoint.folder / STATE, weights_only=True),
            {tuple(c): n for c, n in facts["label_counts"]},
            Ledger.load(checkpoint.folder / LEDGER),
            elsewhere,
        )

    def _taken_elsewhere(self, step: int, accepted: dict[str, int]) -> int:
        stretches = self._journal.beyond(step, accepted)
        free = (self._phases - 1) * self._steps
        taken = sum(max(0, s.last - max(s.first, free)) for s in stretches)
        if taken and not self._accept_spend:
            last = max(stretch.last for stretch in stretches)
            raise InputError(
                f"the run was gone on from step {step} before, to step {last}: taking these steps "
                "again is another release; --accept-spend goes on and counts both"
            )
        self._accepted = accepted | {s.process: s.last for s in stretches}
        return taken

    def keeper(
        self, phase: int, ledger: Ledger, counts: Mapping[Combination, float]
    ) -> PhaseKeeper:
        """Return what the training loop tells of its steps in a phase."""
        facts = {
            "phase": phase,
            "label_counts": [[list(c), n] for c, n in counts.items()],
            "accepted": self._accepted,
        }
        return PhaseKeeper(self, phase * self._steps, facts, ledger)

    def finished(self) -> None:
        """Write down that all steps were taken."""
        self._journal.reach(self._phases * self._steps)

    def keep(self, step: int, facts: dict[str, Any], ledger: Ledger, state: State) -> None:
        """Write a checkpoint."""

        def save(folder: Path) -> None:
            write_json(folder / FACTS, facts)
            write_json(folder / LEDGER, ledger.to_dict())
            save_state(state(), folder / STATE)

        self._checkpoints.write(step, save)
        self._journal.reach(step)
        self._kept()


class PhaseKeeper:
    """See `twinset.training.Keeper`: a checkpoint every few minutes, and one at the end."""

    def __init__(
        self, resumption: Resumption, before: int, facts: dict[str, Any], ledger: Ledger
    ) -> None:
        self._resumption, self._before, self._facts = resumption, before, facts
        self._ledger, self._last = ledger, time.monotonic()

    def passed(self, step: int, state: State) -> None:
        """Write a checkpoint where one is due."""
        if time.monotonic() - self._last > CHECKPOINT_SECONDS:
            self._keep(step, state)

    def ended(self, step: int, state: State) -> None:
        """Write a checkpoint now."""
        if step:
            self._keep(step, state)

    def _keep(self, step: int, state: State) -> None:
        self._resumption.keep(self._before + step, self._facts, self._ledger, state)
        self._last = time.monotonic()
