"""What `internal/` keeps of a training: a line a step, and where noise went."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from twinset.config.plan import Plan
from twinset.files.atomic import append_json, write_json
from twinset.progress import Progress, StepReport

_LAYER = re.compile(r"\.(\d+)\.")
OUTSIDE = "-"  # parameters outside the layers


class MetricsLog:
    """Passes everything on; writes each step and where noise went to `internal/`."""

    def __init__(self, progress: Progress, internal: Path) -> None:
        self._progress, self._internal = progress, internal
        self.say, self.warn, self.count = progress.say, progress.warn, progress.count
        self.expect = progress.expect

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`. A figure that is not finite becomes null, as JSON has none."""
        figures = {k: v if math.isfinite(v) else None for k, v in asdict(report).items()}
        append_json(self._internal / "metrics.jsonl", figures)
        self._progress.step(report, plan)

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """Keep the factors, which `twinset report` draws; see `Progress`."""
        write_json(self._internal / "noise.json", dict(mean_noise))
        self._progress.noise(mean_noise)


def noise_cells(mean_noise: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return the geometric mean factor of each (layer, kind) of parameters.

    It comes from gradients that were released, so it tells nothing more than the model does.

    >>> cells = noise_cells({"h.0.attn.q.weight": 0.5, "h.0.attn.q.bias": 2.0, "wte.weight": 1.5})
    >>> {place: round(factor, 3) for place, factor in cells.items()}
    {('0', 'attn.q'): 1.0, ('-', 'wte'): 1.5}
    """
    found: dict[tuple[str, str], list[float]] = {}
    for name, factor in mean_noise.items():
        # A name without what wraps it, and without its last part: "0.attn.q" or "wte".
        short = re.sub(r"^(base_model\.model\.)?(transformer\.|model\.)?", "", name)
        short = re.sub(r"(\.default)?\.(weight|bias)$", "", short)
        layer = _LAYER.search(short)
        place = (layer[1], short[layer.end() :]) if layer else (OUTSIDE, short)
        found.setdefault(place, []).append(math.log(factor))
    return {place: math.exp(sum(logs) / len(logs)) for place, logs in found.items()}
