"""Keeps texts that will be private, or will be tested on, out of public text.

A document is contaminated if it shares a run of 13 words with such a text (the length that Brown et
al. 2020, "Language Models are Few-Shot Learners", appendix C, take), or holds a shorter one, of 6
words or more, whole. It guarantees no privacy: what is left out depends on the guarded files, so
where these are private, that choice is too, and no ε covers it. Only their names are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from twinset.errors import InputError
from twinset.pretraining.corpus import is_text, paragraphs
from twinset.table.ngrams import Vocabulary, Words, contained
from twinset.table.read import format_of, read_frame

RUN = 13  # words
SHORTEST = 6  # words; what is shorter anyone may write


def clean(documents: Sequence[str], guarded: Sequence[str]) -> np.ndarray:
    """Return which documents share nothing with guarded texts: (D,) bool."""
    vocabulary = Vocabulary()
    ours, theirs = vocabulary.words(documents), vocabulary.words(guarded)
    sharing = np.zeros(len(documents), dtype=bool)
    for length in range(SHORTEST, RUN + 1):
        codes, rows = ours.runs(length)
        sharing[rows[contained(codes, _wanted(theirs, length))]] = True
    return ~sharing


def _wanted(texts: Words, length: int) -> np.ndarray:
    """Return the runs to look for: whole texts of this length; all runs of the longest."""
    codes, rows = texts.runs(length)
    if length == RUN:
        return codes
    words = np.bincount(texts.row, minlength=texts.rows)
    return codes[words[rows] == length]


def guarded_texts(files: Sequence[Path]) -> Iterator[str]:
    """Yield all texts of files, or every cell of text in a table; and each line of them.

    A corpus may be cut where a guarded text is not, so that its lines are guarded one by one too.

    Raises:
        InputError: a file cannot be read.
    """
    for file in files:
        for text in _texts(file):
            yield text
            if "\n" in text:
                yield from text.splitlines()


def _texts(file: Path) -> Iterator[str]:
    if is_text(file):
        return iter(paragraphs(file))
    if format_of(file) is None or not file.is_file():
        raise InputError(f"{file}: `decontaminate` takes text files and tables; check the path")
    frame = read_frame(file)
    return (cell for name in frame.columns for cell in frame[name] if isinstance(cell, str))
