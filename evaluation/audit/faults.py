"""Steps that are broken on purpose. An audit that does not catch them proves nothing.

Each is a mistake that has been made in earnest, by others or by us.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from evaluation.audit.mechanism import MAX_GRAD_NORM, Step, Units
from evaluation.audit.neighbours import Neighbours
from twinset.policies import MakePolicy, NoisePolicy
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.noise import add_gaussian_
from twinset.privacy.randomness import Randomness


class TwoThirdsNoise(Step):
    """Noise of two thirds of the stated σ."""

    def made(self, policy: MakePolicy) -> NoisePolicy:
        """See `Step`."""
        return policy(self.noise_multiplier * 2 / 3, MAX_GRAD_NORM, 1.0, self.randomness)


class CrossTermLeftOut(Step):
    """Norms of a tied table as if its two uses were two tables."""

    def __init__(self, neighbours: Neighbours, policy: str, noise_multiplier: float) -> None:
        super().__init__(neighbours, policy, noise_multiplier)
        self.engine._norms = partial(norms_of_uses_apart, self.engine)  # type: ignore[method-assign]


def norms_of_uses_apart(engine: ClippingEngine, units: int) -> Tensor:
    """(B,) float64 norms in which a parameter's uses are taken to be orthogonal."""
    squared = torch.zeros(units, dtype=torch.float64)
    for parameter in engine.parameters:
        for use in engine._uses_of(parameter):
            squared += use.squared_norms()
    return squared.sqrt()


class SequencesApart(Step):
    """Each sequence of a record clipped by itself."""

    def add(self, units: Units) -> None:
        """See `Step`."""
        rows = self.neighbours.sequences(units, apart=True)
        self.engine.add(rows, lambda means, counts: means.sum(1))


class RealisedBatchSize(Step):
    """Division by the number of records drawn, which depends on the target, as in plain SGD."""

    def noiseless(self, units: Units) -> Tensor:
        """See `Step`."""
        return super().noiseless(units) / max(1, len(units))

    def output(self, units: Units) -> Tensor:
        """See `Step`."""
        noiseless = self.noiseless(units)
        return noiseless + (super().output(units) - noiseless) / max(1, len(units))


class KnownSeed(Step):
    """Noise that whoever knows the seed can draw again and subtract."""

    def made(self, policy: MakePolicy) -> NoisePolicy:
        """See `Step`."""
        self._theirs = Randomness.for_tests(0)
        return policy(self.noise_multiplier, MAX_GRAD_NORM, 1.0, Randomness.for_tests(0))

    def output(self, units: Units) -> Tensor:
        """Return what the attacker is left with."""
        flat = super().output(units)
        sizes = [p.numel() for p in self.engine.parameters]
        for part in flat.split(sizes):
            drawn = torch.zeros_like(part)
            part -= add_gaussian_(drawn, self.noise_multiplier * MAX_GRAD_NORM, self._theirs)
        return flat


FAULTS: dict[str, type[Step]] = {
    "two-thirds-noise": TwoThirdsNoise,
    "cross-term-left-out": CrossTermLeftOut,
    "sequences-apart": SequencesApart,
    "realised-batch-size": RealisedBatchSize,
    "known-seed": KnownSeed,
}
