"""Membership inference on the released rows alone: what was trained on has a nearer twin row.

Whoever is given only `share/` can do this. A row's score is its similarity to the twin row nearest
to it: by the word triples they share, and by the cosine of sentence embeddings. Memory stays within
the tables and one block of rows, whatever their sizes. Knows nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from evaluation.leakage.roc import Attack
from twinset.progress import Progress, Silent

SEES = "released rows"
WORDS = 3  # of an n-gram
CELLS_AT_ONCE = 2**23  # similarities in one block: 32 MB, in a sparse matrix 100 MB at worst
_BUCKETS = 2**22  # of the hash; two n-grams of 10 million words seldom share one within a row

Encode = Callable[[Sequence[str]], np.ndarray]  # (N, d) unit vectors, as of SentenceEncoder.encode


def text_attacks(
    twin: Sequence[str],
    members: Sequence[str],
    non_members: Sequence[str],
    encode: Encode | None = None,
    progress: Progress | None = None,
) -> list[Attack]:
    """Score members and non-members by both attacks.

    Args:
        twin: texts of the twin.
        members: texts it was made from.
        non_members: texts of the same kind that it was not made from.
        encode: of sentences; None leaves embeddings out.
        progress: is notified of how many rows are compared.
    """
    progress = progress or Silent()
    rows, released = [*members, *non_members], list(dict.fromkeys(twin))
    found = {
        f"nearest twin row by {WORDS}-grams": nearest_by_ngrams(
            rows, released, partial(progress.count, "rows compared by words")
        )
    }
    if encode is not None:
        found["nearest twin row by embedding"] = nearest_by_embedding(
            rows, released, encode, partial(progress.count, "rows compared by meaning")
        )
    scored = {name: np.split(values, [len(members)]) for name, values in found.items()}
    return [Attack(name, SEES, of, not_of) for name, (of, not_of) in scored.items()]


def nearest_by_ngrams(
    rows: Sequence[str],
    twin: Sequence[str],
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> np.ndarray:
    """Return each row's largest cosine to a twin row: (N,) in [0, 1].

    A text is the set of its runs of three words, in lower case; a shorter one is one run.

    >>> nearest_by_ngrams(["The pan broke at once.", "Fine."], ["the pan broke", "Dull!"]).round(2)
    array([0.58, 0.  ])
    """
    vectoriser = _vectoriser()
    known = vectoriser.transform(twin).T.tocsr()  # (buckets, M)
    found = np.zeros(len(rows))
    for block in _blocks(len(rows), len(twin), on_progress):
        found[block] = (vectoriser.transform(rows[block]) @ known).max(axis=1).toarray()[:, 0]
    return found


def nearest_by_embedding(
    rows: Sequence[str],
    twin: Sequence[str],
    encode: Encode,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> np.ndarray:
    """Return each row's largest cosine to a twin row: (N,) in [-1, 1]."""
    known = encode(twin)
    found = np.zeros(len(rows))
    for block in _blocks(len(rows), len(twin), on_progress):
        found[block] = (encode(rows[block]) @ known.T).max(axis=1)
    return found


def _blocks(rows: int, twin: int, on_progress: Callable[[int, int], object]) -> Iterator[slice]:
    size = max(1, CELLS_AT_ONCE // twin)
    for start in range(0, rows, size):
        end = min(start + size, rows)
        yield slice(start, end)
        on_progress(end, rows)


def _vectoriser() -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(
        analyzer=_ngrams,
        n_features=_BUCKETS,
        binary=True,
        alternate_sign=False,
        norm="l2",
        dtype=np.float32,
    )


def _ngrams(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    last = max(1, len(words) - WORDS + 1) if words else 0
    return [" ".join(words[start : start + WORDS]) for start in range(last)]
