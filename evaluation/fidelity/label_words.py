"""Do words speak for a label as they do in real rows: their log-odds, and how these agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluation.fidelity.words import words

# That a word is in, on either side: of rarer ones log-odds are chance. Of two halves of 3,128 real
# reviews the correlation is 0.45 with 5 texts, 0.66 with 20.
LEAST_TEXTS = 20
_HALF = 0.5  # text added to each count, so that none is zero

Labelled = tuple[Sequence[str], Sequence[str]]  # texts, and the label of each


def log_odds_correlation(ours: Labelled, real: Labelled) -> float | None:
    """Return Pearson's correlation of the words' log-odds between labels; None: of too few words.

    Of each label and each word that both tables share, the log-odds are those of the word in a text
    of this label, less those in a text of any other. Of two labels the second says nothing new. A
    second sample of real rows does not reach 1 either, since these are estimates: compare with one.

    Args:
        ours: a twin.
        real: real rows.

    >>> real = ["bad film", "dull film", "bad plot", "good film", "fine film", "good plot"] * 30
    >>> labels = (["-"] * 3 + ["+"] * 3) * 30
    >>> round(log_odds_correlation((real, labels), (real, labels)), 3)
    1.0
    >>> round(log_odds_correlation((real, labels[::-1]), (real, labels)), 3)
    -1.0
    """
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(analyzer=lambda text: set(words(text)))
    counted = counter.fit_transform([*ours[0], *real[0]]).tocsr()
    parts = counted[: len(ours[0])], counted[len(ours[0]) :]
    often = [np.asarray(part.sum(0)).ravel() >= LEAST_TEXTS for part in parts]
    shared = np.flatnonzero(often[0] & often[1])
    labels = sorted({*ours[1]} & {*real[1]})
    labels = labels[:1] if len(labels) == 2 else labels
    sides = [
        np.concatenate(
            [_log_odds(part[:, shared], np.array(of), label) for label in labels or [""]]
        )
        for part, of in zip(parts, (ours[1], real[1]), strict=True)
    ]
    if len(shared) < 2 or any(side.std() == 0 for side in sides):
        return None
    return float(np.corrcoef(sides[0], sides[1])[0, 1])


def _log_odds(presence: np.ndarray, labels: np.ndarray, label: str) -> np.ndarray:
    """Return log-odds (V,) of words in texts (N, V) of a label, less those in all others."""
    odds = []
    for rows in (labels == label, labels != label):
        found = np.asarray(presence[np.flatnonzero(rows)].sum(0)).ravel()
        odds.append(np.log((found + _HALF) / (rows.sum() - found + _HALF)))
    difference: np.ndarray = odds[0] - odds[1]
    return difference
