"""Text of which some is flagged as private: as rows, as tokens; what models know of it; attacks.

A policy function flags spans: digits of WikiText-2 by a pattern, personal data of dialogues by what
their table says was put in. A row with more tokens than a record may have is several records.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluation.demo_tables.support_dialogues import SECRETS, TEXT, support_dialogues
from evaluation.leakage.canaries import Canary, Format
from evaluation.leakage.exposure import Exposure, exposure
from evaluation.leakage.exposure_extrapolation import extrapolated_exposure
from evaluation.leakage.roc import Attack, scores
from evaluation.papers.language_model import GROUPS, LARGEST_NATS
from evaluation.papers.texts import drawn, read_lines
from evaluation.utility.heldout_loss import read
from twinset.data.formats import read_frame
from twinset.data.schema import Combination
from twinset.data.tokenization import TokenisedRecords
from twinset.detectors.masking import mask
from twinset.detectors.spans import Span
from twinset.errors import InputError

_DIGITS = re.compile(r"\d+")
NUMBER = "number"  # a kind of flagged span, beside the columns of a table
CANARY, SECRET, COPIES = "My ID is ", "341752", 10  # section 5.1.1 of Shi et al. 2022
SWAPPED, HELD_OUT = "other secrets in their place", "rows that were held out"  # non-members
_DRAW = 0  # seed of the rows that are attacked: the same for all models
_KINDS = ("customer_name", "phone", "order_number", "address", "tracking_number")  # CustomerSim's


@dataclass(frozen=True)
class Row:
    """A text, and its private spans: disjoint, in order.

    Args:
        text: of the row.
        spans: start, end, kind of each.
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
class Flagged:
    """Rows as records of tokens, and which tokens are private.

    Args:
        records: tokens.
        flags: of each record, (T,) whether each of its tokens is private.
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


@dataclass(frozen=True)
class Corpus:
    """The rows of one text set, and how they become tokens.

    Args:
        train: rows to train on, without canaries.
        test: held-out rows, for all scores.
        tokenizer: of the model.
        context: most tokens of a record, the begin included.
    """

    train: Sequence[Row]
    test: Sequence[Row]
    tokenizer: Any
    context: int

    def encoded(self, rows: Sequence[Row]) -> Flagged:
        """Return rows as records of tokens."""
        return encoded(rows, self.tokenizer, self.context)

    @cached_property
    def tested(self) -> Flagged:
        """The held-out rows."""
        return self.encoded(self.test)


@dataclass(frozen=True)
class Scored:
    """Sums over the tokens of each record: (N,) each.

    Args:
        nats: of all tokens.
        tokens: how many.
        hits: of these, tokens that were the most likely.
        private_nats: of private tokens.
        private_tokens: how many.
    """

    nats: np.ndarray
    tokens: np.ndarray
    hits: np.ndarray
    private_nats: np.ndarray
    private_tokens: np.ndarray

    @property
    def groups(self) -> np.ndarray:
        """(G, 2) nats and tokens, records dealt in turn."""
        return _groups(self.nats, self.tokens)

    @property
    def private_groups(self) -> np.ndarray:
        """(G, 2) the same of private tokens; groups without any are left out."""
        found = _groups(self.private_nats, self.private_tokens)
        return found[found[:, 1] > 0]

    @property
    def accuracy(self) -> float:
        """Share of tokens that were the most likely."""
        return float(self.hits.sum() / self.tokens.sum())


class _Watched:
    """A model whose last logits can be looked at.

    Args:
        model: a causal LM.
    """

    def __init__(self, model: Any) -> None:
        self._model, self.device = model, model.device
        self.logits = torch.empty(0)

    def __call__(self, ids: Tensor) -> SimpleNamespace:
        self.logits = self._model(ids).logits
        return SimpleNamespace(logits=self.logits)


def scored(model: Any, flagged: Flagged) -> Scored:
    """Read all records once; a token of which a model says nothing finite costs `LARGEST_NATS`."""
    watched, sums = _Watched(model.eval()), np.zeros((5, len(flagged.records)))
    for batch, nats, where in read(watched, flagged.records):
        targets = np.concatenate([flagged.records.texts[i] for i in batch])
        private = np.concatenate([flagged.flags[i] for i in batch])
        likeliest = watched.logits[:, :-1][where].argmax(1).cpu().numpy()
        lost = np.nan_to_num(nats.cpu().numpy(), nan=LARGEST_NATS, posinf=LARGEST_NATS)
        values = lost, np.ones(len(lost)), likeliest == targets, lost * private, private
        row = np.repeat(batch, [len(flagged.records.texts[i]) for i in batch])
        for total, value in zip(sums, values, strict=True):
            np.add.at(total, row, value)
    return Scored(*sums)


def _groups(nats: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    group = np.arange(len(tokens)) % GROUPS
    return np.column_stack([np.bincount(group, weights=w) for w in (nats, tokens)])


def canary(digits: int) -> Canary:
    """Return "My ID is 341752", or as many of its digits."""
    fields = (tuple("0123456789"),) * digits
    return Canary(Format(CANARY + "{}" * digits, fields), int(SECRET[:digits]), (), COPIES)


def planted(rows: Sequence[Row], secret: Canary, seen: bool) -> list[Row]:
    """Return rows and the canary's copies; what is not `seen` the policy function misses."""
    spans = ((len(CANARY), len(secret.text), "canary"),) if seen else ()
    return [*rows, *[Row(secret.text, spans)] * secret.copies]


def canary_exposure(model: Any, tokenizer: Any, secret: Canary, exact: bool, seed: int) -> Exposure:
    """Return how well a model knows the canary's secret."""
    prompt = [int(tokenizer.eos_token_id)]
    if exact:
        return exposure(model.eval(), tokenizer, prompt, secret)
    return extrapolated_exposure(model.eval(), tokenizer, prompt, secret, seed=seed)


@dataclass(frozen=True)
class Sides:
    """Rows for membership inference, as many of each.

    Args:
        members: training rows with secrets.
        swapped: the same with other secrets in their place: the paper's non-members. They can be
            told from members by what secrets look like, whatever was learned of members.
        heldout: other rows of the same kind, with their own secrets.
    """

    members: Flagged
    swapped: Flagged
    heldout: Flagged

    @classmethod
    def of(cls, corpus: Corpus, most: int) -> Sides:
        """Draw at most so many rows, and secrets to swap in."""
        rng = np.random.default_rng(_DRAW)
        members, others = (
            [rows[i] for i in rng.permutation(len(rows)).tolist() if rows[i].spans]
            for rows in (corpus.train, corpus.test)
        )
        many = min(most, len(members), len(others))
        other = _OtherSecrets(others, rng)
        swapped = [row.swapped(other) for row in members[:many]]
        return cls(*map(corpus.encoded, (members[:many], swapped, others[:many])))


class _OtherSecrets:
    """Secrets of other rows; where a secret is a number, other digits.

    Args:
        rows: whose secrets are taken.
        rng: draws.
    """

    def __init__(self, rows: Sequence[Row], rng: np.random.Generator) -> None:
        self._rng = rng
        self._known = defaultdict[str, list[str]](list)
        for row in rows:
            for start, end, kind in row.spans:
                self._known[kind].append(row.text[start:end])

    def __call__(self, value: str, kind: str) -> str:
        """Return another secret; of a number each digit is another."""
        if value.isdecimal() and value.isascii():
            more = self._rng.integers(1, 10, size=len(value)).tolist()
            return "".join(str((int(d) + m) % 10) for d, m in zip(value, more, strict=True))
        known = [other for other in self._known[kind] if other != value]
        return str(known[int(self._rng.integers(len(known)))]) if known else value


def membership(model: Any, sides: Sides, seed: int) -> dict[str, dict[str, float]]:
    """Return accuracy and AUROC against either kind of non-members.

    The score is the mean loss of a row's private tokens; the half of the rows with the least are
    called members.
    """
    members = -_private_loss(model, sides.members)
    found = {}
    for name, side in ((SWAPPED, sides.swapped), (HELD_OUT, sides.heldout)):
        attack = Attack("loss", "model", members, -_private_loss(model, side))
        area = asdict(scores(attack, seed)[0])
        found[name] = {"accuracy": halves(attack)} | {n: area[n] for n in ("value", "low", "high")}
    return found


def halves(attack: Attack) -> float:
    """Return the share that is right if the higher half is called members; ties count half.

    >>> halves(Attack("", "", np.array([3.0, 1.0]), np.array([2.0, 0.0])))
    0.5
    """
    both = np.concatenate([attack.members, attack.non_members])
    middle = np.median(both)
    above = (attack.members > middle).sum() + (attack.non_members < middle).sum()
    return float((above + (both == middle).sum() / 2) / len(both))


def _private_loss(model: Any, flagged: Flagged) -> np.ndarray:
    """(rows,) mean nats of private tokens."""
    found = scored(model, flagged)
    nats, tokens = (
        np.bincount(flagged.owners, weights=w) for w in (found.private_nats, found.private_tokens)
    )
    return np.asarray(nats / np.maximum(tokens, 1))
