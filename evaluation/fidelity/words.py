"""Texts as words and n-grams. A row is taken for a list of words; nothing here knows of tables.

A word is a run of letters and digits, an apostrophe inside it included, in lower case. Scripts that
put no space between words give long ones: rows are still comparable, numbers are not those of
other tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_WORD = re.compile(r"\w+(?:['’]\w+)*")

Row = Sequence[str]  # its words


def words(text: str) -> list[str]:
    """Return the words of a text.

    >>> words("It's fine - a 2nd look!")
    ["it's", 'fine', 'a', '2nd', 'look']
    """
    return _WORD.findall(text.casefold())


def ngram_counts(rows: Sequence[Row], n: int) -> csr_array:
    """Return how often each n-gram stands in each row (rows, n-grams); none leaves its row.

    >>> ngram_counts([["a", "b", "a", "b"], ["b"]], 2).toarray().tolist()
    [[2, 1], [0, 0]]
    """
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer

    found = [list(zip(*(row[shift:] for shift in range(n)), strict=False)) for row in rows]
    if not any(found):
        return csr_array((len(rows), 0))
    return csr_array(CountVectorizer(analyzer=list).fit_transform(found))
