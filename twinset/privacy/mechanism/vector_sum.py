"""Noisy sums of one bounded vector per unit, and regressions that are fitted by such sums.

`VectorSum` adds whole numbers, so it is exact in any order. `fit_regressions` fits logistic
regressions on vectors of public origin, all together, by noisy gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from twinset.privacy.accounting.events import TEACHER
from twinset.privacy.mechanism.gate import Measured, Noisy
from twinset.privacy.mechanism.noise import add_gaussian_
from twinset.privacy.mechanism.randomness import Randomness

UNIT_STEPS = 1 << 24  # of the grid that vectors are rounded to, in a length of one
_SLACK = 1 - 1e-9  # for the rounding of a norm


class VectorSum:
    """Adds up vectors of length at most one, one per unit, and releases the sum with noise.

    Args:
        length: n, the number of elements of a vector.
    """

    def __init__(self, length: int) -> None:
        self._sum = np.zeros(length, np.int64)

    def add(self, vectors: np.ndarray, places: np.ndarray | slice = slice(None)) -> None:
        """Add the vectors of k units. A vector longer than one is scaled down to length one.

        Args:
            vectors: (k, n) float64. A row with a number that is not finite counts as zero.
            places: distinct places of the numbers in the sum. All other numbers are zero.
        """
        norms = np.sqrt(np.square(vectors).sum(1))  # (k,)
        scales = UNIT_STEPS * np.minimum(1.0, _SLACK / np.maximum(norms, 1e-300))
        known = np.isfinite(norms)
        exact = vectors[known] * scales[known, None]
        self._sum[places] += np.trunc(exact).astype(np.int64).sum(0)  # towards 0: not longer

    def add_ones(
        self,
        places: Sequence[np.ndarray],
        offsets: Sequence[int] | np.ndarray,
        weights: np.ndarray,
        most: int,
    ) -> None:
        """Add vectors with a one at some places, all divided by √most. Each is at most one long.

        Args:
            places: H arrays (k,) of the ones of k vectors, counted from an offset. -1: none.
            offsets: of each array.
            weights: (k,) whole numbers of `UNIT_STEPS`. Those of a unit sum to one or less.
            most: the largest number of ones of a vector.
        """
        each = np.trunc(weights * (_SLACK / most**0.5)).astype(np.int64)  # towards 0: not longer
        for column, offset in zip(places, offsets, strict=False):
            has = column >= 0
            # in float64 whole numbers are exact up to 2^53: of 500 million units
            found = np.bincount(column[has], each[has]).astype(np.int64)
            self._sum[offset : offset + len(found)] += found

    def release(
        self, noise_multiplier: float, randomness: Randomness, what: str
    ) -> Noisy[np.ndarray]:
        """Return the sum (n,) with noise N(0, σ²) on each number.

        Guarantee: this is one Gaussian release of multiplier σ (`noise.add_gaussian_`). Each unit
        adds one vector of length at most one, which is a function of it alone and of public or
        already released data. Whole numbers are added without rounding, so adding or removing a
        unit changes the sum by that vector and nothing else. With σ = 0 nothing is guaranteed.

        Args:
            noise_multiplier: σ. 0: no noise, no event and no guarantee.
            randomness: its noise streams are used.
            what: the name of the release in its event.
        """
        import torch

        exact = self._sum.astype(np.float64) / UNIT_STEPS
        noisy = add_gaussian_(torch.from_numpy(exact.copy()), noise_multiplier, randomness).numpy()
        return Noisy.gaussian(noisy, noise_multiplier, what, Measured.of(exact, noisy))


Weights = list[np.ndarray]
UNITS_AT_ONCE = 512


@dataclass(frozen=True)
class Regressions:
    """A regressions, one for each attribute, on the same N records and vectors of about length one.

    Args:
        vectors: for each attribute (N, d) float64. A record's vectors are functions of it alone,
            and of public or already released data.
        labels: for each attribute (N,) class of each record.
        classes: for each attribute its number of classes, K.
        units: records of each unit, at least one. For an owner those that take part.
        expected: number of units, public. If units were drawn at random, their mean number.
    """

    vectors: Sequence[np.ndarray]
    labels: Sequence[np.ndarray]
    classes: Sequence[int]
    units: Sequence[Sequence[int]]
    expected: float


@dataclass(frozen=True)
class Descent:
    """How the regressions are fitted: full-batch gradient descent, the last third averaged.

    Args:
        steps: T.
        max_grad_norm: C, for a unit's gradient of all regressions together.
        learning_rate: the largest. If noise is large for the number of units, it is reduced.
        momentum: of the gradient.
    """

    steps: int = 40
    max_grad_norm: float = 0.5
    learning_rate: float = 10.0
    momentum: float = 0.9


def fit_regressions(
    data: Regressions,
    noise_multiplier: float,
    randomness: Randomness,
    descent: Descent = Descent(),
    count: Callable[[int, int], object] = lambda done, total: None,
) -> Noisy[Weights]:
    """Fit all regressions with noise. Return the (K, d) weights of each.

    Guarantee: each of T steps is a `VectorSum` of one clipped gradient per unit, released with
    noise multiplier σ√T. A unit's gradient depends on its own records and on earlier releases.
    Gaussian releases compose as one whose σ⁻² is the sum of theirs, also if later ones depend on
    earlier ones (Dong, Roth and Su 2019, corollary 3.3). So all of it is one Gaussian release of
    multiplier σ, for adding or removing one unit. The expected number of units, which sets the step
    size, is taken as public. The actual number is not used. Any use of the weights is
    post-processing.

    Args:
        data: vectors and labels.
        noise_multiplier: σ, of all steps together.
        randomness: its noise streams are used.
        descent: how they are fitted.
        count: called with the number of finished steps, and their total.
    """
    sizes = [(k, x.shape[1]) for k, x in zip(data.classes, data.vectors, strict=True)]
    ends = np.cumsum([k * d for k, d in sizes])

    def split(flat: np.ndarray) -> Weights:  # (Σ K·d,) → (K, d) of each attribute
        parts = np.split(flat, ends[:-1])
        return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]

    length, units_expected = int(ends[-1]), max(1.0, data.expected)
    weights, speed, mean = np.zeros(length), np.zeros(length), np.zeros(length)
    measured: list[Measured] = []
    sigma = noise_multiplier * descent.steps**0.5
    # One step of noise must not undo what many steps found.
    rate = min(descent.learning_rate, units_expected / (100 * max(noise_multiplier, 1e-9)))
    first = 2 * descent.steps // 3  # of the steps that are averaged
    for step in range(descent.steps):
        total = VectorSum(length)
        for start in range(0, len(data.units), UNITS_AT_ONCE):
            units = data.units[start : start + UNITS_AT_ONCE]
            total.add(_gradients(data, units, split(weights)) / descent.max_grad_norm)
        noisy = total.release(sigma, randomness, TEACHER)  # a part of what is returned
        measured += noisy._measured
        speed = descent.momentum * speed + noisy._value * descent.max_grad_norm / units_expected
        weights = weights - rate * speed
        mean += weights * (step >= first) / (descent.steps - first)
        count(step + 1, descent.steps)
    return Noisy.gaussian(split(mean), noise_multiplier, TEACHER, measured)


def _gradients(data: Regressions, units: Sequence[Sequence[int]], weights: Weights) -> np.ndarray:
    """Return the mean gradient (U, Σ K·d) of each unit's records.

    Products are sums along each record's own row. A matrix product would round a record's gradient
    depending on the number of other records.
    """
    records = np.fromiter((record for unit in units for record in unit), np.int64)  # (n,)
    each = np.array([len(unit) for unit in units])  # (U,)
    parts = []
    for x, y, w in zip(data.vectors, data.labels, weights, strict=True):
        rows = x[records]  # (n, d)
        scores = np.stack([(rows * row).sum(1) for row in w], 1)  # (n, K)
        odds = np.exp(scores - scores.max(1, keepdims=True))  # the largest is 1
        errors = odds / odds.sum(1, keepdims=True) - (y[records, None] == np.arange(len(w)))
        parts.append((errors[:, :, None] * rows[:, None]).reshape(len(records), -1))  # (n, K·d)
    together = np.concatenate(parts, 1)
    if len(records) > len(units):  # (n, Σ K·d) → (U, Σ K·d), by owner
        together = np.add.reduceat(together, np.cumsum(each) - each)
    return together / each[:, None]
