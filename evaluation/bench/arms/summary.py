"""The page's first table: what the default twin teaches beside real rows, base and teacher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from evaluation.bench.arms.findings import (
    BASE_ARM,
    REAL,
    TEACHER_ARM,
    TWIN,
    UNTRAINED,
    Findings,
    mean_of,
)
from evaluation.bench.arms.plan import Stated
from evaluation.bench.arms.scores import MAUVE
from evaluation.markdown import table

NOT_RUN = "not run"
_STEPS = {TWIN: "trained", UNTRAINED: "none"}
_DIFFERENCES = ["real − twin", "twin − base", "best twin − teacher"]
_HEADER = ["table", "ε", "rows", "steps", "seeds", "real", "twin", *_DIFFERENCES, MAUVE]


class Line(NamedTuple):
    """A table at one ε, with so many rows of its twin."""

    table: str
    epsilon: float
    rows: str


class Summary:
    """Compares the arm that is the default at each table and ε.

    Args:
        findings: what was measured.
        stated: what there should be.
    """

    def __init__(self, findings: Findings, stated: Stated) -> None:
        self._findings, self._stated = findings, stated

    def text(self) -> list[str]:
        """Return it in Markdown."""
        explained = (
            f"All labels together, student {self._findings.students[0]}; twin: what `twinset "
            "generate` makes of so many records by default, trained by this size's options or not "
            "at all, beside as many real rows, or all N of them. “best” is the best student of "
            "the twin, “teacher” the teacher alone at the same total ε. Means of the seeds that "
            "were run, the twin's in number; a table that is another in a new form, or that lacks "
            "a column, is not in the mean of tables."
        )
        return [explained, "", *table(_HEADER, [*self._lines(), *self._means()], 5)]

    def _lines(self) -> Iterator[list[str]]:
        for line in self._measured():
            seeds = str(len(self._findings.rows(self._twin(line))))
            name, epsilon, rows = line
            steps = _STEPS[self._findings.default(name, epsilon)]
            shown = map(_three, self._compared(line))
            yield [name, f"{epsilon:g}", rows, steps, seeds, *shown]

    def _means(self) -> Iterator[list[str]]:
        measured = self._measured()
        for epsilon, rows in dict.fromkeys((line.epsilon, line.rows) for line in measured):
            of = [line for line in measured if (line.epsilon, line.rows) == (epsilon, rows)]
            own = (line for line in of if "folder" not in self._stated.tables[line.table])
            values = [those for those in map(self._compared, own) if None not in those]
            if values:
                means = (_three(mean_of(column)) for column in zip(*values, strict=True))
                yield [f"mean of {len(values)} tables", f"{epsilon:g}", rows, "", "", *means]

    def _measured(self) -> list[Line]:
        size = self._stated.size
        every = (
            Line(name, epsilon, rows)
            for epsilon in size["epsilons"]
            for rows in size["rows"]
            for name in self._findings.tables
        )
        return [line for line in every if self._findings.rows(self._twin(line))]

    def _twin(self, line: Line) -> tuple[str, float, str, str]:
        name, epsilon, rows = line
        return self._findings.case(name, epsilon, self._findings.default(name, epsilon), rows)

    def _compared(self, line: Line) -> list[float | None]:
        found, twin_case = self._findings, self._twin(line)

        def first(arm: str) -> float | None:
            case = found.case(line.table, line.epsilon, arm, line.rows)
            return found.accuracy(case, found.students[:1])[0]

        twin, *others = found.accuracy(twin_case, found.students)
        best = max((value for value in (twin, *others) if value is not None), default=None)
        real, base, teacher = map(first, (REAL, BASE_ARM, TEACHER_ARM))
        mauve = mean_of(row.get(MAUVE) for row in found.rows(twin_case))
        return [real, twin, _less(real, twin), _less(twin, base), _less(best, teacher), mauve]


def _three(value: float | None) -> str:
    return NOT_RUN if value is None else f"{value:.3f}"


def _less(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs
