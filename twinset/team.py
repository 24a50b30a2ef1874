"""Several processes that form one clipped sum: the leader asks, the others look at their part.

The leader alone draws batches, adds noise, steps and keeps the ledger. The others are given weights
and the numbers of records, and return sums without noise: what passes between them is as private as
the records, and no more than tensors and JSON (no pickle). On one machine it stays on the loopback.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from twinset.clippedsum import Batch, ClippedSum, joined
from twinset.privacy.clipping import Scale, UnitReport

END = "end"


class Team:
    """The processes of `torch.distributed`'s default group; rank 0 leads."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def leads(self) -> bool:
        """Whether this process does."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all have come so far."""
        dist.barrier()

    def tell(self, message: Any = None) -> Any:
        """Return the leader's message, plain values, to every process."""
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        data = data if self.leads else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return json.loads(data.numpy().tobytes())

    def share(self, tensors: list[Tensor]) -> None:
        """Overwrite everybody's tensors with the leader's."""
        with torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def add(self, tensors: list[Tensor]) -> None:
        """Overwrite the leader's tensors with the sums of all; others' are undefined then."""
        for tensor in tensors:
            dist.reduce(tensor, 0)

    def gather(self, part: Tensor, columns: list[int]) -> list[Tensor]:
        """Return everybody's (r, columns[rank]) at the leader; nothing elsewhere."""
        padded = part.new_zeros(len(part), max(columns))
        padded[:, : part.shape[1]] = part
        found = [torch.empty_like(padded) for _ in columns] if self.leads else None
        dist.gather(padded, found, 0)
        return [one[:, :n] for one, n in zip(found or [], columns, strict=self.leads)]


class TeamSum:
    """A clipped sum that the leader asks the team for.

    Args:
        own: the leader's part.
        team: of processes that are in `follow`.
    """

    def __init__(self, own: ClippedSum, team: Team) -> None:
        self._own, self._team = own, team

    def over(self, batch: Batch) -> UnitReport:
        """Leave Σᵢ ĝᵢ of a batch in the own engine's sums."""
        parts = [batch.part(places) for places in self._dealt(batch.units)]
        self._team.tell(
            {
                "step": batch.step,
                "units": [part.units for part in parts],
                "limits": [p.limits.tolist() for p in parts if p.limits is not None],
                "scales": [[_shape(s.columns), _shape(s.rows)] for s in batch.scales],
            }
        )
        return _part(parts[0], [len(part.units) for part in parts], self._own, self._team)

    def _dealt(self, units: list[list[int]]) -> list[list[int]]:
        """Return the places of each process's units: by what a unit is, not by its company.

        Processes may round in different ways. If one record more moved others to another process,
        it would move their gradients too.
        """
        dealt: list[list[int]] = [[] for _ in range(self._team.size)]
        for place, records in enumerate(units):
            dealt[records[0] % self._team.size].append(place)
        return dealt


def follow(own: ClippedSum, team: Team) -> None:
    """Form one's part of every sum that the leader asks for, until it says that it was the last."""
    while (asked := team.tell()) != END:
        limits = [torch.tensor(some, dtype=torch.float64) for some in asked["limits"]]
        scales = [Scale(*map(_empty, shapes)) for shapes in asked["scales"]]
        units = asked["units"]
        own_limits = limits[team.rank] if limits else None
        batch = Batch(asked["step"], units[team.rank], own_limits, scales)
        _part(batch, list(map(len, units)), own, team)


def _part(batch: Batch, sizes: list[int], own: ClippedSum, team: Team) -> UnitReport:
    """Do what leader and others do alike; the report is whole at the leader."""
    team.share([parameter.data for parameter in own.engine.parameters])
    team.share([f for s in batch.scales for f in (s.columns, s.rows) if f is not None])
    report = own.over(batch)
    team.add(own.engine.sums)
    figures = torch.stack([f.double() for f in (report.losses, report.norms, report.scales)])
    return joined([UnitReport(*each) for each in team.gather(figures, sizes)])


def _shape(factor: Tensor | None) -> list[int] | None:
    return None if factor is None else list(factor.shape)


def _empty(shape: list[int] | None) -> Tensor | None:
    return None if shape is None else torch.ones(shape)
