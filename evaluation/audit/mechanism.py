"""A white-box attack on the noise step: real engine, real policy, worst-case neighbours.

The attacker knows the model, the other records, the noiseless sums and how much noise a policy
draws for which batch, sees the noisy output, and has to tell whether the target was in the batch.
How well that goes bounds ε from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from evaluation.audit.lower_bound import epsilon_lower_bound
from evaluation.audit.neighbouring_tables import Neighbours
from twinset.config import PolicyConfig
from twinset.policies import MechanismParams, NoisePolicy, make_policy
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import Event, IndividualGaussian, SubsampledGaussian
from twinset.privacy.clipping import ClippingEngine
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches

MAX_GRAD_NORM = 1e-2  # below every gradient of the model, so that all are clipped
LEAST_SHARE = 0.5  # adaptive: c(1), half the norm for records of privacy weight 1
OTHERS_WEIGHT = 1.0  # adaptive: privacy weight of all records but the target
Units = tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """Which mechanism is attacked, and through what record.

    Args:
        policy: name and form, and the policies' options.
        noise_multiplier: σ.
        weight: adaptive: the target's privacy weight.
    """

    policy: PolicyConfig = PolicyConfig()
    noise_multiplier: float = 1.0
    weight: float = 1.0


class Step:
    """A private step as twinset takes it: exact clipping, then a policy.

    Args:
        neighbours: model and records.
        target: what is attacked.
    """

    def __init__(self, neighbours: Neighbours, target: Target) -> None:
        self.neighbours, self.attacked = neighbours, target
        self.randomness = Randomness.from_os()
        self.engine = ClippingEngine(neighbours.model, MAX_GRAD_NORM)
        weights = torch.full((neighbours.target + 1,), OTHERS_WEIGHT, dtype=torch.float64)
        weights[-1] = target.weight
        sigma, share = target.noise_multiplier, LEAST_SHARE
        self.policy = self.made(
            MechanismParams(
                sigma, MAX_GRAD_NORM, 1.0, self.randomness, target.policy, share, weights
            )
        )
        self._known: dict[Units, Tensor] = {}
        self._choose_geometry()

    def _choose_geometry(self) -> None:
        """Let the policy believe that the target's direction matters, and clip as it then asks."""
        parameters = self.engine.parameters
        past = self.shaped(self.clipped_sum((self.neighbours.target,)))
        self.engine.zero()
        for _ in range(3):
            self.policy.update_statistics(parameters, past)
        if scales := self.policy.scales():
            self.engine.rescale(scales)
        shapes = self.policy.noise_shapes(parameters)
        self.noise_shape = torch.cat([s.flatten() for s in shapes])

    def made(self, params: MechanismParams) -> NoisePolicy:
        """Return the policy that releases."""
        return make_policy(params)

    def clipped_sum(self, units: Units) -> Tensor:
        """Return the flat noiseless sum over some records, before the policy."""
        self.engine.zero()
        if units:
            self.add(units)
        return torch.cat([total.flatten() for total in self.engine.sums])

    def add(self, units: Units) -> None:
        """Add the records' clipped gradients to the engine's sums."""
        sequences, limits = self.neighbours.sequences(units), self.policy.limits(units)
        self.engine.add(sequences, lambda means, counts: means.sum(1), limits)

    def noiseless(self, units: Units) -> Tensor:
        """Return the flat sum that noise is added to; it is the same each time."""
        if units not in self._known:
            self._known[units] = self.clipped_sum(units)
        return self._known[units]

    def expected(self, units: Units) -> Tensor:
        """Return the mean of `output`."""
        known = self.policy.noiseless(self.shaped(self.noiseless(units)))
        return torch.cat([total.flatten() for total in known]) / self.noise_shape

    def noise_std(self, units: Units) -> float:
        """Return the standard deviation of every number of `output`."""
        std = self.attacked.noise_multiplier * MAX_GRAD_NORM
        return std * self.policy.noise_scale(units)

    def output(self, units: Units) -> Tensor:
        """Return one flat noisy output, divided by the policy's scales: the attacker knows them."""
        flat = self.noiseless(units).clone()
        _, self.event = self.policy.release(self.shaped(flat), units)
        return flat / self.noise_shape

    def shaped(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat tensor in the parameters' shapes."""
        shapes = [p.shape for p in self.engine.parameters]
        parts = flat.split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def recorded(self, sample_rate: float, steps: int) -> Event:
        """Return the event that came with the last release, as the ledger would take it."""
        if isinstance(self.event, SubsampledGaussian | IndividualGaussian):
            return replace(self.event, sample_rate=sample_rate, steps=steps)
        return self.event

    def nominal(self, sample_rate: float, steps: int) -> Event | None:
        """Return what the paper of a published form claims; `None` of a sound one."""
        with_target = tuple(range(self.neighbours.target + 1))
        sigma = self.attacked.noise_multiplier
        return self.policy.nominal_event(sigma, sample_rate, steps, with_target)


@dataclass(frozen=True)
class Finding:
    """What an audit proved.

    Args:
        what: the experiment.
        claimed: ε by the accountant, at δ; of a published form the nominal one.
        lower_bound: of ε, at the stated confidence, at δ.
        delta: δ.
        trials: outputs seen with the record, and as many without.
        guaranteed: ε of a theorem, where the claim is nominal; infinite where there is none.
    """

    what: str
    claimed: float
    lower_bound: float
    delta: float
    trials: int
    guaranteed: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.claimed

    @property
    def theorem_holds(self) -> bool:
        """Whether the theorem survived, where the claim is not one."""
        return self.lower_bound <= (self.claimed if self.guaranteed is None else self.guaranteed)


class Attacker:
    """Tells outputs with the target from outputs without, as well as can be done.

    Args:
        step: what is attacked. All other records are in every batch: their draws are independent
            of the target's, so that a guarantee must hold for any of them.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.without = tuple(range(step.neighbours.target))
        self.present = (*self.without, step.neighbours.target)
        self._means = [step.expected(units) for units in (self.present, self.without)]
        self._stds = [step.noise_std(units) for units in (self.present, self.without)]

    def log_likelihood_ratio(self, output: Tensor) -> float:
        """Return log p(output | target present) - log p(output | absent), at the stated noise."""
        squares = [
            float((output - mean).double().square().sum()) / (2 * std**2)
            for mean, std in zip(self._means, self._stds, strict=True)
        ]
        spread = math.log(self._stds[1] / self._stds[0]) if self._stds[0] != self._stds[1] else 0.0
        return squares[1] - squares[0] + output.numel() * spread

    def observe(self, with_target: bool) -> float:
        """Take one output and return its score."""
        return self.log_likelihood_ratio(
            self.step.output(self.present if with_target else self.without)
        )


def audit_step(step: Step, trials: int, delta: float, on_output: Callable[[], object]) -> Finding:
    """Attack a single step over the whole table: the others and the target, or the others alone."""
    attacker = Attacker(step)

    def scores(with_target: bool) -> np.ndarray:
        return np.array([(on_output(), attacker.observe(with_target))[1] for _ in range(trials)])

    return _finding("one step", step, (1.0, 1), scores(True), scores(False), delta)


def audit_run(
    step: Step,
    steps: int,
    sample_rate: float,
    trials: int,
    delta: float,
    on_output: Callable[[], object],
) -> Finding:
    """Attack some steps into which the target was drawn by Poisson, or was not there."""
    attacker = Attacker(step)

    def score(draws: Sequence[bool]) -> float:
        on_output()
        ratios = np.array([attacker.observe(drawn) for drawn in draws])
        mixed = np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + ratios)
        return float(mixed.sum())

    def drawn() -> list[bool]:
        batches = poisson_batches(1, sample_rate, steps, step.randomness)
        return [len(batch) > 0 for batch in batches]

    present = np.array([score(drawn()) for _ in range(trials)])
    absent = np.array([score([False] * steps) for _ in range(trials)])
    what = f"{steps} steps at sample rate {sample_rate:g}"
    return _finding(what, step, (sample_rate, steps), present, absent, delta)


def _finding(
    what: str,
    step: Step,
    taken: tuple[float, int],
    present: np.ndarray,
    absent: np.ndarray,
    delta: float,
) -> Finding:
    weight, nominal = step.attacked.weight, step.nominal(*taken)
    covered = epsilon([step.recorded(*taken)], delta, weight)
    claimed = epsilon([nominal], delta) if nominal else covered
    guaranteed = covered if nominal else None
    if step.policy.weighs:
        what += f", privacy weight {weight:g}"
    bound = epsilon_lower_bound(present, absent, delta)
    return Finding(what, claimed, bound, delta, len(present), guaranteed)
