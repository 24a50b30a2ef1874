"""Rows of text with what is private in them, and the same as tokens. Knows no model.

A policy function flags spans: digits of WikiText-2 by a pattern, personal data of dialogues by what
their table says was put in. A row with more tokens than a record may have is several records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.canaries import Canary, Format
from evaluation.papers.sdp.published import CANARY, COPIES, SECRET
from evaluation.papers.texts import drawn, read_lines
from evaluation.supportdialogues import SECRETS, TEXT, support_dialogues
from twinset.detectors.spans import Span
from twinset.errors import InputError
from twinset.formats import read_frame
from twinset.masking import mask
from twinset.schema import Combination
from twinset.tokens import TokenisedRecords

_DIGITS = re.compile(r"\d+")
NUMBER, CODE = "number", "canary"  # kinds of flagged spans, beside the columns of a table
_KINDS = ("customer_name", "phone", "order_number", "address", "tracking_number")  # CustomerSim's


@dataclass(frozen=True)
class Row:
    """A text, and its private spans: disjoint, in order.

    Args:
        text: of it.
        spans: start, end, kind.
    """

    text: str
    spans: tuple[tuple[int, int, str], ...]

    @property
    def places(self) -> list[Span]:
        """Its spans without their kinds."""
        return [(start, end) for start, end, _ in self.spans]

    @property
    def masked(self) -> str:
        """The text as the policy function leaves it."""
        return mask(self.text, self.places)

    def swapped(self, other: Callable[[str, str], str]) -> Row:
        """Return the row with each private value replaced by `other(value, kind)`.

        >>> Row("I am Al.", ((5, 7, "name"),)).swapped(lambda value, kind: "Barbara")
        Row(text='I am Barbara.', spans=((5, 12, 'name'),))
        """
        text, spans, kept = "", [], 0
        for start, end, kind in self.spans:
            text += self.text[kept:start]
            value = other(self.text[start:end], kind)
            spans.append((len(text), len(text) + len(value), kind))
            text, kept = text + value, end
        return Row(text + self.text[kept:], tuple(spans))


@dataclass(frozen=True)
class TextSet:
    """The rows of one data set.

    Args:
        name: of it, in the paper.
        train: rows to learn from, without canaries.
        heldout: rows for all scores.
        source: where they came from, if not from files.
    """

    name: str
    train: Sequence[Row]
    heldout: Sequence[Row]
    source: str = ""


@dataclass(frozen=True)
class Flagged:
    """Rows as records of tokens, and which tokens are private.

    Args:
        records: tokens.
        flags: of each record, a truth value for each token.
        owners: (N,) the row that each record came from.
    """

    records: TokenisedRecords
    flags: Sequence[np.ndarray]
    owners: np.ndarray

    @property
    def share(self) -> float:
        """Share of tokens that are flagged."""
        return float(np.concatenate(self.flags).mean())


def wikitext(path: Path, most: int | None) -> list[Row]:
    """Return lines of text; their digits are private.

    Raises:
        InputError: the file cannot be used.
    """
    lines = (line.strip() for line in drawn(read_lines(path), most))
    return [Row(line, _digits(line)) for line in lines]


def dialogues(path: Path | None, most: int | None, rows: int, seed: int) -> list[Row]:
    """Return dialogues of a table; what its other columns hold is private. Canaries are left out.

    Args:
        path: with the columns of CustomerSim, or of `support_dialogues`; None makes some.
        most: rows that are drawn from it.
        rows: that are made.
        seed: of those.

    Raises:
        InputError: the table cannot be used.
    """
    if path is None:
        frame = support_dialogues(rows, seed)
    elif not path.is_file():
        raise InputError(f"{path}: there is no such file; check the path")
    else:
        frame = read_frame(path)
    if "dialog" in frame:
        if "is_canary" in frame:
            frame = frame[frame["is_canary"].astype(int) == 0]
        kinds = [kind for kind in _KINDS if kind in frame]
        secrets: list[dict[str, Any]] = frame[kinds].astype(str).to_dict("records")
        found = _rows(frame["dialog"], secrets)
    elif {TEXT, SECRETS} <= set(frame):
        found = _rows(frame[TEXT], [json.loads(cell) for cell in frame[SECRETS]])
    else:
        raise InputError(f"{path}: has neither a column 'dialog' nor '{TEXT}' and '{SECRETS}'")
    kept = drawn([str(place) for place in range(len(found))], most)
    return [found[int(place)] for place in kept]


def _rows(texts: Sequence[Any], secrets: Sequence[dict[str, Any]]) -> list[Row]:
    return [Row(str(t), _known(str(t), s)) for t, s in zip(texts, secrets, strict=True)]


def _known(text: str, secrets: dict[str, Any]) -> tuple[tuple[int, int, str], ...]:
    """Return where the values stand; where two overlap, the first and longer."""
    found = sorted(
        (match.start(), -match.end(), kind)
        for kind, value in secrets.items()
        if len(str(value)) > 1 and str(value) != "nan"
        for match in re.finditer(re.escape(str(value)), text)
    )
    spans: list[tuple[int, int, str]] = []
    for start, minus_end, kind in found:
        if not spans or start >= spans[-1][1]:
            spans.append((start, -minus_end, kind))
    return tuple(spans)


def _digits(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((*match.span(), NUMBER) for match in _DIGITS.finditer(text))


def canary(digits: int) -> Canary:
    """Return "My ID is 341752", or as many of its digits."""
    fields = (tuple("0123456789"),) * digits
    return Canary(Format(CANARY + "{}" * digits, fields), int(SECRET[:digits]), (), COPIES)


def planted(rows: Sequence[Row], secret: Canary, seen: bool) -> list[Row]:
    """Return rows with the canary's copies; what is not `seen` the policy function misses."""
    spans = ((len(CANARY), len(secret.text), CODE),) if seen else ()
    return [*rows, *[Row(secret.text, spans)] * secret.copies]


def encoded(rows: Sequence[Row], tokenizer: Any, context: int) -> Flagged:
    """Return rows as records of at most `context` tokens, the begin included.

    A space stands before each text, as before the candidates that exposure ranks.

    Raises:
        InputError: no row has a token.
    """
    texts, flags, owners = list[list[int]](), list[np.ndarray](), list[int]()
    found = tokenizer(
        [f" {row.text}" for row in rows], add_special_tokens=False, return_offsets_mapping=True
    )
    pairs = zip(found["input_ids"], found["offset_mapping"], strict=True)
    for owner, (row, (ids, offsets)) in enumerate(zip(rows, pairs, strict=True)):
        private = _private_tokens(row, offsets)
        for start in range(0, len(ids), context - 1):
            texts.append(ids[start : start + context - 1])
            flags.append(private[start : start + context - 1])
            owners.append(owner)
    if not texts:
        raise InputError("a text set has no tokens; name another file")
    begin: dict[Combination, list[int]] = {(): [int(tokenizer.eos_token_id)]}
    records = TokenisedRecords(texts, [()] * len(texts), begin, 0, context)
    return Flagged(records, flags, np.array(owners))


def _private_tokens(row: Row, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return which tokens touch a private span; offsets count the space before the text."""
    private = np.zeros(len(row.text) + 1, dtype=bool)
    for start, end in row.places:
        private[start + 1 : end + 1] = True
    return np.array([bool(private[start:end].any()) for start, end in offsets])
