"""What the page should hold: the toolkits of toolkits.toml, and a key for each measurement."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.bench.arms.plan import ONCE, check_known

STATED = Path(__file__).with_name("toolkits.toml")
PROJECT = "project"  # the environment that this process runs in


class Measurement(NamedTuple):
    """Key of a row of results; `epsilon` is `ONCE` of what has no guarantee."""

    table: str
    epsilon: float
    toolkit: str
    seed: int


@dataclass(frozen=True)
class Toolkit:
    """One toolkit, or one way to use it.

    Args:
        name: as the page has it.
        about: what it is, in a line.
        writer: of its rows: a file in `writers/`; "": it is not run, for `reason`.
        environment: a name in `environments`, or `PROJECT`.
        private: whether it is asked for an ε.
        ours: whether it is twinset.
        options: of its writer.
        copy: folder name of a copy of its repository, where it is no package.
        sampling: how records come into a step, against what its accountant assumes.
        unit: whose presence its ε speaks of.
        uncovered: what it releases of private rows that its ε does not count.
        reason: why it is not run.
    """

    name: str
    about: str
    writer: str = ""
    environment: str = PROJECT
    private: bool = True
    ours: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    copy: str = ""
    sampling: str = ""
    unit: str = ""
    uncovered: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Stated:
    """What toolkits.toml says.

    Args:
        size: numbers of the size.
        tables: by name.
        environments: requirements, by name.
        toolkits: in order.
    """

    size: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]
    environments: Mapping[str, Sequence[str]]
    toolkits: Sequence[Toolkit]

    @classmethod
    def read(cls, size: str) -> Stated:
        """Read the file.

        Raises:
            InputError: it has no such size.
        """
        found = tomllib.loads(STATED.read_text("utf-8"))
        check_known("`size`", [size], found["sizes"])
        toolkits = [Toolkit(**toolkit) for toolkit in found["toolkits"]]
        return cls(found["sizes"][size], found["tables"], found["environments"], toolkits)

    @property
    def run(self) -> list[Toolkit]:
        """Return the toolkits that can be run here."""
        return [toolkit for toolkit in self.toolkits if toolkit.writer]

    def toolkit(self, name: str) -> Toolkit:
        """Return a toolkit."""
        return next(toolkit for toolkit in self.toolkits if toolkit.name == name)

    def options(self, toolkit: Toolkit) -> dict[str, Any]:
        """Return a toolkit's options at this size."""
        smaller: Mapping[str, Mapping[str, Any]] = self.size.get("options", {})
        return {**toolkit.options, **smaller.get(toolkit.writer, {})}

    def measurements(self) -> Iterator[Measurement]:
        """Yield everything that the page should hold: one table, ε and seed after the other."""
        for table in self.tables:
            for seed in self.size["seeds"]:
                for epsilon in (ONCE, *self.size["epsilons"]):
                    for toolkit in self.run:
                        if toolkit.private == (epsilon != ONCE):
                            yield Measurement(table, epsilon, toolkit.name, seed)
