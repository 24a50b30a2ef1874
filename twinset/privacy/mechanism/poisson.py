"""Poisson batches: which records enter each step. Knows only how many records there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from twinset.privacy.mechanism.randomness import Randomness

AT_ONCE = 1 << 16  # records: half a megabyte, which stays in the processor's cache


def poisson_batches(
    n: int, sample_rate: float, steps: int, randomness: Randomness
) -> Iterator[np.ndarray]:
    """Draw `steps` batches of record numbers, each record in each independently with probability q.

    Guarantee: this is the sampler that `SubsampledGaussian` supposes, with q rounded down to a
    multiple of 2⁻⁶⁴. A step with an empty batch must release noise all the same; for that, empty
    batches are yielded.

    Every record has its own 64 bits, compared in NumPy: no Python loop over records, and memory for
    `AT_ONCE` of them. A million take milliseconds, far less than the step that follows. A drawn
    size with a subset of it would read fewer bits, but its exactness would rest on a sampler of the
    binomial distribution that is exact to the last bit.

    Args:
        n: number of records.
        sample_rate: q.
        steps: number of batches.
        randomness: its sampling stream is used.

    Returns:
        An iterator of arrays (k,) of distinct record numbers from 0 to n − 1, in rising order; k
        may be 0.

    >>> [len(b) for b in poisson_batches(4, 1.0, 2, Randomness.for_tests(0))]
    [4, 4]
    """
    if n < 1 or steps < 1 or not 2.0**-64 <= sample_rate <= 1:
        raise ValueError("need at least one record and one step, and a sample rate in (0, 1]")
    last = np.uint64(int(sample_rate * 2**64) - 1)
    words = np.empty(min(n, AT_ONCE), np.uint64)

    def batch() -> np.ndarray:
        drawn = [
            start + np.flatnonzero(randomness.sampling.fill(words[: n - start]) <= last)
            for start in range(0, n, AT_ONCE)
        ]
        return np.concatenate(drawn)

    return (batch() for _ in range(steps))
