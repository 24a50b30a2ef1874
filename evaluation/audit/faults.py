"""Steps and releases that are broken on purpose. An audit that does not catch them proves nothing.

Each is a mistake that others or we have really made. A fault changes one thing of `Step` or of a
release. The attacker knows about it, the ledger does not.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.mechanism.noise import add_gaussian_, add_gaussian_to_each_
from twinset.privacy.mechanism.randomness import Randomness

from .mechanism import (
    DESCENT,
    LONGEST,
    MAX_GRAD_NORM,
    TABLES,
    ColumnTables,
    LabelCounts,
    Release,
    Step,
    TeacherWeights,
    TokenMarginals,
    Units,
)


class TwoThirdsNoise(Step):
    """Noise with two thirds of the stated σ. The ledger records the stated one."""

    drawn = 2 / 3
    overstated = 3 / 2


class CrossTermLeftOut(Step):
    """Norms of a tied table as if its two uses were two tables."""

    def noiseless(self, units: Units) -> Tensor:
        """See `Step`."""
        self.engine._norms = partial(norms_of_uses_apart, self.engine)  # type: ignore[method-assign]
        return super().noiseless(units)


def norms_of_uses_apart(engine: ClippingEngine, units: int) -> Tensor:
    """(B,) float64 norms that treat a parameter's uses as orthogonal."""
    apart = [use.squared_norms()[0] for uses in engine._uses.values() for use in uses]
    return torch.stack(apart).sum(0).sqrt()


class SequencesApart(Step):
    """Each sequence of a record clipped on its own, so that a record of two moves by 2 C."""

    sequences = 1


class RealisedBatchSize(Step):
    """Division by the number of drawn records, which depends on the target, as in plain SGD."""

    divides = True


class OverstatedEvent(Step):
    """A ledger entry with 3/2 of the noise that was added."""

    overstated = 3 / 2


class KnownSeed(Step):
    """Noise from a known seed, which the attacker can draw again and subtract."""

    seed = 0

    def outputs(self, units: Units, count: int) -> Tensor:
        """Return what remains for an attacker who draws from the same stream."""
        if not hasattr(self, "theirs"):
            self.theirs = Randomness.for_tests(self.seed)
        noisy = super().outputs(units, count)
        drawn = [torch.zeros_like(noisy)]
        add_gaussian_to_each_(drawn, self.sigma * MAX_GRAD_NORM, self.theirs)
        return noisy - drawn[0]


class CountsAsOfOne(LabelCounts):
    """Label counts of owners with several records, with the noise for one record."""

    most = 1


class HalvedMarginalNoise(TokenMarginals):
    """Token marginals with half of the stated σ. The ledger records the stated one."""

    drawn = 1 / 2


class MarginalNoiseOfWeightOne(TokenMarginals):
    """Token marginals with the noise of weight-1 tokens on all tokens, those of less weight too."""

    direction = np.sign(TokenMarginals.direction)

    def outputs(self, present: bool, count: int) -> np.ndarray:
        """See `Release`."""
        exact = torch.from_numpy(self.count_tokens(present, count, 0.0))
        return add_gaussian_(exact, self.sigma * LONGEST, self.randomness).numpy()


class NoiseOfOneStep(TeacherWeights):
    """A teacher with σ at each step, as if the others had released nothing.

    The released signal grows with the root of the number of steps.
    """

    drawn = 1 / DESCENT.steps**0.5


class NoiseOfOneTable(ColumnTables):
    """Tables of columns with the noise of one table, as if a record were in one alone."""

    drawn = 1 / TABLES**0.5


RELEASE_FAULTS: dict[str, type[Release]] = {
    "label-counts-as-of-one": CountsAsOfOne,
    "halved-marginal-noise": HalvedMarginalNoise,
    "marginal-noise-of-weight-one": MarginalNoiseOfWeightOne,
    "teacher-noise-of-one-step": NoiseOfOneStep,
    "column-noise-of-one-table": NoiseOfOneTable,
}

FAULTS: dict[str, type[Step]] = {
    "two-thirds-noise": TwoThirdsNoise,
    "cross-term-left-out": CrossTermLeftOut,
    "sequences-apart": SequencesApart,
    "realised-batch-size": RealisedBatchSize,
    "overstated-event": OverstatedEvent,
    "known-seed": KnownSeed,
}
