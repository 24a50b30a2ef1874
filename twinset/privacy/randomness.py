"""Where the Poisson draws and the noise get their randomness. No seed of the user's reaches it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from twinset.privacy.keystream import KEY_BYTES, KeyStream

NOISE_STREAMS = 4  # they draw side by side; a fixed number, so that tests repeat on any machine


@dataclass(frozen=True)
class Randomness:
    """Independent streams, what to say of them, and whether a guarantee may rest on them.

    Make one with `from_os`; `for_tests` is for tests.
    """

    sampling: KeyStream
    noise: tuple[KeyStream, ...]
    description: str
    is_private: bool

    @classmethod
    def from_os(cls) -> Randomness:
        """Key all streams afresh from the operating system. The keys are not kept."""
        description = "AES-256 in counter mode, each stream under a fresh key of the system's"
        return cls._of(lambda: secrets.token_bytes(KEY_BYTES), description, is_private=True)

    @classmethod
    def for_tests(cls, seed: int) -> Randomness:
        """Make reproducible streams. Whoever knows the seed can subtract the noise: no guarantee.

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
        return cls(sampling, tuple(noise), description, is_private)
