"""What a running job reports to its owner. Nothing here reaches `share/`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinset.config.plan import Plan

Count = Callable[[int, int], object]  # is called with how many are done, and how many there are
OUTSIDE = "-"  # parameters outside the layers


@dataclass(frozen=True)
class StepReport:
    """Private figures of one training step, for the owner and `internal/` only."""

    step: int  # 1 … T
    records: int  # units in the Poisson batch (may be 0)
    loss: float  # mean over the batch (NaN when it was empty)
    clipped: float  # share of units whose gradient was clipped
    non_finite: int  # units whose gradient was not finite and counted as zero
    noise: float  # of the released sum as measured, over what the ledger says (NaN: says nothing)
    numbers: int  # of the sum, by which that was measured
    seconds: float  # since this process began to train
    taken: int  # steps that this process took


class Progress:
    """Receives reports from a run. Steps carry private figures: show them only to the owner.

    A subclass overrides what it wants to show.
    """

    def say(self, line: str) -> None:
        """Show one line, such as a guess or the next phase."""

    def warn(self, line: str) -> None:
        """Show an important message."""

    def expect(self, phases: Sequence[tuple[str, float]]) -> None:
        """Report the phases of the run in order, with the planned seconds of each."""

    def step(self, report: StepReport, plan: Plan) -> None:
        """Report one training step."""

    def count(
        self, what: str, done: int, total: int, share: float | None = None, more: str = ""
    ) -> None:
        """Report how many of `what` are done, such as rows written, and `more` about them.

        `share` is the share of the work that is done. With None, all items take equally long.
        """


class Silent(Progress):
    """Shows nothing."""


class TimeLeft:
    """Estimates how long a run still takes, over all its phases.

    The delay of the current phase against its plan is applied to all later phases.
    """

    def __init__(self, phases: Sequence[tuple[str, float]]) -> None:
        self._phases = [("", 0.0), *phases]
        self._at, self._done, self._pace = 0, 0.0, 1.0

    def after(self, phase: str, done: float, total: int, each: float) -> float:
        """Return the seconds left in the run when `done` of `total` parts of a phase are done.

        An unplanned phase delays the planned ones. If fewer parts are done than before, the next
        phase of this name has begun. `each` is the seconds per part, or 0 if it has not been
        measured.

        >>> left = TimeLeft([("training", 100.0), ("rows", 50.0)])
        >>> left.after("training", 2, 10, 20.0)  # twice as slow as planned
        260.0
        >>> left.after("rows", 0, 500, 0.0), left.after("rows", 250, 500, 0.2)
        (100.0, 50.0)
        """
        names = [name for name, _ in self._phases]
        if (phase != names[self._at] or done < self._done) and phase in names[self._at + 1 :]:
            self._at = names.index(phase, self._at + 1)
        self._done = done
        name, planned = self._phases[self._at]
        if name == phase and planned and each:
            self._pace = each * total / planned
        own = each * (total - done) or self._pace * planned * (1 - done / total)
        return own + self._pace * sum(seconds for _, seconds in self._phases[self._at + 1 :])


def clock(seconds: float) -> str:
    """Format a duration for people.

    >>> clock(32.4), clock(3723)
    ('00:32', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def noise_cells(mean_noise: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return the geometric mean factor of each (layer, kind) of parameters.

    It comes from released gradients, so it reveals nothing that the model does not.

    >>> cells = noise_cells({"h.0.attn.q.weight": 0.5, "h.0.attn.q.bias": 2.0, "wte.weight": 1.5})
    >>> {place: round(factor, 3) for place, factor in cells.items()}
    {('0', 'attn.q'): 1.0, ('-', 'wte'): 1.5}
    """
    found: dict[tuple[str, str], list[float]] = {}
    for name, factor in mean_noise.items():
        # A name without what wraps it, and without its last part: "0.attn.q" or "wte".
        short = re.sub(r"^(base_model\.model\.)?(transformer\.|model\.)?", "", name)
        short = re.sub(r"(\.default)?\.(weight|bias)$", "", short)
        layer = re.search(r"\.(\d+)\.", short)
        place = (layer[1], short[layer.end() :]) if layer else (OUTSIDE, short)
        found.setdefault(place, []).append(math.log(factor))
    return {place: math.exp(sum(logs) / len(logs)) for place, logs in found.items()}
