"""Token steps that a GPU does again from a recording (a CUDA graph).

A step is a thousand small kernels, and the processor takes ten times as long to start them as the
GPU to run them: of SmolLM2-135M 44 ms a token instead of 4 (docs/scaling.md). A recording reads and
writes the addresses that it was made with. So it belongs to one number of slots and one place of
the cache; what it computes is compared with the step itself before it is relied on, twice, since
what it forgot to read shows in another token than the first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from twinset.models.device import recorded
from twinset.sampling.token_step import TokenStep

COMPARED = 2  # replays of each recording


class Recording:
    """One step as it was recorded.

    Args:
        step: that is recorded; it was done with tensors of these shapes before.
        ids: (S, 1) tokens.
        at: (S, 1) positions.
        pool: memory that it shares with other recordings, none of which is read any more.

    Raises:
        RuntimeError: the step waits for the processor in between, and cannot be recorded.
    """

    def __init__(self, step: TokenStep, ids: Tensor, at: Tensor, pool: Any) -> None:
        self._ids, self._at, self.compared = ids.clone(), at.clone(), 0
        self._graph, self._logits = recorded(lambda: step(self._ids, self._at), pool)

    @property
    def pool(self) -> Any:
        """The memory of what is computed in between."""
        return self._graph.pool()

    def replay(self, ids: Tensor, at: Tensor) -> Tensor:
        """Return the logits (S, V) of other tokens; the next replay overwrites them."""
        self._ids.copy_(ids)
        self._at.copy_(at)
        self._graph.replay()
        return self._logits


class RecordedSteps:
    """A step that is recorded where it is done for the first time, and replayed from then on.

    Args:
        step: what is recorded.
    """

    def __init__(self, step: TokenStep) -> None:
        self._step = step
        self._recordings: dict[tuple[int, ...], Recording] = {}
        self.in_use = True

    def __call__(self, ids: Tensor, at: Tensor) -> Tensor:
        """Do the step, see `TokenStep`; the result holds until the next one."""
        place = (len(ids), *self._step.cache.addresses)
        recording = self._recordings.get(place)
        if recording and recording.compared == COMPARED and self.in_use:
            return recording.replay(ids, at)
        logits = self._step(ids, at)
        if self.in_use:
            self._compare(place, logits, ids, at)
        return logits

    def _compare(self, place: tuple[int, ...], logits: Tensor, ids: Tensor, at: Tensor) -> None:
        """Record where there is no recording; use none any more if one goes another way."""
        try:
            recording = self._recordings.get(place) or self._record(place, ids, at)
        except RuntimeError:
            self.in_use = False
            return
        recording.compared += 1
        self.in_use = torch.equal(logits, recording.replay(ids, at))

    def _record(self, place: tuple[int, ...], ids: Tensor, at: Tensor) -> Recording:
        pool = next((recording.pool for recording in self._recordings.values()), None)
        self._recordings[place] = Recording(self._step, ids, at, pool)
        return self._recordings[place]
