"""What the picture shows: what each arm's rows teach over ε, and over their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.bench.arms.findings import Case, Findings, accuracy_of
from evaluation.bench.arms.picture import Line, Panel
from evaluation.bench.arms.plan import ALL_ROWS, ONCE, Stated, number_of
from evaluation.bench.arms.rows import Arm


class Curves:
    """Makes a panel for each table over ε, and one over rows where an arm has several numbers.

    Args:
        findings: what was measured.
        stated: what there should be.
    """

    def __init__(self, findings: Findings, stated: Stated) -> None:
        self._found, self._stated = findings, stated

    def panels(self) -> list[Panel]:
        """Return those that show anything."""
        over_rows = [*map(self._over_rows, self._found.tables)]
        curves = [panel for panel in over_rows if any(len(line.values) > 1 for line in panel.lines)]
        every = map(self._over_epsilon, self._found.tables)
        return [*(panel for panel in every if panel.lines), *curves]

    def _over_epsilon(self, name: str) -> Panel:
        """Return the panel of the number of rows of which most arms were measured."""
        every = [self._of_rows(name, rows) for rows in self._stated.size["rows"]]
        return max(every, key=lambda panel: len(panel.lines))

    def _of_rows(self, name: str, rows: str) -> Panel:
        """Return what so many rows teach; arms without ε are drawn across."""
        size = self._stated.size
        lines: list[Line] = []
        for arm in self._stated.arms:
            asked = size["epsilons"] if arm.is_private else [ONCE]
            cases = {e: self._found.case(name, e, arm.name, rows) for e in asked}
            lines += self._line(arm, cases, not arm.is_private)
        return Panel(name, "ε", {e: f"{e:g}" for e in size["epsilons"]}, lines)

    def _over_rows(self, name: str) -> Panel:
        """Return what more rows teach at the largest ε; a teacher is drawn across."""
        epsilon, training = self._stated.size["epsilons"][-1], self._found.training_rows(name)
        lines: list[Line] = []
        for arm in self._stated.arms:
            wanted = {number_of(r, training): r for r in self._stated.rows(arm) if r != ALL_ROWS}
            cases = {
                n: self._found.case(name, epsilon, arm.name, r)
                for n, r in (wanted or {0: ALL_ROWS}).items()
            }
            lines += self._line(arm, cases, not wanted)
        ticks = {
            number_of(r, training): f"{number_of(r, training):,}" for r in self._stated.size["rows"]
        }
        return Panel(f"{name}, ε = {epsilon:g}", "rows", ticks, lines)

    def _line(self, arm: Arm, cases: Mapping[Any, Case], across: bool) -> Iterator[Line]:
        values = {x: [*self._values(case)] for x, case in cases.items()}
        if known := {x: those for x, those in values.items() if those}:
            yield Line(arm.name, known, across)

    def _values(self, case: Case) -> Iterator[float]:
        value = accuracy_of(self._found.targets(case[0])[-1], self._found.students[0])
        yield from (v for row in self._found.rows(case) if (v := value(row)) is not None)
