"""How many texts of each label value have each token: noisy counts of all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twinset.privacy.accounting.events import TOKEN_MARGINALS, GaussianRelease
from twinset.privacy.mechanism.randomness import Randomness
from twinset.privacy.mechanism.vector_sum import VectorSum

MOST_TOKENS = 64  # distinct ones that a text is counted with in full; of more each counts for less


@dataclass(frozen=True)
class TokenMarginals:
    """Released counts.

    Args:
        counts: for each attribute (K, V) texts with a label value and a token, with noise.
        noise: its standard deviation.
        units: how many were counted, taken as public.
    """

    counts: Sequence[np.ndarray]
    noise: float
    units: int

    def save(self, path: Path) -> None:
        """Write what was released, exactly."""
        arrays = {str(number): counts for number, counts in enumerate(self.counts)}
        np.savez(path, noise=self.noise, units=self.units, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> TokenMarginals:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as kept:
            counts = [kept[str(number)] for number in range(len(kept.files) - 2)]
            return cls(counts, float(kept["noise"]), int(kept["units"]))


Text = tuple[Sequence[int], Sequence[int]]  # token ids, and the number of each attribute's value


def presence(ids: Sequence[int], end: int) -> tuple[np.ndarray, float]:
    """Return the distinct tokens (k,) of a text but for its end, and what each of them counts.

    >>> presence([5, 3, 5, 0], end=0)
    (array([3, 5]), 1.0)
    """
    found = np.setdiff1d(np.asarray(ids, np.int64), [end])
    return found, min(1.0, (MOST_TOKENS / max(1, len(found))) ** 0.5)


def release_token_marginals(
    units: Iterable[Sequence[Text]],
    vocabulary: int,
    values: Sequence[int],
    end: int,
    noise_multiplier: float,
    randomness: Randomness,
) -> tuple[TokenMarginals, GaussianRelease | None]:
    """Count, for each attribute, the texts (K, V) that have a label value and a token, with noise.

    Guarantee: one Gaussian release of multiplier σ (`VectorSum`), for adding or removing one unit.
    A unit adds the mean of its texts' vectors. Sets of tokens and label values are public.

    Args:
        units: the texts of each unit, at least one.
        vocabulary: V.
        values: number of label values K of each attribute.
        end: token that every text may end with; it is not counted.
        noise_multiplier: σ; 0: no noise, no event and no guarantee.
        randomness: its noise streams are used.
    """
    offsets = np.cumsum([0, *(vocabulary * count for count in values)])
    one = (MOST_TOKENS * len(values)) ** -0.5  # what a token of a text adds to the vector
    event = GaussianRelease(noise_multiplier, TOKEN_MARGINALS) if noise_multiplier else None
    total, number = VectorSum(int(offsets[-1])), 0
    for texts in units:
        number += 1
        parts = [part for text in texts for part in _places(text, vocabulary, offsets, end)]
        places, where = np.unique(np.concatenate([p for p, _ in parts]), return_inverse=True)
        weights = np.concatenate([np.full(len(p), weight) for p, weight in parts])
        total.add_at(places, np.bincount(where, weights, len(places)) * (one / len(texts)))
    noisy = total.release(noise_multiplier, randomness) / one
    counts = [part.reshape(-1, vocabulary) for part in np.split(noisy, offsets[1:-1])]
    return TokenMarginals(counts, noise_multiplier / one, number), event


def _places(
    text: Text, vocabulary: int, offsets: np.ndarray, end: int
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield for each attribute the places of a text's tokens, and what each of them counts."""
    tokens, weight = presence(text[0], end)
    for offset, value in zip(offsets, text[1], strict=False):
        yield tokens + offset + value * vocabulary, weight
