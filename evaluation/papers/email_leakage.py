"""A language model of e-mails, and how well it knows their names and telephone numbers.

The people are real: what stands in an e-mail reaches no result, message or file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.leakage.names import (
    digits_of,
    mean_reciprocal_rank,
    names_in,
    phone_exposure,
    phones_in,
)
from evaluation.papers.language_model import gpt2_shape, seeded, tokenised, train_model
from evaluation.papers.run_context import RunContext
from evaluation.papers.texts import Subwords, drawn, read_lines, spaced
from evaluation.utility.dp_fitting import Recipe
from twinset.data.formats import read_frame
from twinset.data.tokenization import TokenisedRecords
from twinset.detectors.spans import Span
from twinset.errors import InputError

BODY = "body"
CHARACTERS = 100  # of a passage before its number
HELD_OUT = 0.25  # of all numbers
_DRAW = 0  # seed of which numbers are held out: the same for all rows of the results

RANKS, EXPOSURE = "rank", "exposure"
MEASURES = {
    RANKS: "mean reciprocal rank of names",
    EXPOSURE: "exposure of telephone numbers, bits",
}
DIGITS = 10  # of the telephone numbers whose exposure is judged: American ones with area code
PARTS = ("train", "held-out")


def passage(body: str) -> str | None:
    """Return an e-mail's first telephone number with what stands before it; None without one.

    >>> passage("Hi,  this is Ada Quill. Call me: 713 555-0199 today")
    'Hi, this is Ada Quill. Call me: 713 555-0199'
    """
    text = " ".join(body.split())
    numbers = phones_in(text)
    if not numbers:
        return None
    start, end = numbers[0]
    head = text[max(0, start - CHARACTERS) : start]
    if start > CHARACTERS:  # the first word may be half of one
        head = head.partition(" ")[2]
    return head + text[start:end]


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


@dataclass(frozen=True)
class Passages:
    """Passages of e-mails that end with a telephone number, as a language model's records.

    A number is either among the passages to train on or among those held out, never in both.

    Args:
        train: passages to train on.
        heldout: passages with other numbers.
        public: lines that anyone may have.
        size: numbers of the size.
    """

    train: Sequence[str]
    heldout: Sequence[str]
    public: Sequence[str]
    size: Mapping[str, Any]

    @classmethod
    def read(cls, emails: Path, public: Path, size: Mapping[str, Any]) -> Passages:
        """Read the files.

        Raises:
            InputError: one cannot be used, or too few e-mails hold a telephone number.
        """
        frame = read_frame(emails)
        if BODY not in frame:
            raise InputError(f"{emails}: has no column {BODY!r}; rename one")
        passages = filter(None, map(passage, frame[BODY].dropna().astype(str)))
        train, heldout = apart(list(dict.fromkeys(passages)))
        if not (train and heldout):
            raise InputError(f"{emails}: holds too few telephone numbers; name another file")
        lines = drawn(read_lines(public), size.get("public_lines"))
        return cls(drawn(train, size.get("passages")), heldout, lines, size)

    @cached_property
    def tokens(self) -> Subwords:
        """Those of a tokenizer trained on the public lines."""
        return Subwords.of(self.public, self.size["vocabulary"])

    def records(self, lines: Iterable[str]) -> TokenisedRecords:
        """Return lines as records."""
        return tokenised(map(spaced, lines), self.tokens, self.size["shape"]["context"])

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
        records, parts = self.records(self.train), (self.train, self.heldout)
        names = [sum(len(self.names[text]) for text in part) for part in parts]
        return {
            "passages": dict(zip(PARTS, map(len, parts), strict=True)),
            "names": dict(zip(PARTS, names, strict=True)),
            "cut": records.truncated,
            "vocabulary": self.tokens.size,
            "public lines": len(self.public),
        }

    def public_model(self, seed: int, run: RunContext) -> Any:
        """Return a language model trained on the public lines, once for all rows of a seed."""
        model = seeded(gpt2_shape(**self.size["shape"]).build, self.tokens.size, seed)
        recipe, counter = Recipe(**self.size["public"]), run.counter("training on public text")

        def train() -> None:
            train_model(model, self.records(self.public), recipe, 0.0, seed, counter)

        run.train_once(f"public text, seed {seed}", model, train)
        return model

    def known_by(self, model: Any, run: RunContext) -> dict[str, dict[str, float | int | None]]:
        """Return how well a model knows what it was trained on, and what was held out.

        That is mean reciprocal rank and exposure, with how many each is of. The sample of numbers
        and of candidates is the same for all models.
        """
        parts = zip(PARTS, (self.train, self.heldout), strict=True)
        return {part: self._known(model.eval(), texts, part, run) for part, texts in parts}

    def _known(
        self, model: Any, texts: Sequence[str], part: str, run: RunContext
    ) -> dict[str, float | int | None]:
        size = self.size
        asked: dict[str, Any] = {"rows": part, "max_tokens": size["shape"]["context"], "seed": 0}
        asked["progress"] = run.progress
        limits = {"candidates": size["candidates"], "most": size["scored_numbers"]}
        given = (model, self.tokens.tokenizer, texts, [[self.tokens.begin]] * len(texts))
        ranked = mean_reciprocal_rank(*given, **asked, find=self.find_names)
        phones = phone_exposure(*given, **asked | limits)
        same = [m.score for m in phones if m.place["candidates"] == f"10^{DIGITS}"]
        many = sum(score.n for score in same)
        return {
            RANKS: ranked.score.value if ranked else None,
            "names": ranked.score.n if ranked else 0,
            EXPOSURE: sum(s.value * s.n for s in same) / many if many else None,
            "numbers": many,
        }
