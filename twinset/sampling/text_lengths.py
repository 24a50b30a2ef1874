"""How long rows are to be: as private texts of their labels are, by noisy counts of lengths.

A model that no record was shown to ends its texts where those ended that it read. All of it is
post-processing of counts that were released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twinset.privacy.mechanism.counts import LengthBins, TokenMarginals, on_simplex
from twinset.sampling.label_tables import as_kept, load_tables, save_tables
from twinset.table.schema import Combination, Schema

LENGTHS = "text_lengths.safetensors"


@dataclass(frozen=True)
class TextLengths:
    """Shares of texts of each length.

    Args:
        bins: of lengths, B.
        shares: for each attribute (K, B) float32, of the texts of each value.
    """

    bins: LengthBins
    shares: Sequence[np.ndarray]

    @classmethod
    def of(cls, bins: LengthBins, released: TokenMarginals) -> TextLengths | None:
        """Return what noisy counts say of lengths; None: lengths were not counted."""
        if not released.lengths:
            return None
        shares = [_denoised(each, released.deviation) for each in released.lengths]
        return cls(bins, as_kept(shares))

    def save(self, folder: Path) -> None:
        """Write it beside a model's weights."""
        save_tables(folder / LENGTHS, self.shares)

    @classmethod
    def load(cls, folder: Path, classes: Sequence[int], bins: LengthBins) -> TextLengths | None:
        """Read what `save` wrote; None where there is none. See `load_tables`."""
        found = load_tables(folder / LENGTHS, classes, len(bins), 1.0)
        return None if found is None else cls(bins, found)

    def shares_of(self, schema: Schema, combination: Combination) -> np.ndarray:
        """Return the share (B,) of each bin: what labels say of lengths is independent."""
        pairs = zip(self.shares, schema.value_numbers(combination), strict=True)
        pooled = np.mean([each.mean(0) for each in self.shares], 0) + 1e-6
        found = pooled * np.prod([each[number] / pooled for each, number in pairs], 0)
        return found / found.sum() if found.sum() > 0 else pooled / pooled.sum()

    def mean(self, schema: Schema, shares: Mapping[Combination, float]) -> float:
        """Return the mean number of tokens of rows with such shares of label combinations."""
        pairs = (
            (self.shares_of(schema, c) @ self.bins.means, share) for c, share in shares.items()
        )
        return float(sum(mean * share for mean, share in pairs))

    def chance_in_whole(
        self, schema: Schema, combination: Combination, chance: np.ndarray, length: float
    ) -> np.ndarray:
        """Return the chances (V,) of tokens to be in a text, by those in an opening.

        Args:
            schema: of the table.
            combination: of the text's labels.
            chance: (V,) of tokens to be among the opening's, which are alike all through the text.
            length: tokens of the opening.
        """
        absent = np.log1p(-chance.clip(0, 1 - 1e-6)) / max(1.0, length)
        pairs = zip(self.shares_of(schema, combination), self.bins.means, strict=True)
        whole: np.ndarray = sum(-share * np.expm1(mean * absent) for share, mean in pairs if share)
        return whole

    def draw(self, schema: Schema, combination: Combination, rng: np.random.Generator) -> int:
        """Return how many tokens a row of this label combination is to have; see `LengthBins`."""
        shares = self.shares_of(schema, combination)
        return self.bins.draw(int(rng.choice(len(shares), p=shares)), rng)


def _denoised(counts: np.ndarray, deviation: float) -> np.ndarray:
    """Return shares (K, B): those of each value are drawn to all values' by James and Stein 1961.

    So that of a value with few texts, whose counts the noise hides, all values' shares are taken.
    """
    pooled, found = on_simplex(counts.sum(0)), []
    for own in counts:
        expected = max(0.0, float(own.sum())) * pooled
        differs = float(np.square(own - expected).sum())
        noise = (counts.shape[1] - 2) * deviation**2
        kept = max(0.0, 1 - noise / differs) if differs else 0.0
        found.append(on_simplex(expected + kept * (own - expected)))
    return np.array(found)
