"""Noisy counts of a label's texts: their words, their lengths, and likely labels of texts.

Each is a table by label value and token (or length), saved next to the model's weights. All of it
is post-processing of counts that a run released with noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from twinset.privacy.mechanism.counts import LengthBins, TokenMarginals, on_simplex
from twinset.table.schema import Combination, Schema

LARGEST, SPACING = 2.5, 0.1  # of λ and log-odds, and of the values that are tried
PRIOR = 1.0  # standard deviation of λ: without evidence it stays near 0
ODDS_PRIOR = 0.3  # standard deviation of log-odds: noise alone is to say nothing (tuning.md)
RAREST = 1e-9  # texts that are expected to have a token, at least
FEWEST = 0.5  # texts that are taken to have a token: counts with noise may be below 0
CLEAR = 3.0  # standard deviations of noise: a token with a larger count is above the noise


@dataclass(frozen=True)
class LabelTables:
    """A table for each attribute, with a row for each of its K values."""

    # (K, columns) float32, rounded to float16: a model is the same when it is loaded again.
    tables: Sequence[np.ndarray]
    file: ClassVar[str]
    largest: ClassVar[float] = LARGEST  # number that a run writes

    def __post_init__(self) -> None:
        """Round the numbers to the precision of their file."""
        rounded = [each.astype(np.float16).astype(np.float32) for each in self.tables]
        object.__setattr__(self, "tables", rounded)

    def save(self, folder: Path) -> None:
        """Write the tables next to a model's weights."""
        from safetensors.numpy import save_file

        arrays = {str(i): each.astype(np.float16) for i, each in enumerate(self.tables)}
        save_file(arrays, folder / self.file)

    @classmethod
    def load(cls, folder: Path, classes: Sequence[int], columns: int) -> Self | None:
        """Read a file written by `save`, or return None if there is none.

        Each attribute has a number K of `classes`. The `columns` of each table are the model's
        vocabulary, or the number of lengths. Tables that do not fit this model raise a
        ValueError.
        """
        from safetensors.numpy import load_file

        if not (folder / cls.file).is_file():
            return None
        arrays = load_file(folder / cls.file)
        shapes = {str(i): (values, columns) for i, values in enumerate(classes)}
        is_small = all((np.abs(array) <= cls.largest).all() for array in arrays.values())
        if not is_small or {name: array.shape for name, array in arrays.items()} != shapes:
            raise ValueError(f"{cls.file}: as no run of this model writes it")
        return cls([arrays[str(i)] for i in range(len(shapes))])

    def rows_of(self, schema: Schema, combination: Combination) -> list[np.ndarray]:
        """Return the row of a label combination's value in each table."""
        numbers = schema.value_numbers(combination)
        return [each[number] for each, number in zip(self.tables, numbers, strict=True)]


class TokenTilt(LabelTables):
    """λ: (K, V) for each attribute, added to logits of tokens that a row doesn't have yet."""

    file = "token_tilt.safetensors"


class TextLengths(LabelTables):
    """Target lengths of rows: for each attribute (K, B) shares of texts of each length bin.

    A model that has seen no records otherwise ends its texts as its public corpus did.
    """

    file = "text_lengths.safetensors"
    largest = 1.0

    @classmethod
    def from_counts(cls, released: TokenMarginals) -> TextLengths | None:
        """Estimate lengths from noisy counts. None if lengths were not counted.

        The shares of each value are shrunk towards those of all values (James and Stein 1961). A
        value with few texts, whose counts the noise hides, takes the shares of all.
        """
        if not released.lengths:
            return None
        tables = []
        for counts in released.lengths:  # (K, B)
            pooled, found = on_simplex(counts.sum(0)), []
            for own in counts:
                expected = max(0.0, float(own.sum())) * pooled
                differs = float(np.square(own - expected).sum())
                noise = (counts.shape[1] - 2) * released.deviation**2
                kept = max(0.0, 1 - noise / differs) if differs else 0.0
                found.append(on_simplex(expected + kept * (own - expected)))
            tables.append(np.array(found))
        return cls(tables)

    def shares_of(self, schema: Schema, combination: Combination) -> np.ndarray:
        """Return the share (B,) of each bin, with independent effects of the labels."""
        pooled = np.mean([each.mean(0) for each in self.tables], 0) + 1e-6
        found = pooled * np.prod([own / pooled for own in self.rows_of(schema, combination)], 0)
        return found / found.sum() if found.sum() > 0 else pooled / pooled.sum()

    def draw(
        self, schema: Schema, bins: LengthBins, combination: Combination, rng: np.random.Generator
    ) -> int:
        """Draw the number of tokens of a row of this label combination."""
        shares = self.shares_of(schema, combination)
        return bins.draw(int(rng.choice(len(shares), p=shares)), rng)


class NaiveBayes(LabelTables):
    """Log-odds: (K, V) for each attribute, of a token under a value and among all texts.

    Each says how much more frequent a token is under a label value than if words did not depend on
    labels, given how much is written under each.
    """

    file = "naive_bayes.safetensors"

    @classmethod
    def from_counts(cls, released: TokenMarginals) -> NaiveBayes:
        """Estimate log-odds. Each is the likeliest under the noise and a prior around 0.

        They compare with a value's share of all tokens, not of texts. Otherwise every token would
        speak for the value with longer texts. If no token is clearly above the noise, all are
        0.
        """
        noise, found = released.noise, []
        for counts in released.counts:  # (K, V)
            total = counts.sum(0)
            written = counts[:, total > CLEAR * len(counts) ** 0.5 * noise].sum(1)  # (K,)
            if not written.any():
                found.append(np.zeros_like(counts))
                continue
            shares = written / written.sum()
            expected = np.outer(np.maximum(shares, RAREST), np.maximum(total, FEWEST))
            pairs = zip(counts, expected, strict=True)
            found.append(np.stack([likeliest(*pair, noise, ODDS_PRIOR) for pair in pairs]))
        return cls(found)

    def scores(self, ids: Sequence[int]) -> list[np.ndarray]:
        """Return the sum (K,) over a text's distinct tokens, for each attribute."""
        tokens = np.unique(np.asarray(ids, np.int64))
        return [odds[:, tokens].sum(1) for odds in self.tables]


def likeliest(
    counts: np.ndarray, expected: np.ndarray, noise: np.ndarray, prior: float = PRIOR
) -> np.ndarray:
    """Return λ (V,) of largest posterior density, where counts are about expected · e^λ.

    Args:
        counts: (V,) released.
        expected: (V,) without a tilt.
        noise: (V,) standard deviation of the noise on counts. Infinite: λ is 0.
        prior: standard deviation of λ.

    >>> noise = np.array([20.0, 20.0, 20.0, np.inf])
    >>> counts, expected = np.array([900.0, 900, 5, 0]), np.array([300.0, 900, 0.01, 300])
    >>> likeliest(counts, expected, noise).round(1)
    array([1.1, 0. , 0. , 0. ])
    """
    best, found = np.full(len(counts), np.inf), np.zeros(len(counts))
    tried = np.arange(0, LARGEST + SPACING / 2, SPACING)
    for strength in (*tried, *-tried[1:]):  # of equals the smallest
        mean = expected * np.exp(strength)
        variance = noise**2 + mean
        loss = (counts - mean) ** 2 / variance + np.log(variance) + (strength / prior) ** 2
        better = loss < best
        best[better], found[better] = loss[better], strength
    return found
