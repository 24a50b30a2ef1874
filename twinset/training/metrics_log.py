"""What `internal/` keeps of a training: a line a step, and a picture of where noise went."""

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
    """Passes everything on; writes each step and a picture of the noise to `internal/`.

    Args:
        progress: to whom it is passed on.
        internal: the folder.
    """

    def __init__(self, progress: Progress, internal: Path) -> None:
        self._progress, self._internal = progress, internal
        self.say, self.warn, self.count = progress.say, progress.warn, progress.count
        self.expect = progress.expect
        self.pretraining_step = progress.pretraining_step

    def step(self, report: StepReport, plan: Plan) -> None:
        """See `Progress`. A figure that is not finite becomes null, as JSON has none."""
        figures = {k: v if math.isfinite(v) else None for k, v in asdict(report).items()}
        append_json(self._internal / "metrics.jsonl", figures)
        self._progress.step(report, plan)

    def noise(self, mean_noise: Mapping[str, float]) -> None:
        """Keep the factors, and draw them on a logarithmic scale around 1; see `Progress`."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        write_json(self._internal / "noise.json", dict(mean_noise))
        cells = noise_cells(mean_noise)
        layers = sorted({layer for layer, _ in cells}, key=lambda x: (x == OUTSIDE, x.zfill(4)))
        kinds = list(dict.fromkeys(kind for _, kind in cells))
        logs = [[math.log2(cells.get((row, kind), math.nan)) for kind in kinds] for row in layers]
        most = max([0.1, *(abs(x) for row in logs for x in row if x == x)])
        size = 2.5 + 0.9 * len(kinds), 1.8 + 0.28 * len(layers)  # inches that labels fit into
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        image = axes.imshow(logs, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        axes.set_xticks(range(len(kinds)), kinds, rotation=40, ha="right")
        axes.set_yticks(range(len(layers)), layers)
        axes.set_ylabel("layer")
        axes.set_title("Noise as a multiple of uniform noise")
        ticks = [most * part / 2 for part in range(-2, 3)]
        bar = figure.colorbar(image, ax=axes, ticks=ticks)
        bar.ax.set_yticklabels([f"{2**t:.2f}" for t in ticks])
        figure.savefig(self._internal / "noise.png", dpi=130)
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
