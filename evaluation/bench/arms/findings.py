"""Finished measurements as the page reads them: by case, over all seeds that were run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evaluation.bench.arms.plan import ALL_ROWS, ONCE, TWICE, WHOLE, Stated
from evaluation.bench.arms.scores import ACCURACY, TEACHER
from evaluation.private_table import names_of
from evaluation.results_store import ResultsStore
from twinset.config.plan import is_few

TEACHER_ARM, BASE_ARM, REAL = "teacher itself", "base", "real rows"
TWIN, UNTRAINED = "twin + tilt + teacher", "base + released words + teacher"

Row = dict[str, Any]
Case = tuple[str, float, str, str]  # a measurement but for its seed


class Findings:
    """Reads a store of measurements.

    Args:
        store: the rows.
        stated: what there should be.
    """

    def __init__(self, store: ResultsStore, stated: Stated) -> None:
        self._store, self._stated = store, stated
        found = (student for row in store.rows.values() for student in _students_of(row))
        self.students = list(dict.fromkeys([*stated.size["students"], *found]))

    @property
    def tables(self) -> Mapping[str, Any]:
        """Facts of each table of which anything was measured, by its name."""
        found: Mapping[str, Any] = self._store.facts.get("tables", {})
        return found

    def rows(self, case: Case) -> list[Row]:
        """Return a case's rows, one a seed."""
        found = (self._store.rows.get((*case, seed)) for seed in self._stated.size["seeds"])
        return [row for row in found if row is not None]

    def targets(self, table: str) -> list[str]:
        """Return a table's label columns, then all of them together."""
        attributes = self._stated.tables[table]["attributes"]
        return [*attributes, names_of(attributes)] if len(attributes) > 1 else list(attributes)

    def default(self, table: str, epsilon: float) -> str:
        """Return the arm that a run of so many records is by default."""
        return UNTRAINED if is_few(self.training_rows(table), epsilon) else TWIN

    def training_rows(self, table: str) -> int:
        """Return a table's N."""
        number: int = self.tables[table]["training rows"]
        return number

    def case(self, table: str, epsilon: float, arm: str, rows: str) -> Case:
        """Return where an arm is measured beside so many rows of a twin."""
        of = self._stated.arm(arm)
        return table, epsilon if of.is_private else ONCE, arm, _beside(of.use, rows)

    def accuracy(self, case: Case, students: Iterable[str]) -> list[float | None]:
        """Return the mean of the seeds for all labels together, by student; a teacher is its own.

        None: not run.
        """
        target = self.targets(case[0])[-1]
        return [mean_of(map(accuracy_of(target, one), self.rows(case))) for one in students]


def _beside(use: str, rows: str) -> str:
    if use in ("classify", "second"):
        return ALL_ROWS
    return WHOLE if use == "real" and rows == TWICE else rows


def accuracy_of(target: str, student: str) -> Callable[[Row], float | None]:
    """Return what reads a student's accuracy; a teacher is its own student."""

    def value(row: Row) -> float | None:
        found: Mapping[str, float] = row.get(ACCURACY, {}).get(target, {})
        return found.get(TEACHER, found.get(student))

    return value


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None: there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _students_of(row: Row) -> Sequence[str]:
    known: dict[str, float] = next(iter(row.get(ACCURACY, {}).values()), {})
    return [student for student in known if student != TEACHER]
