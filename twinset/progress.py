"""What a run tells its owner while it works. Nothing here reaches `share/`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from twinset.artefact import JsonLines, write_json
from twinset.noisemap import draw_noise_map
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

    def count(self, what: str, done: int, total: int) -> None:
        """Tell how many are done of `what`: rows written, texts masked."""
        ...

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """Tell where noise went: by parameter, the mean factor of what `uniform` draws."""
        ...


class Silent:
    """Tells nothing."""

    def say(self, line: str) -> None:
        """See `Progress`."""

    def warn(self, line: str) -> None:
        """See `Progress`."""

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`."""

    def count(self, what: str, done: int, total: int) -> None:
        """See `Progress`."""

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """See `Progress`."""


class Recorded:
    """Passes everything on; writes each step and a picture of the noise to `internal/`.

    Args:
        progress: to whom it is passed on.
        internal: the folder.
    """

    def __init__(self, progress: Progress, internal: Path) -> None:
        self._progress, self._internal = progress, internal
        self._metrics = JsonLines(internal / "metrics.jsonl")
        self.say, self.warn, self.count = progress.say, progress.warn, progress.count

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`. A figure that is not finite becomes null, as JSON has none."""
        figures = {k: v if math.isfinite(v) else None for k, v in asdict(report).items()}
        self._metrics.append(figures)
        self._progress.step(report, plan)

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """See `Progress`."""
        write_json(self._internal / "noise.json", dict(mean_noise))
        draw_noise_map(mean_noise, self._internal / "noise.png")
        self._progress.noise(mean_noise)
