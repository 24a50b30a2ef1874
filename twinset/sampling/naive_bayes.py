"""What the tokens of a text say of its labels, by the noisy counts that a run released.

Naive Bayes: each token adds what it is more or less frequent under a label value than it would be
if labels told nothing but how much is written under each. All of it is post-processing of the
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twinset.privacy.mechanism.counts import TokenMarginals
from twinset.sampling.label_tables import as_kept, load_tables, save_tables
from twinset.sampling.token_tilt import LARGEST, RAREST, likeliest

NAIVE_BAYES = "naive_bayes.safetensors"
PRIOR = 0.3  # standard deviation of log-odds: noise alone is to say nothing (docs/tuning.md)
FEWEST = 0.5  # texts that are taken to have a token: counts with noise may be below 0
CLEAR = 3.0  # standard deviations of noise: a token counted in more texts stands clear of it


@dataclass(frozen=True)
class NaiveBayes:
    """Log-odds of each attribute (K, V) float32: of a token under a value, and among all texts."""

    log_odds: Sequence[np.ndarray]

    @classmethod
    def of(cls, released: TokenMarginals) -> NaiveBayes:
        """Find log-odds in noisy counts; see `_log_odds`."""
        noise = released.noise
        return cls(as_kept([_log_odds(counts, noise) for counts in released.counts]))

    def scores(self, ids: Sequence[int]) -> list[np.ndarray]:
        """Return the sum (K,) over a text's distinct tokens, for each attribute."""
        tokens = np.unique(np.asarray(ids, np.int64))
        return [odds[:, tokens].sum(1) for odds in self.log_odds]

    def save(self, folder: Path) -> None:
        """Write it beside a model's weights."""
        save_tables(folder / NAIVE_BAYES, self.log_odds)

    @classmethod
    def load(cls, folder: Path, classes: Sequence[int], vocabulary: int) -> NaiveBayes | None:
        """Read what `save` wrote; None where there is none. See `load_tables`."""
        found = load_tables(folder / NAIVE_BAYES, classes, vocabulary, LARGEST)
        return None if found is None else cls(found)


def _log_odds(counts: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return log-odds (K, V), each the likeliest under the noise and a prior that draws it to 0.

    They are against a value's share of all tokens, not of texts: else every token would speak for
    the value whose texts are longer. Where no token stands clear of the noise, all are 0.

    Args:
        counts: (K, V) released.
        noise: (V,) standard deviation of what was added to counts; inf: not counted.
    """
    total = counts.sum(0)
    written = counts[:, total > CLEAR * len(counts) ** 0.5 * noise].sum(1)
    if not written.any():
        return np.zeros_like(counts)
    shares = written / written.sum()
    expected = np.outer(np.maximum(shares, RAREST), np.maximum(total, FEWEST))
    pairs = zip(counts, expected, strict=True)
    return np.stack([likeliest(*pair, noise, PRIOR) for pair in pairs])
