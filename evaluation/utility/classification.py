"""How good predicted labels are: accuracy, macro-F1 and every label's own F1, with intervals.

Knows no text and no classifier: labels go in, scores come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evaluation.findings import Score, proportion

RESAMPLES = 1000


@dataclass(frozen=True)
class Predictions:
    """What classifiers said of the same rows.

    Args:
        labels: (n,) the true labels.
        predicted: (S, n) by each of S classifiers that differ in their seed alone.
    """

    labels: Sequence[str]
    predicted: Sequence[Sequence[str]]

    @property
    def classes(self) -> list[str]:
        """The true labels that occur, and those predicted."""
        return sorted({*self.labels, *(label for row in self.predicted for label in row)})

    @cached_property
    def resampled(self) -> np.ndarray:
        """(1 + R, k, k), as `confusions`: drawn once for all scores."""
        return self.confusions()

    def confusions(self, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
        """Return (1 + R, k, k) counts of (true, predicted): of all rows, and of R resamples.

        A resample draws rows *and* a classifier anew, so that its spread speaks of another
        held-out table and another seed; not of another twin.
        """
        from scipy.sparse import csr_array

        names = self.classes
        place, n, k = {c: i for i, c in enumerate(names)}, len(self.labels), len(names)
        true = np.array([place[label] for label in self.labels])
        said = np.array([[place[label] for label in row] for row in self.predicted])
        rng = np.random.default_rng(seed)
        drawn_rows = rng.multinomial(n, np.full(n, 1 / n), size=resamples)
        drawn_seeds = rng.integers(len(said), size=resamples)
        counts = np.zeros((1 + resamples, k * k))
        for number, row in enumerate(said):
            cells = csr_array((np.ones(n), (np.arange(n), true * k + row)), shape=(n, k * k))
            counts[0] += cells.sum(0)
            mine = np.flatnonzero(drawn_seeds == number)
            counts[1 + mine] = (cells.T @ drawn_rows[mine].T).T
        return counts.reshape(-1, k, k)


def classification_scores(predictions: Predictions) -> list[Score]:
    """Return accuracy and macro-F1 with 95 % intervals (see `_score`).

    Macro-F1 is the mean of the F1 of all labels that the true rows have.

    >>> found = Predictions(["a", "a", "b", "b"], [["a", "a", "b", "a"]])
    >>> [round(score.value, 3) for score in classification_scores(found)]
    [0.75, 0.733]
    """
    counts = predictions.resampled
    n = len(predictions.labels)
    hits = counts.trace(axis1=1, axis2=2) / counts.sum((1, 2))
    occurring = counts[0].sum(1) > 0
    macro = _f1(counts)[:, occurring].mean(1)
    return [_score("accuracy", hits, n), _score("macro-F1", macro, n)]


def scores_by_label(predictions: Predictions) -> dict[str, Score]:
    """Return the F1 of every true label; n is its number of rows."""
    counts = predictions.resampled
    f1, rows = _f1(counts), counts[0].sum(1) / len(predictions.predicted)
    return {
        label: _score("F1", f1[:, i], round(float(rows[i])))
        for i, label in enumerate(predictions.classes)
        if rows[i]
    }


def _f1(counts: np.ndarray) -> np.ndarray:
    """(R, k, k) → (R, k); 0 where a label is neither true nor predicted."""
    hits = np.diagonal(counts, axis1=1, axis2=2)
    either = counts.sum(1) + counts.sum(2)
    return np.divide(2 * hits, either, out=np.zeros_like(hits), where=either > 0)


def _score(name: str, values: np.ndarray, n: int) -> Score:
    """Return the first value; its interval holds the bootstrap's and Wilson's.

    Where all rows are right, resamples know no error, and the bootstrap's has no width.
    """
    low, high = np.quantile(values[1:], [0.025, 0.975])
    middle = float(values[0])
    wilson = proportion(name, round(middle * n), n)
    low, high = min(middle, float(low), wilson.low), max(middle, float(high), wilson.high)
    return Score(name, middle, low, high, "maximise", 0.0, 1.0, n)
