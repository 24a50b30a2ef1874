"""A white-box attack on what a run releases once: label counts, token marginals, the teacher.

The real functions, on tables that differ in one unit: the one that moves the release furthest. The
attacker knows all other units, and what the release would be without noise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from evaluation.audit.lower_bound import epsilon_lower_bound
from evaluation.audit.mechanism import Finding
from twinset.privacy.accounting.accountant import epsilon
from twinset.privacy.accounting.events import Event, GaussianRelease
from twinset.privacy.mechanism.counts import (
    LengthBins,
    TokenWeights,
    release_label_counts,
    release_token_marginals,
)
from twinset.privacy.mechanism.counts import TokenMarginals as Marginals
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import Descent, Regressions, fit_regressions

OTHERS = 3  # units that are always there
COUNTED = 100  # others of each label, so that counts stay clear of 0
WEIGHTS = np.repeat([0.0, 1.0, 0.25], [1, 8, 56])  # of tokens; the first is not counted
LONGEST = float(np.sqrt(WEIGHTS @ WEIGHTS))
BINS = LengthBins(len(WEIGHTS), end=0)  # of lengths; the target is as long as the longest
OWNED = 2  # records of the target, where a release counts those of an owner
DESCENT = Descent(steps=3)  # few: what the attacker sees is the end of all of them


class Release(ABC):
    """One release, as twinset makes it.

    Args:
        noise_multiplier: σ, as the ledger records it.
    """

    what: ClassVar[str]
    direction: ClassVar[np.ndarray]  # what the target adds, up to a factor

    def __init__(self, noise_multiplier: float) -> None:
        self.sigma, self.randomness = noise_multiplier, Randomness.from_os()
        self.event: Event = GaussianRelease(noise_multiplier, self.what)

    @property
    def noise_multiplier(self) -> float:
        """Return σ as it is drawn with."""
        return self.sigma

    @abstractmethod
    def output(self, present: bool) -> np.ndarray:
        """Return flat noisy numbers, with the target or without; note the event to record."""


class LabelCounts(Release):
    """Counts of two labels; the target is an owner, all of whose records have the first."""

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
    """Weighted counts; the target's are as long as they may be, its label and length no other's."""

    what = "token marginals"
    direction = np.concatenate([np.zeros_like(WEIGHTS), WEIGHTS, np.eye(2 * len(BINS))[-1]])

    def output(self, present: bool) -> np.ndarray:
        """See `Release`."""
        found, event = counted(present, self.noise_multiplier, self.randomness)
        assert event is not None
        self.event = event
        return np.concatenate([(found.counts[0] * WEIGHTS).ravel(), found.lengths[0].ravel()])


def counted(
    present: bool, noise_multiplier: float, randomness: Randomness
) -> tuple[Marginals, GaussianRelease | None]:
    """Return the marginals of the others, and of a target that has every token."""
    target = [[(range(len(WEIGHTS)), (1,))]] * present
    units = [[(range(1, 3), (0,))]] * OTHERS + target
    weights = TokenWeights(WEIGHTS, LONGEST)
    return release_token_marginals(units, [2], weights, noise_multiplier, randomness, BINS)


class TeacherWeights(Release):
    """A regression of two classes; the target's gradient is as long as it may be, at each step.

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

    def scores(present: bool) -> np.ndarray:
        return np.array(
            [
                (on_output(), float(release.output(present) @ release.direction))[1]
                for _ in range(trials)
            ]
        )

    present, absent = scores(True), scores(False)
    claimed = epsilon([release.event], delta)
    bound = epsilon_lower_bound(present, absent, delta)
    return Finding(release.what, claimed, bound, delta, trials)
