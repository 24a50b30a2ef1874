"""What a run tells its owner while it works. Nothing here reaches `share/`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from twinset.artefact import JsonLines
from twinset.plan import Plan
from twinset.training import StepReport


class Progress(Protocol):
    """Listens to a run. Steps carry private figures: show them to the owner alone."""

    def say(self, line: str) -> None:
        """Tell one line: a guess, what happens next."""
        ...

    def warn(self, line: str) -> None:
        """Tell what nobody should miss."""
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

    def warn(self, line: str) -> None:
        """See `Progress`."""

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`."""

    def rows(self, done: int, total: int) -> None:
        """See `Progress`."""


class Recorded:
    """Passes everything on, and writes each step to a file of `internal/`.

    Args:
        progress: to whom it is passed on.
        metrics: the file, one JSON object a step.
    """

    def __init__(self, progress: Progress, metrics: Path) -> None:
        self._progress, self._metrics = progress, JsonLines(metrics)
        self.say, self.warn, self.rows = progress.say, progress.warn, progress.rows

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`. A figure that is not finite becomes null, as JSON has none."""
        figures = {k: v if math.isfinite(v) else None for k, v in asdict(report).items()}
        self._metrics.append(figures)
        self._progress.step(report, plan)
