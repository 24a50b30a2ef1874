"""White-box attacks on what a run releases: its noisy steps and its one-time releases.

They use the real engine, the real policy and the real releases, on worst-case neighbours. The
attacker knows the model, the other records, the noiseless numbers and the noise level. They see the
noisy output, and must tell whether the target was in it. Their success bounds ε from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from twinset.config import PolicyConfig
from twinset.models.device import CPU, device_of
from twinset.policies import MechanismParams
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import (
    Event,
    GaussianRelease,
    IndividualGaussian,
    SubsampledGaussian,
)
from twinset.privacy.clipping import ClippingEngine, Sequences
from twinset.privacy.mechanism.columns import release_histograms, unit_weights
from twinset.privacy.mechanism.counts import (
    LengthBins,
    TokenWeights,
    release_label_counts,
    release_token_marginals,
)
from twinset.privacy.mechanism.gate import Gate
from twinset.privacy.mechanism.randomness import Randomness, poisson_batches
from twinset.privacy.mechanism.vector_sum import Descent, Regressions, fit_regressions

CONFIDENCE = 0.95
CANDIDATES = 400  # thresholds tried on the first half of the observations
MAX_GRAD_NORM = 1e-2  # below every gradient of the model, so that all are clipped
LEAST_SHARE = 0.5  # c(1), half the norm for records of privacy weight 1
OTHERS_WEIGHT = 1.0  # privacy weight of all records but the target
OTHERS, TOKENS = 3, 6  # records that are always there (tokens of a row)
WEIGHTS = np.repeat([0.0, 1.0, 0.25], [1, 8, 56])  # of tokens (the first is not counted)
LONGEST = float(np.sqrt(WEIGHTS @ WEIGHTS))
BINS = LengthBins(len(WEIGHTS), end=0)  # of lengths (the target is as long as the longest)
COUNTED = 3  # others of each label
TABLES = 4  # of other columns that each record is in
OWNED = 2  # records of the target, if a release counts those of an owner
DESCENT = Descent(steps=3)  # few, because the attacker sees only the result of all of them
AT_ONCE = 500  # independent outputs that one call makes

Units = tuple[int, ...]  # numbers of records
OnOutputs = Callable[[int], object]  # is called with how many outputs were made


@dataclass(frozen=True)
class Finding:
    """The result of an audit."""

    what: str  # the experiment
    claimed: float  # ε by the accountant, at δ. Of a published form it is the nominal one.
    lower_bound: float  # of ε, at the stated confidence, at δ
    delta: float
    trials: int  # outputs seen with the record, and the same number without
    guaranteed: float | None = None  # ε of a theorem, where the claim is nominal. ∞: there is none.

    @property
    def holds(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.claimed

    @property
    def theorem_holds(self) -> bool:
        """Whether the theorem survived, if the claim is not a theorem."""
        return self.lower_bound <= (self.claimed if self.guaranteed is None else self.guaranteed)


def epsilon_lower_bound(present: np.ndarray, absent: np.ndarray, delta: float) -> float:
    """Return the largest ε that the observations refute, or 0 if they refute none.

    An (ε, δ)-private mechanism has P(S) ≤ e^ε Q(S) + δ for both orders of the neighbours and every
    set S of outcomes. S is "the score is above a threshold", or "below". The first half of the
    observations chooses set and order, the second half gives exact bounds of both probabilities
    (Clopper and Pearson 1934). So ε is at least the result with probability `CONFIDENCE`.

    `present` are scores (n,) of outputs with the record, and `absent` (m,) of outputs without it.

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
        each = (1 - CONFIDENCE) / 2  # one half for either probability
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


Neighbours = tuple[Any, Tensor]  # a causal LM, and (records, 2, T) tokens. The target is the last


def worst_case(device: str = CPU) -> Neighbours:
    """Return a model on a device and records of two rows each. Only the token table is trained.

    A differentially private step must hide the record for *any* weights and any other records. So
    the attacker chooses them. It is a small real model whose tied table makes both uses of one
    token point the same way, a record that repeats that token, and others that pull elsewhere. Seed
    and target are the worst of 150 × 23. With them, a tied table's norm without its cross term lets
    a record contribute 1.39 C. The table has 192 numbers. That is enough for the length of the
    noise to reveal much, and few enough for tens of thousands of outputs.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(121)
    sizes: dict[str, Any] = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 24}
    model: Any = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, n_positions=8, **sizes))
    with torch.no_grad():
        model.transformer.ln_f.weight.copy_((1.5 * torch.randn(8)).exp())
        model.transformer.ln_f.bias.copy_(torch.randn(8))
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.lm_head.weight)
    target, other = (torch.full((1, 2, TOKENS), token) for token in (17, 5))
    rows = torch.cat([other.expand(OTHERS, -1, -1), target])
    return model.to(device_of(device)), rows


@dataclass(frozen=True)
class Target:
    """Which mechanism is attacked, and through which record."""

    policy: PolicyConfig = PolicyConfig()
    noise_multiplier: float = 1.0  # σ
    weight: float = 1.0  # the target's privacy weight, if the policy weighs records


class Step:
    """A private step of twinset (exact clipping, then a policy), and its attacker.

    The policy defines the attack: the shape of its noise, how it scales with the batch, and the
    claim of its paper. All records but the target are in every batch. Their draws are
    independent of the target's, so a guarantee must be true for any of them. Subclasses in
    `evaluation.audit.faults` break one thing each.
    """

    drawn: ClassVar[float] = 1.0  # times σ: the noise that is drawn
    overstated: ClassVar[float] = 1.0  # factor on the noise in the event that the ledger records
    sequences: ClassVar[int] = 2  # clipped together: all of a record
    seed: ClassVar[int | None] = None  # of the noise
    divides: ClassVar[bool] = False  # by the size of the batch

    def __init__(self, neighbours: Neighbours, target: Target) -> None:
        (model, self.rows), self.attacked = neighbours, target
        last = len(self.rows) - 1
        self.others, self.everyone = tuple(range(last)), tuple(range(last + 1))
        self.randomness = Randomness.from_os()  # of batches
        self.engine = ClippingEngine(model, MAX_GRAD_NORM)
        (table,) = self.engine.parameters  # (V, d)
        weights = torch.full((last + 1,), OTHERS_WEIGHT, dtype=torch.float64)
        weights[-1] = target.weight
        self.sigma = target.noise_multiplier * self.drawn
        noise = Randomness.from_os() if self.seed is None else Randomness.for_tests(self.seed)
        self.policy = target.policy.policy_class(
            MechanismParams(
                self.sigma, MAX_GRAD_NORM, 1.0, noise, target.policy, LEAST_SHARE, weights
            )
        )
        # Let the policy believe that the target's direction matters, and clip as it then asks.
        past = self.noiseless((last,))
        self.engine.zero()
        for _ in range(3):
            self.policy.update_statistics([table], [past])
        if scales := self.policy.scales():
            self.engine.rescale(scales)
        (self.noise_shape,) = self.policy.noise_shapes([table])  # (V, d)
        # The noiseless sums are the same each time. They and their outputs' moments are kept.
        self.sums: dict[Units, Tensor] = {}
        self.moments: list[tuple[Tensor, float]] = []  # with the target, and without it
        for units in (self.everyone, self.others):
            self.sums[units] = self.noiseless(units)
            known = self.sums[units].clone()  # the release without its noise
            for scale in scales:
                scale.times_(known)
            std = self.sigma * MAX_GRAD_NORM * self.policy.noise_scale(units)
            by = len(units) if self.divides else 1
            self.moments.append((known / self.noise_shape / by, std / by))

    def noiseless(self, units: Units) -> Tensor:
        """Return the sum (V, d) of some records' clipped gradients, before noise is added.

        The engine's own division is public, so it is left out here.
        """
        self.engine.zero()
        ids = self.rows[list(units)].flatten(0, 1)  # (2 units, T)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, 0] = False
        rows, limits = Sequences(ids, mask, self.sequences), self.policy.limits(units)
        self.engine.add(rows, lambda means, counts: means.sum(1), limits)
        return self.engine.sums[0].clone()

    def outputs(self, units: Units, count: int) -> Tensor:
        """Return noisy outputs (count, V, d) over the policy's scales, which the attacker knows.

        One release of `count` copies of the sum is `count` releases, each with its own noise.
        """
        copies = self.sums[units].repeat(count, 1, 1)
        (noisy,), self.event = self.policy.release([copies], units)
        return noisy / self.noise_shape / (len(units) if self.divides else 1)


def audit_step(
    step: Step,
    trials: int,
    delta: float,
    on_outputs: OnOutputs = lambda count: None,
    steps: int = 1,
    sample_rate: float = 1.0,
) -> Finding:
    """Attack one step over the whole table, or steps with a Poisson-sampled target.

    Args:
        step: the attacked step.
        trials: number of outputs with the target, and of outputs without.
        delta: δ of the claim.
        on_outputs: called with the progress.
        steps: number of steps in one output.
        sample_rate: q.
    """
    scores = []
    (mean, std), (other_mean, other_std) = step.moments
    widening = mean.numel() * math.log(other_std / std)
    for present in (True, False):
        drawn = np.full(trials * steps, present)
        if present and sample_rate < 1:
            batches = poisson_batches(1, sample_rate, trials * steps, step.randomness)
            drawn = np.array([len(batch) > 0 for batch in batches])
        ratios = np.empty(len(drawn))  # log p(output | present) - log p(output | absent)
        for units, chosen in ((step.everyone, drawn), (step.others, ~drawn)):
            places = np.flatnonzero(chosen)
            for start in range(0, len(places), AT_ONCE):
                some = places[start : start + AT_ONCE]
                outputs = step.outputs(units, len(some)).double()
                squares = (outputs - mean).square().sum((1, 2)) / (2 * std**2)
                others = (outputs - other_mean).square().sum((1, 2)) / (2 * other_std**2)
                ratios[some] = (others - squares + widening).cpu().numpy()
        if sample_rate < 1:  # the attacker does not know whether the target was drawn
            ratios = np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + ratios)
        scores.append(ratios.reshape(trials, steps).sum(1))
        on_outputs(trials)
    bound = epsilon_lower_bound(scores[0], scores[1], delta)
    # The event that came with the last release, as the ledger would take it.
    event, weight, sigma = step.event, step.attacked.weight, step.attacked.noise_multiplier
    if isinstance(event, SubsampledGaussian | IndividualGaussian):
        noise = event.noise_multiplier * step.overstated
        event = replace(event, noise_multiplier=noise, sample_rate=sample_rate, steps=steps)
    covered = epsilon([event], delta, weight)
    claimed, more = covered, None
    if step.policy.claims_more:  # the paper's claim for steps with this batch
        sigma *= step.policy.noise_scale(step.everyone)
        claimed, more = epsilon([SubsampledGaussian(sigma, sample_rate, steps)], delta), covered
    what = "one step" if steps == 1 else f"{steps} steps at sample rate {sample_rate:g}"
    if step.policy.weighs:
        what += f", privacy weight {weight:g}"
    return Finding(what, claimed, bound, delta, trials, more)


class Release:
    """One release of twinset, on tables that differ in the unit that moves it furthest.

    Many releases are made in one, on tables that share no label, and so no number.
    """

    what: ClassVar[str]
    direction: ClassVar[np.ndarray]  # the target's contribution, up to a factor
    drawn: ClassVar[float] = 1.0  # times σ: the noise that is drawn

    def __init__(self, noise_multiplier: float) -> None:
        self.sigma, self.randomness = noise_multiplier, Randomness.from_os()
        self.noise_multiplier = noise_multiplier * self.drawn
        self.event: Event = GaussianRelease(noise_multiplier, self.what)
        self.gate = Gate(self.record, is_private=False)  # of faults without noise, too

    def record(self, event: Event) -> None:
        """Take the event of a release. Where less noise is drawn, the stated one stays."""
        if self.drawn == 1.0:
            self.event = event

    def outputs(self, present: bool, count: int) -> np.ndarray:
        """Return noisy numbers (count, n), with targets or without."""
        raise NotImplementedError


class LabelCounts(Release):
    """Counts of two labels. The target is an owner, all of whose records have the first."""

    what = "label counts"
    direction = np.array([1.0, 0.0])
    most: ClassVar[int] = OWNED  # records of an owner that noise is made for

    def outputs(self, present: bool, count: int) -> np.ndarray:
        """See `Release`."""
        table = ["a", "b"] * COUNTED + ["a"] * OWNED * present
        noisy = release_label_counts(
            [(number, label) for number in range(count) for label in table],
            [(number, label) for number in range(count) for label in "ab"],
            self.noise_multiplier,
            self.randomness,
            self.most,
        )
        return np.array(self.gate.release(noisy), float).reshape(count, 2)


class TokenMarginals(Release):
    """Weighted counts. The target's have the maximum length, and their own label and length."""

    what = "token marginals"
    direction = np.concatenate([np.zeros_like(WEIGHTS), WEIGHTS, np.eye(2 * len(BINS))[-1]])

    def count_tokens(self, present: bool, count: int, noise_multiplier: float) -> np.ndarray:
        """Return counts (count, 2, V) and then lengths (count, 2, B) in one row for each table.

        They are of the others, and of a target that has every token.
        """
        units = []
        for number in range(count):  # two label values of its own for each table
            units.append([(range(1, 3), (2 * number,))])
            units += [[(range(len(WEIGHTS)), (2 * number + 1,))]] * present
        weights = TokenWeights(WEIGHTS, LONGEST)
        noisy = release_token_marginals(
            units, [2 * count], weights, noise_multiplier, self.randomness, BINS
        )
        found = self.gate.release(noisy)
        parts = [found.counts[0].reshape(count, -1), found.lengths[0].reshape(count, -1)]
        return np.concatenate(parts, 1)

    def outputs(self, present: bool, count: int) -> np.ndarray:
        """See `Release`."""
        factors = np.concatenate([WEIGHTS, WEIGHTS, np.ones(2 * len(BINS))])
        return self.count_tokens(present, count, self.noise_multiplier) * factors


class TeacherWeights(Release):
    """A regression of two classes. The target's gradient has the maximum length at each step.

    There are no other units. Their number is public, so it is one with and without the target.
    """

    what = "teacher"
    direction = np.array([1.0, -1.0])

    def outputs(self, present: bool, count: int) -> np.ndarray:
        """See `Release`. Each target has its own direction, and so its own weight of each class."""
        units = [[number] for number in range(count)] if present else []
        data = Regressions([np.eye(count)], [np.zeros(count, np.int64)], [2], units, 1)
        noisy = fit_regressions(data, self.noise_multiplier, self.randomness, DESCENT)
        (weights,) = self.gate.release(noisy)
        return weights.T  # (2, count) → (count, 2)


class ColumnTables(Release):
    """Tables of other columns. The target has a place of its own in each of them."""

    what = "other columns"
    direction = np.array([0.0, 1.0] * TABLES)

    def outputs(self, present: bool, count: int) -> np.ndarray:
        """See `Release`."""
        places = np.arange(2 * count)  # one record in each, of two of each pair of tables
        codes = places if present else places[::2]
        weights = unit_weights([[i] for i in range(len(codes))], len(codes))
        noise, randomness = self.noise_multiplier, self.randomness
        noisy = release_histograms(
            [codes] * TABLES, [2 * count] * TABLES, weights, noise, randomness
        )
        found, _ = self.gate.release(noisy)
        return np.concatenate([counts.reshape(count, 2) for counts in found], 1)


RELEASES: dict[str, type[Release]] = {
    kind.what: kind for kind in (LabelCounts, TokenMarginals, ColumnTables, TeacherWeights)
}


def audit_release(
    release: Release, trials: int, delta: float, on_outputs: OnOutputs = lambda count: None
) -> Finding:
    """Attack a release: the others and the target, or the others alone.

    Args:
        release: the attacked release.
        trials: number of outputs with the target, and of outputs without.
        delta: δ of the claim.
        on_outputs: called with the progress.
    """
    scores = np.empty((2, trials))
    for row, present in zip(scores, (True, False), strict=True):
        for start in range(0, trials, AT_ONCE):
            outputs = release.outputs(present, min(AT_ONCE, trials - start))
            row[start : start + AT_ONCE] = outputs @ release.direction
            on_outputs(len(outputs))
    bound = epsilon_lower_bound(scores[0], scores[1], delta)
    return Finding(release.what, epsilon([release.event], delta), bound, delta, trials)
