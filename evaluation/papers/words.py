"""What is a token: words of a vocabulary that the public text alone decides, or a base model's own.

A perplexity can be compared only with one of the same tokens, so each says what it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from twinset.pretraining.vocabulary import train_tokenizer

WORD = re.compile(r"(?u)\b\w\w+\b")  # as in the code of paper 003: scikit-learn's default
BEGIN = 0


class Tokens(Protocol):
    """How a line becomes numbers."""

    @property
    def size(self) -> int:
        """Numbers there are."""
        ...

    @property
    def begin(self) -> int:
        """The number that stands before each line."""
        ...

    @property
    def description(self) -> str:
        """What a token is, in a sentence."""
        ...

    def encode(self, line: str) -> list[int]:
        """Return the numbers of a line, without `begin`."""
        ...


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
        """See `Tokens`."""
        return len(self._numbers) + 1

    @property
    def description(self) -> str:
        """See `Tokens`."""
        return (
            f"words of two or more letters or digits, lower case, no punctuation: the "
            f"{len(self._numbers):,} most frequent of the public text"
        )

    def encode(self, line: str) -> list[int]:
        """See `Tokens`.

        >>> Words(["so", "it", "goes"]).encode("So it went. So it goes.")
        [1, 2, 1, 2, 3]
        """
        return [self._numbers[word] for word in words(line) if word in self._numbers]


class Subwords:
    """The tokens of a tokenizer; they cover every text.

    Args:
        tokenizer: of transformers.
        name: whose it is: a base model's, or that of the text it was learnt from.
        size: numbers that the model knows.
    """

    def __init__(self, tokenizer: Any, name: str, size: int) -> None:
        self.tokenizer, self._name, self.size = tokenizer, name, size
        self.begin = int(tokenizer.eos_token_id)

    @classmethod
    def of(cls, lines: Iterable[str], most: int) -> Subwords:
        """Return at most so many tokens, learnt from public lines behind a blank each."""
        tokenizer = train_tokenizer(list(map(spaced, lines)), most)
        return cls(tokenizer, "the public text", len(tokenizer))

    @property
    def description(self) -> str:
        """See `Tokens`."""
        return f"the {self.size:,} tokens of {self._name}'s own tokenizer, which know every text"

    def encode(self, line: str) -> list[int]:
        """See `Tokens`."""
        found: list[int] = self.tokenizer.encode(line, add_special_tokens=False)
        return found
