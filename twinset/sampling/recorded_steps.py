"""Token steps that a GPU does again from a recording (a CUDA graph).

A step is a thousand small kernels, and the processor takes ten times as long to start them as the
GPU to run them: of SmolLM2-135M 44 ms a token instead of 4 (docs/scaling.md). A recording reads and
writes the addresses that it was made with. So it belongs to one number of slots and one place of
the cache; what it computes is compared with the step itself before it is relied on, twice, since
what it forgot to read shows in another token than the first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from twinset.models.device import record_graph
from twinset.sampling.token_step import TokenStep

COMPARED = 2  # replays of each recording


class Recording:
    """One step as it was recorded.

    Args:
        step: that is recorded; it was done with tensors of these shapes before.
        ids: (S, 1) tokens.
        at: (S, 1) positions.
        logits: (S, V) that are overwritten.
        pool: memory that it shares with other recordings.

    Attributes:
        logits: as the last replay has left them.

    Raises:
        RuntimeError: the step waits for the processor in between, and cannot be recorded.
    """

    def __init__(self, step: TokenStep, ids: Tensor, at: Tensor, logits: Tensor, pool: Any) -> None:
        self.compared = 0
        self._ids, self._at, self.logits = ids.clone(), at.clone(), logits
        work = partial(self._write, step)
        self._graph = record_graph(work, ids.device, pool)

    def _write(self, step: TokenStep) -> None:
        self.logits.copy_(step(self._ids, self._at))

    @property
    def pool(self) -> Any:
        """The memory of what is computed in between."""
        return self._graph.pool()

    def replay(self, ids: Tensor, at: Tensor) -> Tensor:
        """Return the logits (S, V) of other tokens; the next replay overwrites them."""
        self._ids.copy_(ids)
        self._at.copy_(at)
        self._graph.replay()
        return self.logits


class RecordedSteps:
    """A step that is recorded where it is done for the first time, and replayed from then on.

    Args:
        step: what is recorded, always with as many slots.

    Attributes:
        in_use: whether recordings are; not where one went another way than the step itself.
    """

    def __init__(self, step: TokenStep) -> None:
        self._step, self.in_use = step, True
        self._recordings: dict[tuple[int, ...], Recording] = {}

    def __call__(self, ids: Tensor, at: Tensor) -> Tensor:
        """Do the step, see `TokenStep`; the result holds until the next one."""
        place = tuple(self._step.cache.addresses)
        recording = self._recordings.get(place)
        if recording and recording.compared == COMPARED:
            return recording.replay(ids, at)
        logits = self._step(ids, at)
        if self.in_use:
            self._compare(place, logits, ids, at)
        return logits

    def _compare(self, place: tuple[int, ...], logits: Tensor, ids: Tensor, at: Tensor) -> None:
        """Record where there is no recording; use none any more if one goes another way."""
        try:
            recording = self._recordings.get(place) or self._record(place, logits, ids, at)
            recording.compared += 1
            self.in_use = torch.equal(logits, recording.replay(ids, at))
        except RuntimeError:
            self.in_use = False
        if not self.in_use:
            self._recordings.clear()

    def _record(self, place: tuple[int, ...], logits: Tensor, ids: Tensor, at: Tensor) -> Recording:
        earlier = next(iter(self._recordings.values()), None)
        into = earlier.logits if earlier else torch.empty_like(logits)
        pool = earlier.pool if earlier else None
        self._recordings[place] = Recording(self._step, ids, at, into, pool)
        return self._recordings[place]
