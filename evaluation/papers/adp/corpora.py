"""WikiText, or any lines, and a canary among them as tokens of a public vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluation.canaries import Canary, numbered
from evaluation.papers.adp.published import DIGITS, SECRET, SENTENCE
from evaluation.papers.adp.sizes import Size
from evaluation.papers.learning import tokenised
from evaluation.papers.texts import drawn, read_lines
from evaluation.papers.words import Subwords, spaced
from twinset.tokens import TokenisedRecords

_SENTENCE = next(f for f in numbered(DIGITS) if f.pattern.startswith(SENTENCE))


@dataclass(frozen=True)
class Paths:
    """The files.

    Args:
        public: text that anyone may have: vocabulary, and constants of privacy weights.
        train: private text to learn from.
        test: private text, read for the table alone.
    """

    public: Path
    train: Path
    test: Path


def canary(copies: int) -> Canary:
    """Return the paper's canary, planted so often."""
    return Canary(_SENTENCE, SECRET, (), copies)


@dataclass(frozen=True)
class Corpora:
    """The texts.

    Args:
        public: lines.
        train: lines.
        test: lines.
        size: most tokens there may be, and of a line.
    """

    public: Sequence[str]
    train: Sequence[str]
    test: Sequence[str]
    size: Size

    @classmethod
    def read(cls, paths: Paths, size: Size, scored: bool = True) -> Corpora:
        """Read the files; without `scored`, the test part stays unread.

        Raises:
            InputError: a file cannot be used.
        """
        public = drawn(read_lines(paths.public), size.public_lines)
        train = drawn(read_lines(paths.train), size.private_lines)
        test = drawn(read_lines(paths.test), size.scored_lines) if scored else []
        return cls(public, train, test, size)

    @cached_property
    def tokens(self) -> Subwords:
        """Learnt from the public lines."""
        return Subwords.of(self.public, self.size.vocabulary)

    def records(self, copies: int) -> TokenisedRecords:
        """Return the lines to train on, and after them the canary's copies."""
        lines = [*self.train, *[canary(copies).text] * copies]
        return self._tokenised(lines)

    @cached_property
    def tested(self) -> TokenisedRecords:
        """The lines of the test part."""
        return self._tokenised(self.test)

    def facts(self) -> dict[str, Any]:
        """Return what a reader should know of the texts."""
        train = self.records(0)
        return {
            "tokens": self.tokens.description,
            "vocabulary": self.tokens.size,
            "private lines": len(train),
            "private tokens": sum(map(len, train.texts)),
            "private lines cut": train.truncated,
            "test lines": len(self.tested),
            "test tokens": sum(map(len, self.tested.texts)),
            "context": self.size.shape.context,
        }

    def _tokenised(self, lines: Sequence[str]) -> TokenisedRecords:
        return tokenised(map(spaced, lines), self.tokens, self.size.shape.context)
