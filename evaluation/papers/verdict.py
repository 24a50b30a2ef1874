"""Whether a claim held, in one of four words that intervals decide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    """How a claim fared."""

    HELD = "held"
    PARTLY = "partly"
    NOT_HELD = "not held"
    UNDECIDED = "undecided"


def word_of(shown: bool | None) -> Word:
    """Return the word for what an interval tells of a claim.

    >>> [str(word_of(shown)) for shown in (True, False, None)]
    ['held', 'not held', 'undecided']
    """
    return {True: Word.HELD, False: Word.NOT_HELD, None: Word.UNDECIDED}[shown]


def together(words: Iterable[Word]) -> Word:
    """Return one word for several parts of a claim.

    >>> str(together([Word.HELD, Word.HELD])), str(together([Word.HELD, Word.NOT_HELD]))
    ('held', 'partly')
    >>> str(together([Word.NOT_HELD, Word.UNDECIDED]))
    'undecided'
    """
    found = set(words)
    if len(found) == 1:
        return found.pop()
    return Word.PARTLY if found & {Word.HELD, Word.PARTLY} else Word.UNDECIDED


def needing_all(words: Iterable[Word]) -> Word:
    """Return one word for a claim that holds only if every part does.

    >>> str(needing_all([Word.HELD, Word.UNDECIDED])), str(needing_all(Word))
    ('undecided', 'not held')
    """
    found = set(words)
    if Word.NOT_HELD in found:
        return Word.NOT_HELD
    return found.pop() if len(found) == 1 else Word.UNDECIDED


@dataclass(frozen=True)
class Verdict:
    """What was found of the claim, or of one part of it: a sentence that ends in the word.

    Args:
        subject: what it was found on: a model, a data set, a part of the claim.
        because: what was found, in half a sentence.
        word: whether the claim held, computed from intervals.
        details: the measured sentences that it rests on.
    """

    subject: str
    because: str
    word: Word
    details: Sequence[str] = ()
