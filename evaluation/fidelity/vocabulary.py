"""Which words a table uses, and how often, beside the private table's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evaluation.fidelity.jackknife import jackknife, leaving_out
from evaluation.fidelity.words import Row, ngram_counts
from evaluation.findings import Goal, Score

Statistic = Callable[[np.ndarray, np.ndarray], float]  # of the counts of words in two tables


def known_words(ours: np.ndarray, real: np.ndarray) -> float:
    """Return the share of our distinct words that are real ones too."""
    return float((real[ours > 0] > 0).mean())


def covered_words(ours: np.ndarray, real: np.ndarray) -> float:
    """Return the share of the words of real text that are ours too, each as often as it occurs."""
    return float(real[ours > 0].sum() / real.sum())


def word_divergence(ours: np.ndarray, real: np.ndarray) -> float:
    """Return the Jensen–Shannon divergence of the two distributions, in bits: 0 to 1.

    >>> word_divergence(np.array([3, 0]), np.array([0, 9])), word_divergence(*[np.ones(2)] * 2)
    (1.0, 0.0)
    """
    from scipy.spatial.distance import jensenshannon

    return float(jensenshannon(ours, real, base=2) ** 2)  # scipy's is the root


_MEASURES: dict[str, tuple[Statistic, Goal]] = {
    "words known to train": (known_words, "match"),
    "words of train covered": (covered_words, "maximise"),
    "Jensen–Shannon divergence of words": (word_divergence, "minimise"),
}


def vocabulary_scores(rows: Sequence[Row], train: Sequence[Row]) -> list[Score]:
    """Compare the words of as many rows as the private ones; none where a table has no word.

    All three depend on the number of rows: compare scores of the same number only. Rows are in
    random order. The intervals are the jackknife's, over rows of both tables.
    """
    both = ngram_counts([*rows, *train], 1)
    ours, real = both[: len(rows)], both[len(rows) :]
    whole = ours.sum(axis=0), real.sum(axis=0)
    if not (whole[0].any() and whole[1].any()):
        return []
    kept = zip(leaving_out(len(rows)), leaving_out(len(train)), strict=False)
    parts = [(ours[a].sum(axis=0), real[b].sum(axis=0)) for a, b in kept]
    parts = [part for part in parts if part[0].any() and part[1].any()]
    return [
        jackknife(
            name, statistic(*whole), [statistic(*p) for p in parts], goal, 0.0, 1.0, len(rows)
        )
        for name, (statistic, goal) in _MEASURES.items()
    ]
