"""The rows of `step` as tables and as a figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.bench.cases import StepCase
from evaluation.markdown import page, table
from evaluation.results_store import ResultsStore
from twinset.release.markdown import code, plain

OURS, KERNELS = "ours", "ours-kernels"


def tables(store: ResultsStore) -> Iterator[Table]:
    """Yield one table for each model, method, precision and number of threads."""
    rows = {StepCase.of(key): row for key, row in store.rows.items()}
    for setting in dict.fromkeys((*case.setting, case.threads) for case in rows):
        its = {c: row for c, row in rows.items() if (*c.setting, c.threads) == setting}
        yield Table(" · ".join(map(str, setting[:3])) + f" · threads: {setting[3]}", its)


@dataclass(frozen=True)
class Table:
    """The rows of one model trained one way."""

    title: str
    rows: dict[StepCase, dict[str, Any]]

    @property
    def shapes(self) -> list[str]:
        """Columns."""
        return list(dict.fromkeys(case.shape for case in self.rows))

    @property
    def engines(self) -> list[str]:
        """Lines."""
        return list(dict.fromkeys(case.engine for case in self.rows))

    def at(self, engine: str, shape: str) -> dict[str, Any]:
        """Return a row, or nothing."""
        found = (r for c, r in self.rows.items() if (c.engine, c.shape) == (engine, shape))
        return next(found, {})

    def as_markdown(self) -> list[str]:
        """Return the lines of the table, with what to know of its rows below."""
        rows = [["ordinary", *map(self._ordinary, self.shapes)]]
        for engine in self.engines:
            rows.append([engine, *(_cell(self.at(engine, s)) for s in self.shapes)])
        against = [self._same_kernels(shape) for shape in self.shapes]
        if any(against):
            rows.append([f"{OURS} / {KERNELS}", *against])
        lines = table(["step", *self.shapes], rows)
        return [f"### {plain(self.title)}", "", *lines, "", *self._notes()]

    def _ordinary(self, shape: str) -> str:
        timed = [self.at(engine, shape) for engine in self.engines]
        timed = [row for row in timed if "ratio" in row]
        if not timed:
            return ""
        seconds = sorted(row["ordinary_seconds"] for row in timed)[len(timed) // 2]
        sizes = [row["ordinary_bytes"] for row in timed if row["ordinary_bytes"]]
        return f"{seconds:.3g} s" + (f" ({sizes[0] / 1e6:.0f} MB)" if sizes else "")

    def _same_kernels(self, shape: str) -> str:
        mine, plain_step = self.at(OURS, shape).get("ratio"), self.at(KERNELS, shape).get("ratio")
        return f"{mine / plain_step:.2f}×" if mine and plain_step else ""

    def _notes(self) -> list[str]:
        said: dict[tuple[str, str], list[str]] = {}
        for case, row in self.rows.items():
            for note in (row.get("failed", ""), row.get("note", "")):
                if note:
                    said.setdefault((case.engine, note), []).append(case.shape)
        lines = []
        for (engine, note), shapes in said.items():
            where = "" if len(shapes) == len(self.shapes) else f" ({'; '.join(shapes)})"
            lines.append(f"- {engine}{where}: {plain(note)}")
        return lines


def _cell(row: dict[str, Any]) -> str:
    if "ratio" not in row:
        return "failed" if "failed" in row else ""
    memory = f" ({row['memory_ratio']:.2f}×)" if row["memory_ratio"] else ""
    return f"{row['ratio']:.2f}×{memory}"


def as_markdown(store: ResultsStore) -> str:
    """Return every table, and where they come from."""
    dates = sorted({row["date"] for row in store.rows.values()})
    introduction = (
        "Time of a step as a multiple of the ordinary step's in the same process, taken in turn: "
        "the median over rounds of each round's ratio. In brackets: peak memory, imports left out, "
        "likewise. Forward, backward, clipping and noise; no optimiser. Shapes are units × tokens, "
        "no padding; K rows a unit, and the ordinary step is given the same rows."
    )
    about = [
        *[f"- {name}: {plain(value)}" for name, value in store.settings.items()],
        f"- date: {' to '.join(dict.fromkeys([dates[0], dates[-1]])) if dates else 'no rows'}",
        *[f"- command: {code(command)}" for command in store.commands],
    ]
    made = (each.as_markdown() for each in tables(store))
    return page("A private step beside an ordinary one", [introduction], about, *made)


def write_figure(store: ResultsStore, path: Path) -> None:
    """Draw a panel of bars for each table."""
    from matplotlib.figure import Figure

    drawn = [t for t in tables(store) if any("ratio" in row for row in t.rows.values())]
    if not drawn:
        return
    heights = [0.6 + 0.22 * len(t.engines) * len(t.shapes) for t in drawn]
    figure = Figure(figsize=(8, 0.8 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    longest = max(row.get("ratio", 0.0) for each in drawn for row in each.rows.values())
    for panel, each in zip(panels, drawn, strict=True):
        _draw(panel, each)
        panel.set_xlim(0, 1.08 * longest)  # the same for all, so that panels compare
    panels[-1].set_xlabel("time of a step / time of the ordinary step")
    figure.savefig(path, dpi=150)


def _draw(panel: Any, drawn: Table) -> None:
    share = 0.8 / len(drawn.shapes)
    for i, shape in enumerate(drawn.shapes):
        ratios = [drawn.at(engine, shape).get("ratio", 0.0) for engine in drawn.engines]
        places = [line + share * i for line in range(len(ratios))]
        bars = panel.barh(places, ratios, height=share, label=shape)
        panel.bar_label(bars, [f"{r:.2f}" if r else "" for r in ratios], padding=2, fontsize=7)
    panel.set_yticks([line + 0.4 - share / 2 for line in range(len(drawn.engines))], drawn.engines)
    panel.invert_yaxis()
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_title(drawn.title, fontsize=9)
    panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
