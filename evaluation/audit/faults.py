"""Steps and releases that are broken on purpose. An audit that does not catch them proves nothing.

Each is a mistake that has been made in earnest, by others or by us.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from evaluation.audit.mechanism import MAX_GRAD_NORM, Step, Target, Units
from evaluation.audit.neighbouring_tables import Neighbours
from evaluation.audit.releases import (
    DESCENT,
    LONGEST,
    LabelCounts,
    Release,
    TeacherWeights,
    TokenMarginals,
    counted,
)
from twinset.policies import MechanismParams, NoisePolicy
from twinset.privacy.accounting.events import Event, GaussianRelease, SubsampledGaussian
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.mechanism.noise import add_gaussian_
from twinset.privacy.mechanism.randomness import Randomness


class TwoThirdsNoise(Step):
    """Noise of two thirds of the stated σ."""

    def made(self, params: MechanismParams) -> NoisePolicy:
        """See `Step`."""
        return super().made(replace(params, noise_multiplier=params.noise_multiplier * 2 / 3))

    def noise_std(self, units: Units) -> float:
        """See `Step`: the attacker knows of the fault."""
        return super().noise_std(units) * 2 / 3

    def recorded(self, sample_rate: float, steps: int) -> Event:
        """See `Step`: the ledger is given the stated σ."""
        return SubsampledGaussian(self.attacked.noise_multiplier, sample_rate, steps)


class CrossTermLeftOut(Step):
    """Norms of a tied table as if its two uses were two tables."""

    def __init__(self, neighbours: Neighbours, target: Target) -> None:
        super().__init__(neighbours, target)
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

    def expected(self, units: Units) -> Tensor:
        """See `Step`."""
        return super().expected(units) / max(1, len(units))

    def noise_std(self, units: Units) -> float:
        """See `Step`."""
        return super().noise_std(units) / max(1, len(units))

    def output(self, units: Units) -> Tensor:
        """See `Step`."""
        return super().output(units) / max(1, len(units))


class OverstatedEvent(Step):
    """A ledger entry of 3/2 of the noise that was added."""

    def recorded(self, sample_rate: float, steps: int) -> Event:
        """See `Step`."""
        return SubsampledGaussian(1.5 * self.attacked.noise_multiplier, sample_rate, steps)


class KnownSeed(Step):
    """Noise that whoever knows the seed can draw again and subtract."""

    def made(self, params: MechanismParams) -> NoisePolicy:
        """See `Step`."""
        self._theirs = Randomness.for_tests(0)
        return super().made(replace(params, randomness=Randomness.for_tests(0)))

    def output(self, units: Units) -> Tensor:
        """Return what the attacker is left with."""
        flat = super().output(units)
        sizes = [p.numel() for p in self.engine.parameters]
        for part in flat.split(sizes):
            drawn = torch.zeros_like(part)
            std = self.attacked.noise_multiplier * MAX_GRAD_NORM
            part -= add_gaussian_(drawn, std, self._theirs)
        return flat


class CountsAsOfOne(LabelCounts):
    """Label counts of owners with several records, with the noise for one record."""

    most = 1


class HalvedMarginalNoise(TokenMarginals):
    """Token marginals with half of the stated σ, which is what the ledger records."""

    @property
    def noise_multiplier(self) -> float:
        """See `Release`."""
        return self.sigma / 2

    def output(self, present: bool) -> np.ndarray:
        """See `Release`."""
        found = super().output(present)
        self.event = GaussianRelease(self.sigma, self.what)
        return found


class MarginalNoiseOfWeightOne(TokenMarginals):
    """Token marginals with the noise of tokens of weight 1 on all, those of less weight too."""

    direction = np.sign(TokenMarginals.direction)

    def output(self, present: bool) -> np.ndarray:
        """See `Release`."""
        found = counted(present, 0.0, self.randomness)[0]
        counts = np.concatenate([found.counts[0].ravel(), found.lengths[0].ravel()])
        self.event = GaussianRelease(self.sigma, self.what)
        noisy = add_gaussian_(torch.from_numpy(counts), self.sigma * LONGEST, self.randomness)
        return noisy.numpy()


class NoiseOfOneStep(TeacherWeights):
    """A teacher with σ at each step, as if the others had released nothing."""

    @property
    def noise_multiplier(self) -> float:
        """See `Release`: what is passed on grows by the root of the number of steps."""
        return self.sigma / DESCENT.steps**0.5


RELEASE_FAULTS: dict[str, type[Release]] = {
    "label-counts-as-of-one": CountsAsOfOne,
    "halved-marginal-noise": HalvedMarginalNoise,
    "marginal-noise-of-weight-one": MarginalNoiseOfWeightOne,
    "teacher-noise-of-one-step": NoiseOfOneStep,
}

FAULTS: dict[str, type[Step]] = {
    "two-thirds-noise": TwoThirdsNoise,
    "cross-term-left-out": CrossTermLeftOut,
    "sequences-apart": SequencesApart,
    "realised-batch-size": RealisedBatchSize,
    "overstated-event": OverstatedEvent,
    "known-seed": KnownSeed,
}
