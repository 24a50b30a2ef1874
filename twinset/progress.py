"""What a run tells its owner while it works. Nothing here reaches `share/`."""

from __future__ import annotations

from typing import Protocol

from twinset.plan import Plan
from twinset.training import StepReport


class Progress(Protocol):
    """Listens to a run. Steps carry private figures: show them to the owner, share them with nobody."""

    def say(self, line: str) -> None:
        """Tell one line: a guess, a warning, what happens next."""
        ...

    def step(self, report: StepReport, plan: Plan) -> None:
        """Tell of one training step."""
        ...

    def rows(self, done: int, total: int) -> None:
        """Tell how many of the twin's rows are written."""
        ...


class Silent:
    """Tells nothing."""

    def say(self, line: str) -> None:
        """See `Progress`."""

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`."""

    def rows(self, done: int, total: int) -> None:
        """See `Progress`."""
