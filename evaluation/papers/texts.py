"""Files of plain text as lines, one line one record, and what a token of a line is.

Tokens are words of a vocabulary that the public text alone decides, or those of a tokenizer. A
perplexity can be compared only with one of the same tokens, so each kind describes itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from twinset.data.formats import read_frame
from twinset.errors import InputError
from twinset.pretraining.corpus import is_text, paragraphs
from twinset.pretraining.tokenizer import train_tokenizer

T = TypeVar("T")
COLUMN = "text"
LINES = "one record a line: .txt, or a table with a column text; .gz too"  # help of an option
_DRAW = 0  # seed of which lines are taken: the same for all rows
WORD = re.compile(r"(?u)\b\w\w+\b")  # as in the code of paper 003: scikit-learn's default
BEGIN = 0


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, or of the column `text` of a table; blank ones left out.

    Raises:
        InputError: it is absent, unreadable, no UTF-8, or holds no such column or no text.
    """
    texts = paragraphs(path) if is_text(path) else _column(path)
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    if not lines:
        raise InputError(f"{path}: holds no text; name another file")
    return lines


def drawn(lines: list[T], most: int | None) -> list[T]:
    """Return at most so many lines, drawn at random, in the order of the file; None: all."""
    if most is None or most >= len(lines):
        return lines
    taken = np.random.default_rng(_DRAW).permutation(len(lines))[:most]
    return [lines[i] for i in sorted(taken)]


def _column(path: Path) -> list[str]:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; check the path")
    frame = read_frame(path)
    if COLUMN not in frame:
        raise InputError(f"{path}: has no column {COLUMN!r}; rename one, or name a .txt file")
    return list(map(str, frame[COLUMN]))


def words(line: str) -> list[str]:
    """Return the words of a line: two or more letters or digits, lower case.

    >>> words("It's 4 o'clock, I THINK!")
    ['it', 'clock', 'think']
    """
    return [word.lower() for word in WORD.findall(line)]


def spaced(line: str) -> str:
    """Return a line as the measures of leakage write it: behind a blank.

    >>> spaced("so it goes. ")
    ' so it goes.'
    """
    return f" {line.strip()}"


class Words:
    """Words of public text, the most frequent first; others are left out of a line.

    That is how the paper's code reads text too: an unknown word is neither context nor target, so
    no perplexity speaks of it. Taking the vocabulary from private text would publish it.

    Args:
        known: in order.
    """

    begin = BEGIN

    def __init__(self, known: Sequence[str]) -> None:
        self._numbers = {word: n for n, word in enumerate(known, start=BEGIN + 1)}

    @classmethod
    def of(cls, lines: Iterable[str], most: int | None = None) -> Words:
        """Return the `most` most frequent words of lines; of equally frequent ones the first."""
        counts = Counter(word for line in lines for word in words(line))
        return cls([word for word, _ in counts.most_common(most)])

    @property
    def size(self) -> int:
        """Numbers there are, `begin` included."""
        return len(self._numbers) + 1

    @property
    def description(self) -> str:
        """What a token is, for the page."""
        return (
            f"words of two or more letters or digits, lower case, no punctuation: the "
            f"{len(self._numbers):,} most frequent of the public text"
        )

    def encode(self, line: str) -> list[int]:
        """Return the numbers of a line, without `begin`.

        >>> Words(["so", "it", "goes"]).encode("So it went. So it goes.")
        [1, 2, 1, 2, 3]
        """
        return [self._numbers[word] for word in words(line) if word in self._numbers]


class Subwords:
    """The tokens of a tokenizer; they cover every text.

    Args:
        tokenizer: of transformers.
        name: whose it is: a base model's, or that of the text it was trained on.
        size: numbers that the model knows.
    """

    def __init__(self, tokenizer: Any, name: str, size: int) -> None:
        self.tokenizer, self._name, self.size = tokenizer, name, size
        self.begin = int(tokenizer.eos_token_id)

    @classmethod
    def of(cls, lines: Iterable[str], most: int) -> Subwords:
        """Return at most so many tokens, trained on public lines behind a blank each."""
        tokenizer = train_tokenizer(list(map(spaced, lines)), most)
        return cls(tokenizer, "the public text", len(tokenizer))

    @property
    def description(self) -> str:
        """What a token is, for the page."""
        return f"the {self.size:,} tokens of {self._name}'s own tokenizer, which know every text"

    def encode(self, line: str) -> list[int]:
        """Return the numbers of a line, without `begin`."""
        numbers: list[int] = self.tokenizer.encode(line, add_special_tokens=False)
        return numbers


Tokens = Words | Subwords
