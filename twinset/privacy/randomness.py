"""Where the Poisson draws and the noise get their randomness. No seed of the user's reaches it.

The generators are seeded with 256 bits from the operating system each, but are not themselves
cryptographic: somebody who saw very many exact outputs could in principle predict others.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

_SEED_BITS = 256
NOISE_STREAMS = 4  # they draw side by side; a fixed number, so that tests repeat on any machine


def _generator(seed: np.random.SeedSequence) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64DXSM(seed))


@dataclass(frozen=True)
class Randomness:
    """Independent streams, what to say of them, and whether a guarantee may rest on them.

    Make one with `from_os`; `for_tests` is for tests.
    """

    sampling: np.random.Generator
    noise: tuple[np.random.Generator, ...]
    description: str
    is_private: bool

    @classmethod
    def from_os(cls) -> Randomness:
        """Seed all streams afresh from the operating system. The seeds are not kept."""
        sampling, *noise = (
            _generator(np.random.SeedSequence(secrets.randbits(_SEED_BITS)))
            for _ in range(1 + NOISE_STREAMS)
        )
        description = (
            f"NumPy PCG64DXSM, each stream seeded with {_SEED_BITS} fresh bits from the operating "
            "system; not a cryptographic generator"
        )
        return cls(sampling, tuple(noise), description, is_private=True)

    @classmethod
    def for_tests(cls, seed: int) -> Randomness:
        """Make reproducible streams. Whoever knows the seed can subtract the noise: no guarantee.

        >>> Randomness.for_tests(1).is_private
        False
        """
        seeds = np.random.SeedSequence(seed).spawn(1 + NOISE_STREAMS)
        sampling, *noise = map(_generator, seeds)
        return cls(sampling, tuple(noise), "a fixed seed, for tests only", is_private=False)
