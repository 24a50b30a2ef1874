"""How much a table repeats itself: distinct n-grams, rows that occur before.

Sources: distinct-n, Li et al. 2016, "A Diversity-Promoting Objective Function for Neural
Conversation Models"; n-gram diversity, Padmakumar and He 2024, "Does Writing with Language Models
Reduce Content Diversity?": the sum of distinct-1 to distinct-4. Both fall as a table grows. So they
are taken as expected among a fixed number of n-grams drawn from the table (rarefaction, Hurlbert
1971), which any two tables can share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_array

from evaluation.fidelity.jackknife import jackknife, leaving_out
from evaluation.fidelity.words import Row, ngram_counts
from evaluation.findings import Score, proportion
from evaluation.private_table import normalised

LONGEST = 4
DRAWN = 10_000  # n-grams that the distinct ones are counted among


class Diversity:
    """The n-grams of a table, ready to be counted.

    Args:
        rows: in random order.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = len(rows)
        self._grams = [ngram_counts(rows, n) for n in range(1, LONGEST + 1)]

    def _counts(self, grams: csr_array) -> Iterator[np.ndarray]:
        """Yield the counts on all rows, and leaving out each block of rows."""
        yield grams.sum(axis=0)
        yield from (grams[kept].sum(axis=0) for kept in leaving_out(self._rows))

    def drawn(self) -> tuple[int, ...]:
        """Return, for n = 1 … 4, how many n-grams can be drawn, whatever block is left out."""
        return tuple(min([DRAWN, *(int(c.sum()) for c in self._counts(g))]) for g in self._grams)

    def scores(self, drawn: Sequence[int]) -> list[Score]:
        """Return distinct-1 to distinct-3 and n-gram diversity, those that can be taken.

        The intervals are the jackknife's, over rows.

        Args:
            drawn: for n = 1 … 4, how many n-grams the distinct ones are counted among; what the
                table does not have is not drawn.
        """
        possible = [min(pair) for pair in zip(drawn, self.drawn(), strict=True)]
        values = [
            [distinct(count, number) for count in self._counts(grams)]
            for grams, number in zip(self._grams, possible, strict=True)
            if number
        ]
        found = [self._score(f"distinct-{n}", v, 1.0) for n, v in enumerate(values[:3], start=1)]
        if len(values) == LONGEST:
            sums = np.sum(values, axis=0).tolist()
            found.append(self._score("n-gram diversity", sums, float(LONGEST)))
        return found

    def _score(self, name: str, values: list[float], maximum: float) -> Score:
        return jackknife(name, values[0], values[1:], "match", 0.0, maximum, self._rows)


def distinct(counts: np.ndarray, drawn: int) -> float:
    """Return the expected share of distinct things among so many drawn without replacement.

    >>> distinct(np.array([3, 1]), 4), distinct(np.array([3, 1]), 2)
    (0.5, 0.75)
    """
    from scipy.special import gammaln

    often, types = np.unique(counts[counts > 0], return_counts=True)
    rest = counts.sum() - often  # of all but one type: it is missed where all come from these
    possible = rest >= drawn
    total = counts.sum()
    missed = np.zeros(len(often))
    missed[possible] = np.exp(
        gammaln(rest[possible] + 1)
        - gammaln(rest[possible] - drawn + 1)
        - gammaln(total + 1)
        + gammaln(total - drawn + 1)
    )
    return float(types @ (1 - missed) / drawn)


def duplicate_rate(texts: Sequence[str]) -> Score:
    """Return the share of rows that repeat an earlier one, in lower-cased letters and digits.

    The interval is Wilson's. The more rows, the more repeat one.
    """
    repeated = len(texts) - len({normalised(text) for text in texts})
    return proportion("duplicate rate", repeated, len(texts), "match")
