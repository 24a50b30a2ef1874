"""Where noise and Poisson batches get their randomness: key streams of a cipher.

Seen bits do not help to predict further bits, and no seed of the user has any effect on them.
`poisson_batches` draws which records enter each step. It knows only how many records there are.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

NOISE_STREAMS = 4  # they draw side by side (the number is fixed, so tests repeat on any machine)
KEY_BYTES = 32
_ZEROS = memoryview(bytes(1 << 20))


class KeyStream:
    """AES-256 in counter mode (NIST SP 800-38A), twice as fast as NumPy's statistical generators.

    Args:
        key: 32 bytes, for one stream only, because the counter starts at zero.
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def fill(self, out: np.ndarray) -> np.ndarray:
        """Overwrite a contiguous array with the next bits, and return it. One thread at a time.

        >>> KeyStream(bytes(32)).fill(np.empty(4, np.uint8)).tobytes().hex()  # AES-256(0, 0)
        'dc95c078'
        """
        left = memoryview(out.data).cast("B")
        while len(left):
            done = self._encryptor.update_into(_ZEROS[: len(left)], left[: len(_ZEROS)])
            left = left[done:]
        return out


@dataclass(frozen=True)
class Randomness:
    """Independent streams, their description, and whether a guarantee may rest on them.

    Make one with `from_os`. `for_tests` is only for tests.

    Args:
        sampling: for Poisson batches.
        noise: for noise, in parallel.
        refinement: for the further bits of each noise stream's numbers. Their number depends on
            the sums, so they have their own streams, which keeps all other noise the same.
        ahead: for noise of sums on a GPU, which threads draw one step before it is needed. They
            are separate streams, because a stream serves one thread at a time.
        drawn_ahead: numbers that were drawn ahead and not used yet.
        description: of the generator and its keys.
        is_private: whether the keys are unknown to everyone.
    """

    sampling: KeyStream
    noise: tuple[KeyStream, ...]
    refinement: tuple[KeyStream, ...]
    ahead: tuple[KeyStream, ...]
    description: str
    is_private: bool
    drawn_ahead: list[Any] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def from_os(cls) -> Randomness:
        """Give all streams fresh keys from the operating system. The keys are not kept."""
        description = "AES-256 in counter mode, each stream under a fresh key of the system's"
        return cls._of(lambda: secrets.token_bytes(KEY_BYTES), description, is_private=True)

    @classmethod
    def for_tests(cls, seed: int) -> Randomness:
        """Make reproducible streams. The seed reveals the noise, so there is no guarantee.

        >>> Randomness.for_tests(1).is_private
        False
        """
        keys = np.random.default_rng(seed)
        return cls._of(
            lambda: keys.bytes(KEY_BYTES), "a fixed seed, for tests only", is_private=False
        )

    @classmethod
    def _of(cls, key: Callable[[], bytes], description: str, is_private: bool) -> Randomness:
        sampling, *noise = (KeyStream(key()) for _ in range(1 + NOISE_STREAMS))
        refinement = tuple(KeyStream(key()) for _ in noise)
        ahead = tuple(KeyStream(key()) for _ in noise)
        return cls(sampling, tuple(noise), refinement, ahead, description, is_private)


AT_ONCE = 1 << 16  # records: half a megabyte, which stays in the processor's cache


def poisson_batches(
    n: int, sample_rate: float, steps: int, randomness: Randomness
) -> Iterator[np.ndarray]:
    """Draw `steps` batches of record numbers, each record in each independently with probability q.

    Guarantee: this is the sampler that `SubsampledGaussian` assumes, with q rounded down to a
    multiple of 2⁻⁶⁴. Empty batches are yielded, too: their steps must release noise all the same.

    Every record has its own 64 bits, compared in NumPy, with memory for `AT_ONCE` of them. A
    million take milliseconds, far less than the step that follows. Drawing a size and a subset of
    that size would read fewer bits, but would need a sampler of the binomial distribution that is
    exact to the last bit.

    Args:
        n: number of records.
        sample_rate: q.
        steps: number of batches.
        randomness: its sampling stream is used.

    Returns:
        An iterator of arrays (k,) of distinct record numbers from 0 to n − 1, in rising order. k
        may be 0.

    >>> [len(b) for b in poisson_batches(4, 1.0, 2, Randomness.for_tests(0))]
    [4, 4]
    """
    if n < 1 or steps < 1 or not 2.0**-64 <= sample_rate <= 1:
        raise ValueError("need at least one record and one step, and a sample rate in (0, 1]")
    last = np.uint64(int(sample_rate * 2**64) - 1)
    words = np.empty(min(n, AT_ONCE), np.uint64)

    return (
        np.concatenate(
            [
                start + np.flatnonzero(randomness.sampling.fill(words[: n - start]) <= last)
                for start in range(0, n, AT_ONCE)
            ]
        )
        for _ in range(steps)
    )
