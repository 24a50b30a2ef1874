"""Passages of e-mails that end with a telephone number, as a language model's records.

The people are real: what stands in a passage reaches no result, message or file. A number is either
among the passages to train on or among those held out, never in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.leakage.names import digits_of, names_in, phones_in
from evaluation.papers.anadp.sizes import Size
from evaluation.papers.learning import tokenised
from evaluation.papers.texts import drawn, read_lines
from evaluation.papers.words import Subwords, spaced
from twinset.detectors.spans import Span
from twinset.errors import InputError
from twinset.formats import read_frame
from twinset.tokens import TokenisedRecords

BODY = "body"
CHARACTERS = 100  # before the number
HELD_OUT = 0.25  # of all numbers
_DRAW = 0  # seed of which numbers are held out, and of which passages are taken


def passage(body: str) -> str | None:
    """Return an e-mail's first telephone number with what stands before it; None without one.

    >>> passage("Hi,  this is Ada Quill. Call me: 713 555-0199 today")
    'Hi, this is Ada Quill. Call me: 713 555-0199'
    """
    text = " ".join(body.split())
    found = phones_in(text)
    if not found:
        return None
    start, end = found[0]
    head = text[max(0, start - CHARACTERS) : start]
    if start > CHARACTERS:  # the first word may be half of one
        head = head.partition(" ")[2]
    return head + text[start:end]


@dataclass(frozen=True)
class Passages:
    """What is learnt and what is not.

    Args:
        train: passages to learn from.
        heldout: passages with other numbers.
        public: lines that anyone may have.
        size: how long a record may be, and how many tokens there are.
    """

    train: Sequence[str]
    heldout: Sequence[str]
    public: Sequence[str]
    size: Size

    @classmethod
    def read(cls, emails: Path, public: Path, size: Size) -> Passages:
        """Read the files.

        Raises:
            InputError: one cannot be used, or too few e-mails hold a telephone number.
        """
        frame = read_frame(emails)
        if BODY not in frame:
            raise InputError(f"{emails}: has no column {BODY!r}; rename one")
        found = filter(None, map(passage, frame[BODY].dropna().astype(str)))
        train, heldout = apart(list(dict.fromkeys(found)))
        if not (train and heldout):
            raise InputError(f"{emails}: holds too few telephone numbers; name another file")
        lines = drawn(read_lines(public), size.public_lines)
        return cls(drawn(train, size.passages), heldout, lines, size)

    @cached_property
    def tokens(self) -> Subwords:
        """Learnt from the public lines."""
        return Subwords.of(self.public, self.size.vocabulary)

    def records(self, lines: Iterable[str]) -> TokenisedRecords:
        """Return lines as records."""
        return tokenised(map(spaced, lines), self.tokens, self.size.shape.context)

    @cached_property
    def names(self) -> dict[str, list[Span]]:
        """Where people's names stand in each passage: looked for once.

        Raises:
            InputError: the libraries that find names are not installed.
        """
        texts = [*self.train, *self.heldout]
        return dict(zip(texts, names_in(texts), strict=True))

    def find_names(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        """Yield the spans of each passage's names."""
        return (self.names[text] for text in texts)

    def facts(self) -> dict[str, Any]:
        """Return counts, and nothing else, of what there is."""
        records = self.records(self.train)
        return {
            "passages": {"train": len(self.train), "held-out": len(self.heldout)},
            "names": {
                "train": sum(len(self.names[text]) for text in self.train),
                "held-out": sum(len(self.names[text]) for text in self.heldout),
            },
            "cut": records.truncated,
            "vocabulary": self.tokens.size,
            "public lines": len(self.public),
        }


def apart(passages: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return passages of most numbers, and those of the others; with numbers of both: in neither.

    >>> train, heldout = apart([f"call 713 555-{n:04d}" for n in range(8)] * 2)
    >>> len(train), len(heldout), set(train) & set(heldout)
    (12, 4, set())
    """
    numbers = [{digits_of(text[s:e]) for s, e in phones_in(text)} for text in passages]
    known = np.array(sorted(set().union(*numbers)))
    order = np.random.default_rng(_DRAW).permutation(len(known))
    others = set(known[order[: round(HELD_OUT * len(known))]].tolist())
    pairs = list(zip(passages, numbers, strict=True))
    return [p for p, n in pairs if not n & others], [p for p, n in pairs if n <= others]
