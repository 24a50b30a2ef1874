"""The clipped sum of one logical batch, in physical batches that fit into memory.

Knows neither who chose the batch nor what becomes of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from twinset.config import MismatchForm, SpeedConfig, TrainingConfig
from twinset.config.plan import Plan
from twinset.privacy.clipping import ClippingEngine, Scale, UnitReport
from twinset.privacy.clipping.execution import is_out_of_memory
from twinset.table.padding import batches_of_one_length
from twinset.table.tokenization import TokenisedRecords
from twinset.training.batch_shapes import BatchShapes
from twinset.training.mismatch_loss import MismatchLoss, summed

Width = tuple[int, int]  # records of a unit, and the tokens that their rows are padded to


@dataclass(frozen=True)
class Batch:
    """What a step asks for.

    Args:
        step: 1 … T.
        units: of the logical batch, each the numbers of its records.
        limits: (B,) norm that each of them is clipped to; None: C.
        scales: geometry to clip in, a scale for each parameter; empty: the plain one.
    """

    step: int
    units: list[list[int]]
    limits: Tensor | None = None
    scales: list[Scale] = field(default_factory=list)

    def part(self, places: list[int]) -> Batch:
        """Return the same of some of its units, by their places in `units`."""
        limits = None if self.limits is None else self.limits[places]
        return Batch(self.step, [self.units[i] for i in places], limits, self.scales)


@dataclass(frozen=True)
class WrongPrompts:
    """How records are set against wrong prompts.

    Args:
        weight: λ.
        form: of the loss.
        count: wrong prompts a record.
        seed: of their draw.
    """

    weight: float
    form: MismatchForm
    count: int
    seed: int

    @classmethod
    def of(cls, plan: Plan, training: TrainingConfig) -> WrongPrompts:
        """Return what a plan and its options say."""
        count = training.mismatch_prompts if plan.mismatch_weight else 0
        return cls(plan.mismatch_weight, training.mismatch_form, count, training.seed)

    def shapes(self, records: TokenisedRecords, speed: SpeedConfig, batch_size: int) -> BatchShapes:
        """Return the shapes of physical batches of records with these prompts."""
        return BatchShapes(speed, batch_size, records.sequences_per_record(self.count))


class ClippedSum:
    """Fills an engine's sums.

    Args:
        engine: clips and sums.
        records: tokens.
        wrong: prompts.
        shapes: of physical batches.
    """

    def __init__(
        self,
        engine: ClippingEngine,
        records: TokenisedRecords,
        wrong: WrongPrompts,
        shapes: BatchShapes,
    ) -> None:
        self.engine, self._records, self._shapes, self._wrong = engine, records, shapes, wrong
        self._loss = MismatchLoss(wrong.weight, wrong.form)
        self._fewer: dict[Width, int] = {}  # units at once, where memory ran out before

    def over(self, batch: Batch) -> UnitReport:
        """Leave Σᵢ ĝᵢ of a batch in `engine.sums`; when out of memory, start again with less.

        Physical batches are halved; where one unit is too much, layers keep their inputs only.
        """
        while True:
            self._tried: Width | None = None
            try:
                self.engine.zero()
                if batch.scales:
                    self.engine.rescale(batch.scales)
                return joined([self._add(batch.part(places)) for places in self._cut(batch)])
            except RuntimeError as error:
                if self._tried is None or not is_out_of_memory(error):
                    raise
                units = self._units(self._tried)
                if units == 1 and not self.engine.checkpoint_layers():
                    raise
                self._fewer[self._tried] = max(1, units // 2)

    def width(self, unit: list[int]) -> Width:
        """Return how many records a unit has, and to how many tokens their rows are padded."""
        return len(unit), max(map(self._records.padded_length, unit))

    def digest(self, unit: list[int]) -> int:
        """Return a number that the first of a unit's records alone decides."""
        return self._records.digest(unit[0])

    def _cut(self, batch: Batch) -> Iterator[list[int]]:
        """Yield the places of physical batches: units of one width."""
        places = range(len(batch.units))
        cut = batches_of_one_length(places, lambda i: self.width(batch.units[i]), self._units)
        return (some for _, some in cut)

    def _units(self, width: Width) -> int:
        return self._fewer.get(width) or self._shapes.units(*width)

    def _add(self, batch: Batch) -> UnitReport:
        self._tried = width = self.width(batch.units[0])
        each, _ = width
        records, seed = list(chain.from_iterable(batch.units)), (self._wrong.seed, batch.step)
        rows = self._records.sequences(records, self._wrong.count, seed)
        units = replace(rows, per_unit=rows.per_unit * each).filled(self._units(width))
        return self.engine.add(units, summed(self._loss, each), batch.limits)


def joined(reports: list[UnitReport]) -> UnitReport:
    """Return one report of all units."""
    if not reports:
        return UnitReport(torch.zeros(0), torch.zeros(0).double(), torch.zeros(0).double())
    return UnitReport(
        torch.cat([report.losses for report in reports]),
        torch.cat([report.norms for report in reports]),
        torch.cat([report.scales for report in reports]),
    )
