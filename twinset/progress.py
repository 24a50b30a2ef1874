"""What a run reports to its owner while it works. Nothing here reaches `share/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from twinset.config.plan import Plan


@dataclass(frozen=True)
class StepReport:
    """One step as seen from inside. Private: for the owner's eyes and `internal/` only.

    Args:
        step: 1 … T.
        records: units in the Poisson batch; may be 0.
        loss: mean loss over the batch; NaN when it was empty.
        clipped: share of units whose gradient was longer than it may be.
        non_finite: units whose gradient was not finite and counted as zero.
        seconds: wall time since training began.
    """

    step: int
    records: int
    loss: float
    clipped: float
    non_finite: int
    seconds: float


@dataclass(frozen=True)
class PretrainingReport:
    """One step of pre-training, on public text.

    Args:
        step: 1 … T.
        steps: T.
        loss: nats a token, mean of its blocks; None where no step was taken.
        tokens: read so far.
        seconds: since this process began.
        taken: steps that this process took.
        bits: validation bits per byte, where it was measured.
    """

    step: int
    steps: int
    loss: float | None
    tokens: int
    seconds: float
    taken: int
    bits: float | None = None


class Progress(Protocol):
    """Listens to a run. Steps carry private figures: show them to the owner alone.

    What inherits from this need only define what it shows.
    """

    def say(self, line: str) -> None:
        """Show one line: a guess, what happens next."""
        return

    def warn(self, line: str) -> None:
        """Show what nobody should miss."""
        return

    def expect(self, phases: Sequence[tuple[str, float]]) -> None:
        """Report the phases of the run in order, and how many seconds each is planned to take."""
        return

    def step(self, report: StepReport, plan: Plan) -> None:
        """Report one training step."""
        return

    def pretraining_step(self, report: PretrainingReport) -> None:
        """Report one step on public text."""
        return

    def count(self, what: str, done: int, total: int) -> None:
        """Report how many are done of `what`: rows written, texts masked."""
        return

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """Report where noise went: by parameter, the mean factor of what `uniform` draws."""
        return


class Silent(Progress):
    """Shows nothing."""


def clock(seconds: float) -> str:
    """Return a duration as people read it.

    >>> clock(32.4), clock(3723)
    ('00:32', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
