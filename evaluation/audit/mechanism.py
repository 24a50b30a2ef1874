"""A white-box attack on the noise step: real engine, real policy, worst-case neighbours.

The attacker knows the model, the other records and the noiseless sums, sees the noisy output, and
has to tell whether the target was in the batch. How well that goes bounds ε from below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evaluation.audit.lowerbound import epsilon_lower_bound
from evaluation.audit.neighbours import Neighbours
from twinset.policies import MakePolicy, NoisePolicy, policy_named
from twinset.privacy.accountant import epsilon
from twinset.privacy.batches import poisson_batches
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.events import SubsampledGaussian
from twinset.privacy.randomness import Randomness

MAX_GRAD_NORM = 1e-2  # below every gradient of the model, so that all are clipped
Units = tuple[int, ...]


class Step:
    """A private step as twinset takes it: exact clipping, then a policy.

    Args:
        neighbours: model and records.
        policy: its name.
        noise_multiplier: σ.
    """

    def __init__(self, neighbours: Neighbours, policy: str, noise_multiplier: float) -> None:
        self.neighbours, self.noise_multiplier = neighbours, noise_multiplier
        self.randomness = Randomness.from_os()
        self.engine = ClippingEngine(neighbours.model, MAX_GRAD_NORM)
        self.policy = self.made(policy_named(policy))
        self._known: dict[Units, Tensor] = {}
        self._choose_geometry()

    def _choose_geometry(self) -> None:
        """Let the policy believe that the target's direction matters, and clip as it then asks."""
        parameters = self.engine.parameters
        past = self._shaped(self.clipped_sum((self.neighbours.target,)))
        self.engine.zero()
        for _ in range(3):
            self.policy.learn(parameters, past)
        scales = self.policy.scales()
        if scales:
            self.engine.rescale(scales)
        ones = [torch.ones_like(p) for p in parameters]
        stretched = [s.times_(one) for s, one in zip(scales, ones, strict=True)] if scales else ones
        self._stretch = torch.cat([s.flatten() for s in stretched])

    def made(self, policy: MakePolicy) -> NoisePolicy:
        """Return the policy that releases."""
        return policy(self.noise_multiplier, MAX_GRAD_NORM, 1.0, self.randomness)

    def clipped_sum(self, units: Units) -> Tensor:
        """Return the flat noiseless sum over some records."""
        self.engine.zero()
        if units:
            self.add(units)
        return torch.cat([total.flatten() for total in self.engine.sums])

    def add(self, units: Units) -> None:
        """Add the records' clipped gradients to the engine's sums."""
        self.engine.add(self.neighbours.sequences(units), lambda means, counts: means.sum(1))

    def noiseless(self, units: Units) -> Tensor:
        """Return the flat output that noise is added to; it is the same each time."""
        if units not in self._known:
            self._known[units] = self.clipped_sum(units)
        return self._known[units]

    def output(self, units: Units) -> Tensor:
        """Return one flat noisy output, divided by the policy's scales: the attacker knows them."""
        flat = self.noiseless(units).clone()
        self.policy.release(self._shaped(flat))
        return flat / self._stretch

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat tensor in the parameters' shapes."""
        shapes = [p.shape for p in self.engine.parameters]
        parts = flat.split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True)
class Finding:
    """What an audit proved.

    Args:
        what: the experiment.
        claimed: ε by the accountant, at δ.
        lower_bound: of ε, at the stated confidence, at δ.
        delta: δ.
        trials: outputs seen with the record, and as many without.
    """

    what: str
    claimed: float
    lower_bound: float
    delta: float
    trials: int

    @property
    def holds(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.claimed


def audit_step(step: Step, trials: int, delta: float, tick: Callable[[], object]) -> Finding:
    """Attack a single step over the whole table: company and target, or company alone."""
    target = step.neighbours.target
    without = tuple(range(target))
    present, absent = (*without, target), without
    away = step.noiseless(present) - step.noiseless(absent)
    away = away / away.norm()

    def scores(units: Units) -> np.ndarray:
        return np.array([(tick(), float(step.output(units) @ away))[1] for _ in range(trials)])

    claimed = epsilon([SubsampledGaussian(step.noise_multiplier, 1.0, 1)], delta)
    bound = epsilon_lower_bound(scores(present), scores(absent), delta)
    return Finding("one step", claimed, bound, delta, trials)


def audit_run(
    step: Step,
    steps: int,
    sample_rate: float,
    trials: int,
    delta: float,
    tick: Callable[[], object],
) -> Finding:
    """Attack some steps over Poisson samples of a table that holds the target, or nothing."""
    target = step.neighbours.target
    alone = step.noiseless((target,))
    std = step.noise_multiplier * MAX_GRAD_NORM

    def score(batches: Iterator[Units]) -> float:
        """Return the log likelihood ratio of the outputs, supposing the stated noise."""
        tick()
        seen = np.array([float(step.output(units) @ alone) for units in batches])
        excess = (seen - float(alone @ alone) / 2) / std**2
        return float(np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + excess).sum())

    def drawn() -> Iterator[Units]:
        batches = poisson_batches(1, sample_rate, steps, step.randomness)
        return ((target,) if len(batch) else () for batch in batches)

    present = np.array([score(drawn()) for _ in range(trials)])
    absent = np.array([score(iter([()] * steps)) for _ in range(trials)])
    claimed = epsilon([SubsampledGaussian(step.noise_multiplier, sample_rate, steps)], delta)
    bound = epsilon_lower_bound(present, absent, delta)
    return Finding(f"{steps} steps at sample rate {sample_rate:g}", claimed, bound, delta, trials)
