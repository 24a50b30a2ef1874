"""An n-gram model with interpolated, modified Kneser-Ney smoothing: what a neural one must beat.

Source: Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling",
section 3. Built for tens of millions of tokens: an n-gram is a 64-bit code (two share one with
probability 2⁻⁶⁴ a pair), a table is sorted arrays, all tokens of a text are scored at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twinset.table.ngrams import mixed

ORDER = 5
_STEP = np.uint64(0x9E3779B97F4A7C15)


class KneserNey:
    """A model of a row of tokens.

    Args:
        tokens: (N,) ids; documents have an end-of-text token between them.
        vocabulary: V.
        order: the longest n-gram.
    """

    def __init__(self, tokens: np.ndarray, vocabulary: int, order: int = ORDER) -> None:
        self._vocabulary = vocabulary
        self._orders: list[_Order] = []
        longer: np.ndarray | None = None  # where each n-gram of one token more begins
        for n in range(order, 0, -1):
            grams, contexts = _codes(tokens, n), _codes(tokens, n - 1)
            kinds, first, counts = np.unique(grams, return_index=True, return_counts=True)
            if longer is not None:  # not how often it occurs: behind how many different tokens
                counts = np.bincount(
                    np.searchsorted(kinds, grams[longer + 1]), minlength=len(kinds)
                )
            self._orders.insert(0, _Order.of(kinds, counts, contexts[first]))
            longer = first

    def nats(self, tokens: np.ndarray) -> np.ndarray:
        """Return what each token costs behind those before it: (N,)."""
        found = np.full(len(tokens), 1.0 / self._vocabulary)
        for n, order in enumerate(self._orders, start=1):
            if len(tokens) >= n:
                grams, contexts = _codes(tokens, n), _codes(tokens, n - 1)[: len(tokens) - n + 1]
                found[n - 1 :] = order.interpolated(grams, contexts, found[n - 1 :])
        return -np.log(found)


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length.

    Args:
        kinds: (G,) sorted codes of n-grams.
        discounted: (G,) their counts, less the discount of such a count.
        contexts: (H,) sorted codes of what precedes the last token.
        totals: (H,) sum of the counts behind each.
        freed: (H,) sum of the discounts behind each.
    """

    kinds: np.ndarray
    discounted: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    freed: np.ndarray

    @classmethod
    def of(cls, kinds: np.ndarray, counts: np.ndarray, behind: np.ndarray) -> _Order:
        """Count what stands behind each context; n-grams that follow nothing count once."""
        counts = np.maximum(counts, 1)
        taken = _discounts(counts)[np.minimum(counts, 3)]
        contexts, place = np.unique(behind, return_inverse=True)
        totals, freed = (np.bincount(place, weights=weights) for weights in (counts, taken))
        return cls(kinds, counts - taken, contexts, totals, freed)

    def interpolated(
        self, grams: np.ndarray, contexts: np.ndarray, lower: np.ndarray
    ) -> np.ndarray:
        """Return probabilities: (M,), given those of the next shorter n-grams."""
        gram, is_known = _places(self.kinds, grams)
        context, was_seen = _places(self.contexts, contexts)
        own = np.where(is_known, self.discounted[gram], 0.0)
        mixture: np.ndarray = (own + self.freed[context] * lower) / self.totals[context]
        return np.where(was_seen, mixture, lower)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Return D of a count of 0, 1, 2, and 3 or more (Chen and Goodman's equation 26)."""
    n1, n2, n3, n4 = (max(1, int((counts == c).sum())) for c in (1, 2, 3, 4))
    share = n1 / (n1 + 2 * n2)
    found = [0.0, 1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3]
    return np.clip(found, 0.0, [0.0, 1.0, 2.0, 3.0])


def _codes(tokens: np.ndarray, n: int) -> np.ndarray:
    """Return the code of the n-gram that begins at each place: (N - n + 1,) uint64."""
    ids = mixed(tokens.astype(np.uint64))
    found = np.zeros(len(ids) - max(0, n - 1), dtype=np.uint64)
    for place in range(n):
        found = mixed(found * _STEP + ids[place : place + len(found)])
    return found


def _places(known: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where codes stand among sorted ones, and whether they do."""
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return places, known[places] == wanted
