"""One clipped sum formed by several processes: rank 0 asks, every rank sums its part.

Rank 0 alone draws batches, adds noise, steps and keeps the ledger. The others are given weights and
the numbers of records, and return sums without noise: what passes between them is as private as the
records, and no more than tensors and JSON (no pickle).
"""

from __future__ import annotations

import torch
from torch import Tensor

from twinset.distributed import END, ProcessGroup
from twinset.privacy.clipping import Scale, UnitReport
from twinset.training.clipped_sum import Batch, ClippedSum, joined


class DistributedSum:
    """A clipped sum that rank 0 asks the process group for.

    Args:
        own: rank 0's part.
        group: processes whose other ranks are in `follow`.
    """

    def __init__(self, own: ClippedSum, group: ProcessGroup) -> None:
        self._own, self._group = own, group

    def over(self, batch: Batch) -> UnitReport:
        """Leave Σᵢ ĝᵢ of a batch in the own engine's sums."""
        parts = [batch.part(places) for places in self._dealt(batch.units)]
        self._group.broadcast_message(
            {
                "step": batch.step,
                "units": [part.units for part in parts],
                "limits": [p.limits.tolist() for p in parts if p.limits is not None],
                "scales": [[_shape(s.columns), _shape(s.rows)] for s in batch.scales],
            }
        )
        return _part(parts[0], [len(part.units) for part in parts], self._own, self._group)

    def _dealt(self, units: list[list[int]]) -> list[list[int]]:
        """Return the places of each process's units: by what a unit holds, and nothing else.

        Processes may round in different ways. If one record more or less moved others to another
        process, it would move their gradients too. So neither a unit's place in the batch decides,
        nor its number in the table, which changes with every row removed before it.
        """
        dealt: list[list[int]] = [[] for _ in range(self._group.size)]
        for place, unit in enumerate(units):
            dealt[self._own.digest(unit) % self._group.size].append(place)
        return dealt


def follow(own: ClippedSum, group: ProcessGroup) -> None:
    """Form one's part of every sum that rank 0 asks for, until it says that it was the last."""
    while (asked := group.broadcast_message()) != END:
        limits = [torch.tensor(some, dtype=torch.float64) for some in asked["limits"]]
        device = own.engine.parameters[0].device
        scales = [Scale(*(_empty(s, device) for s in shapes)) for shapes in asked["scales"]]
        units = asked["units"]
        own_limits = limits[group.rank] if limits else None
        batch = Batch(asked["step"], units[group.rank], own_limits, scales)
        _part(batch, list(map(len, units)), own, group)


def _part(batch: Batch, sizes: list[int], own: ClippedSum, group: ProcessGroup) -> UnitReport:
    """Do what every rank does alike; the report is whole at rank 0."""
    group.broadcast([parameter.data for parameter in own.engine.parameters])
    group.broadcast([f for s in batch.scales for f in (s.columns, s.rows) if f is not None])
    report = own.over(batch)
    group.reduce(own.engine.sums)
    # from the processor on every rank: one without units has no device to speak of
    figures = torch.stack([f.double().cpu() for f in (report.losses, report.norms, report.scales)])
    return joined([UnitReport(*each) for each in group.gather(figures, sizes)])


def _shape(factor: Tensor | None) -> list[int] | None:
    return None if factor is None else list(factor.shape)


def _empty(shape: list[int] | None, device: torch.device) -> Tensor | None:
    return None if shape is None else torch.ones(shape, device=device)
