"""The curve of a pre-training run: its lines on the disk, and a picture of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twinset.files.atomic import JsonLines
from twinset.progress import PretrainingReport

LINES = 200  # a run, about; each validation has one besides


class Curve:
    """Keeps the reports of a run, and draws it at each validation.

    A run that resumes from a checkpoint repeats steps; the last line of a step counts.

    Args:
        log: JSON lines.
        picture: PNG.
    """

    def __init__(self, log: Path, picture: Path) -> None:
        self._lines, self._log, self._picture = JsonLines(log), log, picture

    def add(self, report: PretrainingReport) -> None:
        """Take a step."""
        if report.bits is not None or report.step % max(1, report.steps // LINES) == 0:
            figures = asdict(report)
            figures = {k: round(v, 5) if isinstance(v, float) else v for k, v in figures.items()}
            self._lines.append(figures)
        if report.bits is not None:
            draw(read_log(self._log), self._picture)


def read_log(log: Path) -> list[dict[str, Any]]:
    """Return a line for each step that has one, in order; one that was cut off is left out."""
    lines = filter(None, map(_parsed, log.read_text("utf-8").splitlines()))
    return [line for _, line in sorted({line["step"]: line for line in lines}.items())]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        figures: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return figures


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw training loss and validation bits per byte against tokens read."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.subplots()
    right = left.twinx()
    if losses := list(_points(lines, "loss")):
        left.plot(*zip(*losses, strict=True), color="tab:gray", lw=1, label="loss")
    measured = list(_points(lines, "bits"))
    right.plot(*zip(*measured, strict=True), color="tab:blue", marker=".", label="validation")
    left.set_xlabel("tokens read")
    left.set_ylabel("training loss, nats a token")
    right.set_ylabel("validation, bits per byte")
    right.set_title(f"{measured[-1][1]:.3f} bits per byte after {measured[-1][0]:,} tokens")
    figure.legend(loc="outside lower right", ncols=2)
    half = path.with_name(f".{path.name}")
    figure.savefig(half, dpi=130, format="png")
    half.replace(path)


def _points(lines: list[dict[str, Any]], name: str) -> Iterator[tuple[int, float]]:
    return ((line["tokens"], line[name]) for line in lines if line[name] is not None)
