"""White-box attacks on what a run releases: its noisy steps, and what it releases once.

The real engine, the real policy and the real releases, on worst-case neighbours. The attacker knows
the model, the other records, the noiseless numbers and how much noise is drawn. They see the noisy
output, and have to tell whether the target was in it. How well that goes bounds ε from below.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from twinset.config import PolicyConfig
from twinset.models.device import CPU, device_of
from twinset.policies import MechanismParams, NoisePolicy, make_policy
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    SubsampledGaussian,
)
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.mechanism.counts import (
    LengthBins,
    TokenWeights,
    release_label_counts,
    release_token_marginals,
)
from twinset.privacy.mechanism.counts import TokenMarginals as Marginals
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.privacy.mechanism.vector_sum import Descent, Regressions, fit_regressions

CONFIDENCE = 0.95
CANDIDATES = 400  # thresholds tried on the first half of the observations
MAX_GRAD_NORM = 1e-2  # below every gradient of the model, so that all are clipped
LEAST_SHARE = 0.5  # c(1), half the norm for records of privacy weight 1
OTHERS_WEIGHT = 1.0  # privacy weight of all records but the target
OTHERS, TOKENS = 3, 6  # records that are always there; tokens of a row
WEIGHTS = np.repeat([0.0, 1.0, 0.25], [1, 8, 56])  # of tokens; the first is not counted
LONGEST = float(np.sqrt(WEIGHTS @ WEIGHTS))
BINS = LengthBins(len(WEIGHTS), end=0)  # of lengths; the target is as long as the longest
COUNTED = 100  # others of each label, so that counts stay clear of 0
OWNED = 2  # records of the target, where a release counts those of an owner
DESCENT = Descent(steps=3)  # few: what the attacker sees is the end of all of them

Units = tuple[int, ...]


# -- what observations prove -----------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """What an audit proved.

    Args:
        what: the experiment.
        claimed: ε by the accountant, at δ. Of a published form it is the nominal one.
        lower_bound: of ε, at the stated confidence, at δ.
        delta: δ.
        trials: outputs seen with the record, and the same number without.
        guaranteed: ε of a theorem, where the claim is nominal. Infinite where there is none.
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


def epsilon_lower_bound(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest ε that the observations refute, or 0 where they refute none.

    An (ε, δ)-private mechanism has P(S) ≤ e^ε Q(S) + δ for both orders of the neighbours and every
    set S of outcomes. S is "the score is above a threshold", or "below". The first half of the
    observations chooses set and order, the second half gives exact bounds of both probabilities
    (Clopper and Pearson 1934). So with probability `confidence` ε is at least what is returned.

    Args:
        present: (n,) scores of outputs with the record.
        absent: (m,) the same without it.
        delta: δ.
        confidence: of the bound.

    >>> rng = np.random.default_rng(0)
    >>> bound = epsilon_lower_bound(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000), 0.01)
    >>> 1.5 < bound < 2.3  # the truth is 2.3
    True
    """

    def bound_each(present: np.ndarray, absent: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
        """(4, number of thresholds): above and below it, the record present and absent."""
        sizes = [len(present), len(absent)]
        above = [
            len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")
            for scores in (present, absent)
        ]
        below = [size - count for size, count in zip(sizes, above, strict=True)]
        each = (1 - confidence) / 2  # one half for either probability
        rows = []
        for counts in (above, below):
            for p, q in ((0, 1), (1, 0)):
                least = beta.ppf(each, counts[p], sizes[p] - counts[p] + 1)
                most = beta.ppf(1 - each, counts[q] + 1, sizes[q] - counts[q])
                excess = np.nan_to_num(least) - delta  # of no observation at all the bound is 0
                most = np.where(counts[q] == sizes[q], 1.0, most)
                rows.append(np.log(np.maximum(excess, 1e-300) / most))
        return np.array(rows)

    (present, judged_present), (absent, judged_absent) = (
        np.array_split(np.asarray(scores, float), 2) for scores in (present, absent)
    )
    thresholds = np.quantile(np.concatenate([present, absent]), np.linspace(0, 1, CANDIDATES))
    bounds = bound_each(present, absent, thresholds)
    test, place = np.unravel_index(np.argmax(bounds), bounds.shape)
    final = bound_each(judged_present, judged_absent, thresholds[place : place + 1])
    return max(0.0, float(final[test, 0]))


# -- a step ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbours:
    """A model and records of two rows each. The last one is the target, present or absent.

    A differentially private step must hide the record for *any* weights and any other records. So
    the attacker chooses them: a small real model whose tied table makes both uses of one token
    point the same way, a record that repeats that token, and others that pull elsewhere.

    Args:
        model: a causal LM.
        rows: (records, 2, T) tokens.
    """

    model: Any
    rows: Tensor

    @property
    def target(self) -> int:
        """Number of the record whose presence is to be hidden."""
        return len(self.rows) - 1

    def sequences(self, units: Units, apart: bool = False) -> Sequences:
        """Return some records as units of two rows, or with each row a unit of its own."""
        ids = self.rows[list(units)].flatten(0, 1)  # (2 units, T)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, 0] = False
        return Sequences(ids, mask, 1 if apart else self.rows.shape[1])


def worst_case(device: str = CPU) -> Neighbours:
    """Return the neighbours, the model on a device. Only the token table is trained.

    Seed and target are the worst of 300 × 97: with them, a tied table's norm without its cross term
    lets a record contribute 1.38 C, and not 1.03 C as with usual weights.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 2,
        "vocab_size": 97,
        "n_positions": 64,
    }
    torch.manual_seed(190)
    model: Any = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    with torch.no_grad():
        model.transformer.ln_f.weight.copy_((1.5 * torch.randn(32)).exp())
        model.transformer.ln_f.bias.copy_(torch.randn(32))
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.lm_head.weight)
    target, other = (torch.full((1, 2, TOKENS), token) for token in (85, 5))
    rows = torch.cat([other.expand(OTHERS, -1, -1), target])
    return Neighbours(model.to(device_of(device)), rows)


@dataclass(frozen=True)
class Target:
    """Which mechanism is attacked, and through what record.

    Args:
        policy: name and form, and the policies' options.
        noise_multiplier: σ.
        weight: the target's privacy weight, of a policy that weighs records.
    """

    policy: PolicyConfig = PolicyConfig()
    noise_multiplier: float = 1.0
    weight: float = 1.0


class Step:
    """A private step as twinset takes it: exact clipping, then a policy.

    The policy says how it is attacked: what shape its noise has, how it scales with the batch, and
    what its paper claims. Subclasses in `evaluation.audit.faults` break one thing each.

    Args:
        neighbours: model and records.
        target: what is attacked.
    """

    drawn: ClassVar[float] = 1.0  # times σ: the noise that is drawn
    overstated: ClassVar[float] = 1.0  # times the noise in the event: what the ledger is given

    def __init__(self, neighbours: Neighbours, target: Target) -> None:
        self.neighbours, self.attacked = neighbours, target
        self.randomness = Randomness.from_os()  # of batches
        self.engine = ClippingEngine(neighbours.model, MAX_GRAD_NORM)
        weights = torch.full((neighbours.target + 1,), OTHERS_WEIGHT, dtype=torch.float64)
        weights[-1] = target.weight
        sigma = target.noise_multiplier * self.drawn
        self.policy: NoisePolicy = make_policy(
            MechanismParams(
                sigma,
                MAX_GRAD_NORM,
                1.0,
                self.noise_source(),
                target.policy,
                LEAST_SHARE,
                weights,
            )
        )
        self._known: dict[Units, Tensor] = {}
        # Let the policy believe that the target's direction matters, and clip as it then asks.
        past = self.shaped(self._clipped_sum((neighbours.target,)))
        self.engine.zero()
        for _ in range(3):
            self.policy.update_statistics(self.engine.parameters, past)
        if scales := self.policy.scales():
            self.engine.rescale(scales)
        shapes = self.policy.noise_shapes(self.engine.parameters)
        self.noise_shape = torch.cat([shape.flatten() for shape in shapes])  # (parameters,)

    def noise_source(self) -> Randomness:
        """Return what noise is drawn from."""
        return Randomness.from_os()

    def add(self, units: Units) -> None:
        """Add the records' clipped gradients to the engine's sums."""
        sequences, limits = self.neighbours.sequences(units), self.policy.limits(units)
        self.engine.add(sequences, lambda means, counts: means.sum(1), limits)

    def _clipped_sum(self, units: Units) -> Tensor:
        """Return the flat noiseless sum over some records, before the policy."""
        self.engine.zero()
        if units:
            self.add(units)
        return torch.cat([total.flatten() for total in self.engine.sums])

    def noiseless(self, units: Units) -> Tensor:
        """Return the flat sum that noise is added to. It is the same each time, so it is kept."""
        if units not in self._known:
            self._known[units] = self._clipped_sum(units)
        return self._known[units]

    def expected(self, units: Units) -> Tensor:
        """Return the mean of `output`."""
        known = self.policy.noiseless(self.shaped(self.noiseless(units)))
        return torch.cat([total.flatten() for total in known]) / self.noise_shape

    def noise_std(self, units: Units) -> float:
        """Return the standard deviation of every number of `output`. The attacker knows it."""
        sigma = self.attacked.noise_multiplier * self.drawn
        return sigma * MAX_GRAD_NORM * self.policy.noise_scale(units)

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
        if not isinstance(self.event, SubsampledGaussian | IndividualGaussian):
            return self.event
        noise = self.event.noise_multiplier * self.overstated
        return replace(self.event, noise_multiplier=noise, sample_rate=sample_rate, steps=steps)


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

    def observe(self, with_target: bool) -> float:
        """Take one output. Return log p(output | present) - log p(output | absent)."""
        output = self.step.output(self.present if with_target else self.without)
        squares = [
            float((output - mean).double().square().sum()) / (2 * std**2)
            for mean, std in zip(self._means, self._stds, strict=True)
        ]
        spread = math.log(self._stds[1] / self._stds[0]) if self._stds[0] != self._stds[1] else 0.0
        return squares[1] - squares[0] + output.numel() * spread


def audit_step(step: Step, trials: int, delta: float, on_output: Callable[[], object]) -> Finding:
    """Attack a single step over the whole table: the others and the target, or the others alone."""
    return _audit(step, "one step", 1.0, 1, trials, delta, on_output)


def audit_run(
    step: Step,
    steps: int,
    sample_rate: float,
    trials: int,
    delta: float,
    on_output: Callable[[], object],
) -> Finding:
    """Attack some steps into which the target was drawn by Poisson, or was not there."""
    what = f"{steps} steps at sample rate {sample_rate:g}"
    return _audit(step, what, sample_rate, steps, trials, delta, on_output)


def _audit(
    step: Step,
    what: str,
    sample_rate: float,
    steps: int,
    trials: int,
    delta: float,
    on_output: Callable[[], object],
) -> Finding:
    attacker = Attacker(step)

    def take_scores(with_target: bool) -> np.ndarray:
        scores = []
        for _ in range(trials):
            on_output()
            drawn = [with_target] * steps
            if with_target and sample_rate < 1:
                batches = poisson_batches(1, sample_rate, steps, step.randomness)
                drawn = [len(batch) > 0 for batch in batches]
            ratios = np.array([attacker.observe(each) for each in drawn])  # (steps,)
            if sample_rate < 1:  # the attacker does not know whether the target was drawn
                ratios = np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + ratios)
            scores.append(float(ratios.sum()))
        return np.array(scores)

    present, absent = take_scores(True), take_scores(False)
    weight, sigma = step.attacked.weight, step.attacked.noise_multiplier
    nominal = step.policy.nominal_event(sigma, sample_rate, steps, attacker.present)
    covered = epsilon([step.recorded(sample_rate, steps)], delta, weight)
    claimed = epsilon([nominal], delta) if nominal else covered
    if step.policy.weighs:
        what += f", privacy weight {weight:g}"
    bound = epsilon_lower_bound(present, absent, delta)
    return Finding(what, claimed, bound, delta, trials, covered if nominal else None)


# -- what a run releases once ----------------------------------------------------------------------


class Release(ABC):
    """One release, as twinset makes it, on tables that differ in the unit that moves it furthest.

    Args:
        noise_multiplier: σ, as the ledger records it.
    """

    what: ClassVar[str]
    direction: ClassVar[np.ndarray]  # what the target adds, up to a factor
    drawn: ClassVar[float] = 1.0  # times σ: the noise that is drawn

    def __init__(self, noise_multiplier: float) -> None:
        self.sigma, self.randomness = noise_multiplier, Randomness.from_os()
        self.noise_multiplier = noise_multiplier * self.drawn
        self.event: Event = GaussianRelease(noise_multiplier, self.what)

    @abstractmethod
    def output(self, present: bool) -> np.ndarray:
        """Return flat noisy numbers, with the target or without, and note the event to record."""


class LabelCounts(Release):
    """Counts of two labels. The target is an owner, all of whose records have the first."""

    what = "label counts"
    direction = np.array([1.0, 0.0])
    most: ClassVar[int] = OWNED  # records of an owner that noise is made for

    def output(self, present: bool) -> np.ndarray:
        """See `Release`."""
        labels = ["a", "b"] * COUNTED + ["a"] * OWNED * present
        counts, self.event = release_label_counts(
            labels, ["a", "b"], self.noise_multiplier, self.randomness, self.most
        )
        return np.array(counts, float)


class TokenMarginals(Release):
    """Weighted counts. The target's are as long as they may be, its label and length no other's."""

    what = "token marginals"
    direction = np.concatenate([np.zeros_like(WEIGHTS), WEIGHTS, np.eye(2 * len(BINS))[-1]])

    def output(self, present: bool) -> np.ndarray:
        """See `Release`."""
        found, event = count_tokens(present, self.noise_multiplier, self.randomness)
        assert event is not None
        self.event = event
        return np.concatenate([(found.counts[0] * WEIGHTS).ravel(), found.lengths[0].ravel()])


def count_tokens(
    present: bool, noise_multiplier: float, randomness: Randomness
) -> tuple[Marginals, GaussianRelease | None]:
    """Return the marginals of the others, and of a target that has every token."""
    target = [[(range(len(WEIGHTS)), (1,))]] * present
    units = [[(range(1, 3), (0,))]] * OTHERS + target
    weights = TokenWeights(WEIGHTS, LONGEST)
    return release_token_marginals(units, [2], weights, noise_multiplier, randomness, BINS)


class TeacherWeights(Release):
    """A regression of two classes. The target's gradient is as long as it may be, at each step.

    There are no others, as their number is public: with the target and without it counts as one.
    """

    what = "teacher"
    direction = np.array([1.0, -1.0])

    def output(self, present: bool) -> np.ndarray:
        """See `Release`."""
        data = Regressions([np.ones((1, 1))], [np.zeros(1, np.int64)], [2], [[0]] * present, 1)
        (weights,) = fit_regressions(data, self.noise_multiplier, self.randomness, DESCENT)
        return weights.ravel()


RELEASES: dict[str, type[Release]] = {
    kind.what: kind for kind in (LabelCounts, TokenMarginals, TeacherWeights)
}


def audit_release(
    release: Release, trials: int, delta: float, on_output: Callable[[], object]
) -> Finding:
    """Attack a release: the others and the target, or the others alone."""

    def take_scores(present: bool) -> np.ndarray:
        scores = []
        for _ in range(trials):
            on_output()
            scores.append(float(release.output(present) @ release.direction))
        return np.array(scores)

    present, absent = take_scores(True), take_scores(False)
    claimed = epsilon([release.event], delta)
    bound = epsilon_lower_bound(present, absent, delta)
    return Finding(release.what, claimed, bound, delta, trials)
