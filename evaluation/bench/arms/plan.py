"""What the page should hold: a key for each measurement, by table, ε, arm, rows and seed."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.bench.arms.rows import Arm
from twinset.errors import InputError

STATED = Path(__file__).with_name("arms.toml")
ALL_ROWS = "all"  # of arms that have no curve over rows
ONCE = 0.0  # ε of what no private release is part of
WHOLE, TWICE = "N", "2N"  # training rows


class Measurement(NamedTuple):
    """Key of a row of results.

    `epsilon` is `ONCE` and `seed` 0 of what does not depend on them; `rows` as arms.toml has them.
    """

    table: str
    epsilon: float
    arm: str
    rows: str
    seed: int


@dataclass(frozen=True)
class Stated:
    """What arms.toml says.

    Args:
        size: numbers of the size.
        tables: by name.
        runs: by name.
        arms: in order.
    """

    size: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, Mapping[str, Any]]
    arms: Sequence[Arm]

    @classmethod
    def read(cls, size: str) -> Stated:
        """Read the file.

        Raises:
            InputError: it has no such size.
        """
        found = tomllib.loads(STATED.read_text("utf-8"))
        check_known("`size`", [size], found["sizes"])
        arms = [Arm(**arm) for arm in found["arms"]]
        return cls(found["sizes"][size], found["tables"], found["runs"], arms)

    def arm(self, name: str) -> Arm:
        """Return an arm."""
        return next(arm for arm in self.arms if arm.name == name)

    def measurements(self) -> Iterator[Measurement]:
        """Yield everything that the page should hold; what others start from comes first."""
        for table in self.tables:
            for arm in (arm for arm in self.arms if not arm.is_private):
                for seed in self.size["seeds"] if arm.use == "real" else [0]:
                    yield from (Measurement(table, ONCE, arm.name, r, seed) for r in self.rows(arm))
            for epsilon in self.size["epsilons"]:
                for seed in self.size["seeds"]:
                    for arm in (arm for arm in self.arms if arm.is_private):
                        key = table, epsilon, arm.name
                        yield from (Measurement(*key, r, seed) for r in self.rows(arm))

    def rows(self, arm: Arm) -> list[str]:
        """Return for how many rows an arm is measured."""
        if arm.use in ("classify", "second"):
            return [ALL_ROWS]
        wanted = list(self.size["rows"])
        return [r for r in wanted if r != TWICE] if arm.use == "real" else wanted


def number_of(rows: str, training_rows: int) -> int:
    """Return how many rows are meant.

    >>> number_of("2N", 3128), number_of("600", 3128)
    (6256, 600)
    """
    return {WHOLE: training_rows, TWICE: 2 * training_rows}.get(rows) or int(rows)


def check_known(option: str, given: Collection[object], known: Collection[object]) -> None:
    """Refuse what is not among the known values.

    Raises:
        InputError: it names them.
    """
    for value in given:
        if value not in known:
            raise InputError(f"{option}: {value!r} is none of {', '.join(map(str, known))}")
