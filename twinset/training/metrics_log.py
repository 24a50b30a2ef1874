"""What `internal/` keeps of a training: a line a step, and a picture of where noise went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from twinset.config.plan import Plan
from twinset.files.atomic import JsonLines, write_json
from twinset.progress import Progress, StepReport
from twinset.training.noise_plot import draw_noise_map


class MetricsLog:
    """Passes everything on; writes each step and a picture of the noise to `internal/`.

    Args:
        progress: to whom it is passed on.
        internal: the folder.
    """

    def __init__(self, progress: Progress, internal: Path) -> None:
        self._progress, self._internal = progress, internal
        self._metrics = JsonLines(internal / "metrics.jsonl")
        self.say, self.warn, self.count = progress.say, progress.warn, progress.count
        self.expect = progress.expect
        self.pretraining_step = progress.pretraining_step

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
