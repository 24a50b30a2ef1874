"""One measurement's name: which model, trained how, on what shape, by which engine. Only data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

ORDINARY = "ordinary"


@dataclass(frozen=True)
class StepCase:
    """One engine against the ordinary step.

    Args:
        model: a key of `models.MODELS`.
        method: "full" or "lora".
        precision: "float32", or "bfloat16" as twinset uses it: frozen weights are held in it, and
            weights that are all trained stay float32 under autocast.
        batch: B, units in the batch.
        length: T, tokens in a row; none of them is padding.
        per_unit: K, rows in a unit.
        engine: a key of `peers.ENGINES`.
        threads: of the processor.
    """

    model: str
    method: str
    precision: str
    batch: int
    length: int
    per_unit: int
    engine: str
    threads: int

    @classmethod
    def of(cls, key: Sequence[Any]) -> StepCase:
        """Return the case of a row's key."""
        return cls(*key)

    @property
    def setting(self) -> tuple[str, str, str]:
        """What one table is about."""
        return self.model, self.method, self.precision

    @property
    def autocast(self) -> bool:
        """Whether float32 weights are cast for each product."""
        return self.method == "full" and self.precision == "bfloat16"

    @property
    def shape(self) -> str:
        """A table's column: `8×64, K = 2`."""
        return f"{self.batch}×{self.length}, K = {self.per_unit}"

    def by(self, engine: str) -> StepCase:
        """Return the same work done by another engine."""
        return replace(self, engine=engine)

    def __str__(self) -> str:
        return f"{' '.join(self.setting)} {self.shape} | {self.engine}"


def grid(
    models: list[str],
    methods: list[str],
    precision: str,
    shapes: list[tuple[int, int]],
    per_unit: list[int],
    engines: list[str],
    threads: int,
) -> Iterator[StepCase]:
    """Yield all cases."""
    for model, method, (batch, length), k, engine in product(
        models, methods, shapes, per_unit, engines
    ):
        yield StepCase(model, method, precision, batch, length, k, engine, threads)
