"""Text of which some is flagged as private: as rows, as tokens; what models know of it; attacks.

A policy function flags spans: digits of WikiText-2 by a pattern, personal data of dialogues by what
their table says was put in. A row with more tokens than a record may have is several records.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from evaluation.demo_tables.support_dialogues import SECRETS, TEXT, support_dialogues
from evaluation.leakage.canaries import Canary, Format
from evaluation.leakage.exposure import Exposure, exposure
from evaluation.leakage.exposure_extrapolation import extrapolated_exposure
from evaluation.leakage.roc import Attack, scores
from evaluation.papers.language_model import bounded_nats, in_groups
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

    @property
    def redacted(self) -> Row:
        """The row with that text alone."""
        return Row(self.masked, ())

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
    lines = [line.strip() for line in drawn(read_lines(path), most)]
    spans = (tuple((*one.span(), NUMBER) for one in _DIGITS.finditer(line)) for line in lines)
    return list(map(Row, lines, spans))


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
    if path is not None and not path.is_file():
        raise InputError(f"{path}: there is no such file; check the path")
    frame = support_dialogues(rows, seed) if path is None else read_frame(path)
    if "dialog" in frame:
        if "is_canary" in frame:
            frame = frame[frame["is_canary"].astype(int) == 0]
        texts, kinds = frame["dialog"], [kind for kind in _KINDS if kind in frame]
        secrets = frame[kinds].astype(str).to_dict("records")
    elif {TEXT, SECRETS} <= set(frame):
        texts, secrets = frame[TEXT], list(map(json.loads, frame[SECRETS]))
    else:
        raise InputError(f"{path}: has neither a column 'dialog' nor '{TEXT}' and '{SECRETS}'")
    pairs = zip(map(str, texts), secrets, strict=True)
    return drawn([Row(text, _known(text, values)) for text, values in pairs], most)


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
        """Return rows as records of tokens.

        A space stands before each text, as before the candidates that exposure ranks.

        Raises:
            InputError: no row has a token.
        """
        texts, flags, owners = list[list[int]](), list[np.ndarray](), list[int]()
        encoded = self.tokenizer(
            [f" {row.text}" for row in rows], add_special_tokens=False, return_offsets_mapping=True
        )
        tokens = zip(rows, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        for owner, (row, ids, offsets) in enumerate(tokens):
            private = _private_tokens(row, offsets)
            for start in range(0, len(ids), self.context - 1):
                texts.append(ids[start : start + self.context - 1])
                flags.append(private[start : start + self.context - 1])
                owners.append(owner)
        if not texts:
            raise InputError("a text set has no tokens; name another file")
        begin: dict[Combination, list[int]] = {(): [int(self.tokenizer.eos_token_id)]}
        records = TokenisedRecords(texts, [()] * len(texts), begin, 0, self.context)
        return Flagged(records, flags, np.array(owners))

    @cached_property
    def tested(self) -> Flagged:
        """The held-out rows."""
        return self.encoded(self.test)


class Scored:
    """What a model makes of each record.

    Args:
        sums: a line for each record: nats of its tokens and how many these are, hits, which are
            tokens that were the most likely, and nats and number of private tokens.
    """

    def __init__(self, sums: pd.DataFrame) -> None:
        self.sums = sums
        self.groups = in_groups(sums["nats"], sums["tokens"])  # (G, 2)
        private = in_groups(sums["private_nats"], sums["private_tokens"])
        self.private_groups = private[private[:, 1] > 0]  # (G, 2) where there are any
        self.accuracy = float(sums["hits"].sum() / sums["tokens"].sum())


def scored(model: Any, flagged: Flagged) -> Scored:
    """Read all records once; a token of a broken model costs what `bounded_nats` says."""
    logits, texts, parts = list[Tensor](), flagged.records.texts, list[pd.DataFrame]()
    with model.eval().register_forward_hook(lambda *call: logits.append(call[-1].logits)):
        for batch, nats, where in read(model, flagged.records):
            likeliest = logits.pop()[:, :-1][where].argmax(1).cpu().numpy()
            private = np.concatenate([flagged.flags[i] for i in batch])
            lost = bounded_nats(nats.cpu().numpy())
            tokens = {
                "record": np.repeat(batch, [len(texts[i]) for i in batch]),
                "nats": lost,
                "tokens": 1.0,
                "hits": likeliest == np.concatenate([texts[i] for i in batch]),
                "private_nats": lost * private,
                "private_tokens": private,
            }
            parts.append(pd.DataFrame(tokens).groupby("record").sum())
    return Scored(pd.concat(parts).sort_index().astype(float))


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


class Sides(NamedTuple):
    """Rows for membership inference, as many of each.

    Args:
        members: training rows with secrets.
        swapped: the same with other secrets in their place: the paper's non-members. What secrets
            look like tells them from members, whatever was learned of members.
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
        many, other = min(most, len(members), len(others)), _other_secrets(others, rng)
        swapped = [row.swapped(other) for row in members[:many]]
        return cls(*map(corpus.encoded, (members[:many], swapped, others[:many])))


def _other_secrets(rows: Sequence[Row], rng: np.random.Generator) -> Callable[[str, str], str]:
    """Return a function of a secret and its kind: another row's; of a number, all other digits."""
    known = defaultdict[str, list[str]](list)
    for row in rows:
        for start, end, kind in row.spans:
            known[kind].append(row.text[start:end])

    def other(value: str, kind: str) -> str:
        if value.isdecimal() and value.isascii():
            more = rng.integers(1, 10, size=len(value)).tolist()
            return "".join(str((int(d) + m) % 10) for d, m in zip(value, more, strict=True))
        others = [one for one in known[kind] if one != value]
        return others[int(rng.integers(len(others)))] if others else value

    return other


def membership(model: Any, sides: Sides, seed: int) -> dict[str, dict[str, float]]:
    """Return accuracy and AUROC against either kind of non-members.

    The score is the mean loss of a row's private tokens; the half of the rows with the least are
    called members.
    """
    members, swapped, heldout = (-_private_loss(model, side) for side in sides)
    attacks = {
        name: Attack("loss", "model", members, others)
        for name, others in ((SWAPPED, swapped), (HELD_OUT, heldout))
    }
    areas = {name: scores(attack, seed)[0] for name, attack in attacks.items()}
    return {
        name: {"accuracy": halves(attacks[name]), "value": a.value, "low": a.low, "high": a.high}
        for name, a in areas.items()
    }


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
    sums = scored(model, flagged).sums.groupby(flagged.owners).sum()
    return np.asarray(sums["private_nats"] / sums["private_tokens"].clip(lower=1))
