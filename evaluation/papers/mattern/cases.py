"""The rows of paper 002's experiment: what is learnt from, by whom, with which ε and loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evaluation.papers.mattern.published import AMAZON, EPSILONS, FEW, IMDB
from evaluation.papers.mattern.sizes import OFF, Mismatch, Size
from evaluation.papers.rows import Key

DATA = (IMDB, AMAZON)
REAL, RIVAL = "real rows", "real rows, DP classifier"
SHORT = "real rows, as many and as short as a twin's"
BASELINE, TWIN, APART = "no private data", "twin", "twin, one model per label"
RECORDS: tuple[int | None, ...] = (*FEW, None)  # None: all
BUDGETS: tuple[float | None, ...] = (*EPSILONS, None)  # None: without privacy
COMPARED = EPSILONS[-1]  # ε at which losses, decodings and prompts are compared


@dataclass(frozen=True)
class Level:
    """A row but for its seed.

    Args:
        data: name of the table.
        source: what classifiers learn from.
        records: real ones behind it; None: all.
        epsilon: of it; None: without privacy.
        mismatch: loss of the model that wrote it.
    """

    data: str
    source: str
    records: int | None = None
    epsilon: float | None = None
    mismatch: Mismatch = OFF

    @property
    def key(self) -> Key:
        """What names it."""
        spent, count = names(self.epsilon, self.records)
        return (self.data, self.source, count, spent, str(self.mismatch))

    def __str__(self) -> str:
        """Return it in words."""
        spent, count = names(self.epsilon, self.records)
        loss = f", {self.mismatch}" if self.source == TWIN else ""
        return f"{self.data}: {self.source}, {count} records, ε = {spent}{loss}"


@dataclass(frozen=True)
class Case:
    """One row."""

    level: Level
    seed: int

    @property
    def key(self) -> Key:
        """What names the row."""
        return (*self.level.key, self.seed)

    def __str__(self) -> str:
        """Return all of it in words."""
        return f"{self.level}, seed {self.seed}"


def names(epsilon: float | None, records: int | None) -> tuple[str, str]:
    """Return an ε and a number of records in words.

    >>> names(None, 25), names(8.0, None)
    (('∞', '25'), ('8', 'all'))
    """
    return (
        "∞" if epsilon is None else f"{epsilon:g}",
        "all" if records is None else f"{records:,}",
    )


def baseline(data: str) -> Level:
    """Return what no record and no ε is spent on."""
    return Level(data, BASELINE, 0, 0.0)


def short(data: str, size: Size) -> Level:
    """Return real rows of a twin's number and length: what a twin like real rows would teach."""
    return Level(data, SHORT, size.rows[data])


def main_twins(data: str, size: Size) -> Iterator[Level]:
    """Yield the twins of the main table."""
    for records in RECORDS:
        for epsilon in BUDGETS:
            yield Level(data, TWIN, records, epsilon, size.mismatch)


def by_loss(data: str, size: Size, epsilon: float | None) -> Iterator[Level]:
    """Yield the twins of all records that differ by their loss alone."""
    return (Level(data, TWIN, None, epsilon, loss) for loss in size.losses)


def levels(data: str, size: Size) -> Iterator[Level]:
    """Yield all levels of a table."""
    for records in RECORDS:
        yield Level(data, REAL, records)
        yield from (Level(data, RIVAL, records, epsilon) for epsilon in EPSILONS)
    yield short(data, size)
    yield baseline(data)
    yield from main_twins(data, size)
    for epsilon in (COMPARED, None):
        others = (
            level for level in by_loss(data, size, epsilon) if level.mismatch != size.mismatch
        )
        yield from others
    yield Level(data, APART, None, COMPARED)


def cases(size: Size, seeds: int) -> Iterator[Case]:
    """Yield all rows there should be."""
    for seed in range(seeds):
        for data in DATA:
            yield from (Case(level, seed) for level in levels(data, size))
