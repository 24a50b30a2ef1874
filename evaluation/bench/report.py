"""The benchmark's rows: a JSON file that grows row by row, a table of them, and a figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from evaluation.bench.cases import Case
from twinset.artefact import write_json
from twinset.errors import InputError
from twinset.markdown import code, plain
from twinset.surroundings import machine, versions

LIBRARIES = ("torch", "transformers", "opacus", "numpy")
OURS, KERNELS = "ours", "ours-kernels"


@dataclass
class Results:
    """All rows of one machine and one set of versions.

    Args:
        path: where they are kept.
        about: versions and machine.
        commands: that the rows came from.
        rows: case → what was measured of it, and when.
    """

    path: Path
    about: dict[str, str]
    commands: list[str]
    rows: dict[Case, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, command: str) -> Results:
        """Read the rows there are, if any.

        Raises:
            InputError: they come from another machine or from other versions.
        """
        results = cls(path, surroundings(), [command])
        if not path.exists():
            return results
        kept = json.loads(path.read_text("utf-8"))
        if kept["about"] != results.about:
            raise InputError(
                f"{path} was measured on another machine or with other versions; name another file"
            )
        results.commands = list(dict.fromkeys([*kept["commands"], command]))
        results.rows = {Case(**row.pop("case")): row for row in kept["rows"]}
        return results

    def __contains__(self, case: object) -> bool:
        return case in self.rows

    def add(self, case: Case, row: dict[str, Any]) -> None:
        """Add a row, and write the file."""
        self.rows[case] = row | {"date": date.today().isoformat()}
        kept = {
            "about": self.about,
            "commands": self.commands,
            "rows": [{"case": asdict(c), **r} for c, r in self.rows.items()],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, kept)

    def tables(self) -> Iterator[Table]:
        """Yield one table for each model, method and precision."""
        for setting in dict.fromkeys((*c.setting, c.threads) for c in self.rows):
            rows = {c: r for c, r in self.rows.items() if (*c.setting, c.threads) == setting}
            yield Table(" · ".join(map(str, setting[:3])) + f" · threads: {setting[3]}", rows)


@dataclass(frozen=True)
class Table:
    """The rows of one model trained one way."""

    title: str
    rows: dict[Case, dict[str, Any]]

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
        lines = [_line(["step", *self.shapes]), _line(["---"] * (1 + len(self.shapes)))]
        lines.append(_line(["ordinary", *map(self._ordinary, self.shapes)]))
        for engine in self.engines:
            lines.append(_line([engine, *(_cell(self.at(engine, s)) for s in self.shapes)]))
        against = [self._same_kernels(shape) for shape in self.shapes]
        if any(against):
            lines.append(_line([f"{OURS} / {KERNELS}", *against]))
        return [f"### {plain(self.title)}", "", *lines, "", *self._notes(), ""]

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


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(row: dict[str, Any]) -> str:
    if "ratio" not in row:
        return "failed" if "failed" in row else ""
    memory = f" ({row['memory_ratio']:.2f}×)" if row["memory_ratio"] else ""
    return f"{row['ratio']:.2f}×{memory}"


def as_markdown(results: Results) -> str:
    """Return every table, and where they come from."""
    dates = sorted({row["date"] for row in results.rows.values()})
    lines = [
        "# A private step beside an ordinary one",
        "",
        "Time of a step as a multiple of the ordinary step's in the same process, taken in turn: "
        "the median over rounds of each round's ratio. In brackets: peak memory, imports left out, "
        "likewise. Forward, backward, clipping and noise; no optimiser. Shapes are units × tokens, "
        "no padding; K rows a unit, and the ordinary step is given the same rows.",
        "",
        *[f"- {name}: {plain(value)}" for name, value in results.about.items()],
        f"- date: {' to '.join(dict.fromkeys([dates[0], dates[-1]])) if dates else 'no rows'}",
        *[f"- command: {code(command)}" for command in results.commands],
        "",
    ]
    for table in results.tables():
        lines += table.as_markdown()
    return "\n".join(lines).rstrip() + "\n"


def write_figure(results: Results, path: Path) -> None:
    """Draw a panel of bars for each table."""
    from matplotlib.figure import Figure

    tables = [t for t in results.tables() if any("ratio" in row for row in t.rows.values())]
    if not tables:
        return
    heights = [0.6 + 0.22 * len(t.engines) * len(t.shapes) for t in tables]
    figure = Figure(figsize=(8, 0.8 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    longest = max(row.get("ratio", 0.0) for table in tables for row in table.rows.values())
    for panel, table in zip(panels, tables, strict=True):
        _draw(panel, table)
        panel.set_xlim(0, 1.08 * longest)  # the same for all, so that panels compare
    panels[-1].set_xlabel("time of a step / time of the ordinary step")
    figure.savefig(path, dpi=150)


def _draw(panel: Any, table: Table) -> None:
    share = 0.8 / len(table.shapes)
    for i, shape in enumerate(table.shapes):
        ratios = [table.at(engine, shape).get("ratio", 0.0) for engine in table.engines]
        places = [line + share * i for line in range(len(ratios))]
        bars = panel.barh(places, ratios, height=share, label=shape)
        panel.bar_label(bars, [f"{r:.2f}" if r else "" for r in ratios], padding=2, fontsize=7)
    panel.set_yticks([line + 0.4 - share / 2 for line in range(len(table.engines))], table.engines)
    panel.invert_yaxis()
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_title(table.title, fontsize=9)
    panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def surroundings() -> dict[str, str]:
    """Return versions and machine, a line each."""
    found, here = versions(LIBRARIES), machine()
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in found.items()),
        "machine": f"{here['cpu']}, {here['cores']} cores",
    }
