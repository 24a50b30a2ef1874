"""Public and private text as tokens, and what counting words alone would make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.papers.kerrigan.sizes import CONTEXT, Size
from evaluation.papers.learning import GROUPS, tokenised
from evaluation.papers.models import FolderShape
from evaluation.papers.texts import drawn, read_lines
from evaluation.papers.words import Subwords, Tokens, Words, words
from twinset.errors import InputError
from twinset.tokens import TokenisedRecords


@dataclass(frozen=True)
class Paths:
    """The files.

    Args:
        public: text that anyone may have.
        train: private text to learn from.
        dev: private text, on which choices were made.
        test: private text, read for the table alone.
    """

    public: Path
    train: Path
    dev: Path
    test: Path


@dataclass(frozen=True)
class Lines:
    """Lines of the four files, as many as the size takes."""

    public: Sequence[str]
    train: Sequence[str]
    dev: Sequence[str]
    test: Sequence[str]


def read_texts(paths: Paths, size: Size, scored: bool = True) -> Lines:
    """Return the lines of an experiment; without `scored`, development and test stay unread.

    Raises:
        InputError: a file cannot be used.
    """
    public = drawn(read_lines(paths.public), size.public_lines)
    train = drawn(read_lines(paths.train), size.private_lines)
    parts = (paths.dev, paths.test) if scored else ()
    found = [drawn(read_lines(path), size.scored_lines) for path in parts]
    return Lines(public, train, *(found or ([], [])))


@dataclass(frozen=True)
class Corpora:
    """The four texts in one kind of tokens."""

    tokens: Tokens
    public: TokenisedRecords
    private: TokenisedRecords
    dev: TokenisedRecords
    test: TokenisedRecords

    @classmethod
    def of(cls, lines: Lines, tokens: Tokens) -> Corpora:
        """Return lines as tokens.

        Raises:
            InputError: of a private text no word is known.
        """
        texts = (lines.public, lines.train, lines.dev, lines.test)
        parts = [tokenised(text, tokens, CONTEXT) for text in texts]
        for name, text, part in zip(("train", "dev", "test"), texts[1:], parts[1:], strict=True):
            if text and not len(part):
                raise InputError(f"--private-{name}: shares no word with the public text")
        return cls(tokens, *parts)

    def counts_groups(self, part: TokenisedRecords) -> np.ndarray:
        """Return (G, 2) nats and tokens of `part` if each token cost its share of public text.

        One is added to each count, so that none is zero.
        """
        counts = np.bincount(np.concatenate(self.public.texts), minlength=self.tokens.size) + 1.0
        nats = -np.log(counts / counts.sum())
        found = np.zeros((min(GROUPS, len(part)), 2))
        for i, text in enumerate(part.texts):
            found[i % GROUPS] += nats[text].sum(), len(text)
        return found

    def facts(self, lines: Lines) -> dict[str, Any]:
        """Return what a reader should know of the texts."""
        return {
            "tokens": self.tokens.description,
            "vocabulary": self.tokens.size,
            "public lines": len(self.public),
            "private lines": len(self.private),
            "development lines": len(self.dev),
            "test lines": len(self.test),
            "test tokens": sum(map(len, self.test.texts)),
            "lines cut": sum(p.truncated for p in (self.public, self.private, self.dev, self.test)),
            "unknown words of test": _unknown(lines.test, self.test),
            "counts_groups": self.counts_groups(self.test).round(4).tolist(),
            "counts_groups_dev": self.counts_groups(self.dev).round(4).tolist(),
        }


def _unknown(lines: Sequence[str], part: TokenisedRecords) -> float:
    """Return the share of words that no token stands for; of subwords, none."""
    written = sum(len(words(line)) for line in lines)
    return max(0.0, 1 - sum(map(len, part.texts)) / max(1, written))


def by_model(size: Size, lines: Lines) -> dict[str, Corpora]:
    """Return the texts by contestant: words of the public text, or a folder's own tokens.

    Raises:
        InputError: a folder's model cannot be used, or a private text has no known word.
    """
    of_words = Corpora.of(lines, Words.of(lines.public, size.vocabulary))
    return {
        c.name: Corpora.of(lines, folder_tokens(c.shape.folder))
        if isinstance(c.shape, FolderShape)
        else of_words
        for c in size.contestants
    }


def folder_tokens(folder: Path) -> Tokens:
    """Return a folder's own tokens.

    Raises:
        InputError: its model cannot be used.
    """
    from twinset.basemodel import load_base

    base = load_base(str(folder))
    if base.model.config.max_position_embeddings < CONTEXT:
        raise InputError(f"--gpt2 {folder}: reads fewer than {CONTEXT} tokens; name a larger one")
    return Subwords(base.tokenizer, folder.name, base.model.config.vocab_size)
