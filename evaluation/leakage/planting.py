"""What an audit of canaries trains on: the private table with secrets, and with coins' canaries.

Everything is drawn by the training seed but the coins, which an audit of one run must not be able
to repeat. Each canary of a coin is a record of its own: the table's own beginning of a sentence,
which a twin's prompt leads to, and an end that no one would write (Meeus et al. 2025, "The Canary's
Echo", section 4). Beginnings are public: the base model writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from evaluation.findings import CANARIES, LENGTHS, PLANTED, SECRETS
from evaluation.leakage.canaries import MORE_FORMATS, Canary, Format, draw_canaries, numbered, plant
from evaluation.policy_runs import ComparisonRequest, Data, write_untrained_twin
from evaluation.release import records_to_frame, take_records
from twinset.bounds import check_number, check_options, within
from twinset.config import ROWS, RunConfig
from twinset.errors import InputError
from twinset.models.base_model import BaseModel
from twinset.progress import Progress
from twinset.sampling.allocation import proportional
from twinset.table.records import Records

COPIES = (0, 1, 10, 100)  # those of no copy were never seen: what chance gives
EACH = 3  # canaries of each number of copies
COINS = 200  # canaries for the lower bound, half of them planted
DIGITS = 3  # of a secret number: names have a space of the same size
OPENINGS = 32  # rows of the base model whose beginnings coins' canaries share
PREFIX_WORDS = 8
SUFFIX_TOKENS = 12


@dataclass(frozen=True)
class CanaryRequest:
    """What is planted and attacked.

    Args:
        rows: the private table, policies, size of the twins, held-out rows.
        copies: how often secrets are planted.
        each: secrets of every number of copies.
        digits: of a secret; with 3, names are planted too.
        coins: canaries that a coin puts in or leaves out; 0 leaves the lower bound out.
        members: at most so many training rows, and held-out rows, for membership inference.

    Raises:
        InputError: there are not enough sentences for so many secrets.
    """

    rows: ComparisonRequest
    copies: tuple[int, ...] = COPIES
    each: int = within(EACH, SECRETS)
    digits: int = within(DIGITS, LENGTHS)
    coins: int = within(COINS, CANARIES)
    members: int = within(1000, ROWS)

    def __post_init__(self) -> None:
        check_options(self)
        most = len(self.formats) // len(self.copies)
        if self.each > most:
            there_are = f"there are sentences for {most} of each of `copies`"
            raise InputError(f"`each={self.each}`: {there_are}")

    @property
    def formats(self) -> tuple[Format, ...]:
        """The sentences that secrets are planted in."""
        return MORE_FORMATS if self.digits == DIGITS else numbered(self.digits)


def copies_of(text: str) -> tuple[int, ...]:
    """Return the numbers of "0,1,10,100".

    Raises:
        InputError: something is no whole number, or too many.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError("`copies` takes whole numbers with commas between: 0,1,10,100")
    copies = dict.fromkeys(map(int, parts))
    for number in copies:
        check_number("`copies`", number, PLANTED, is_whole=True)
    return tuple(copies)


@dataclass(frozen=True)
class Planted:
    """The table with its canaries.

    Args:
        secrets: those planted, and those of no copy.
        coins: canaries of the lower bound, with labels drawn at random.
        included: (coins,) which of them are in the table.
        frame: the private table with all that is planted.
    """

    secrets: list[Canary]
    coins: Records
    included: np.ndarray
    frame: pd.DataFrame


def planted(
    request: CanaryRequest,
    data: Data,
    config: RunConfig,
    base: BaseModel,
    included: Sequence[int],
    progress: Progress,
) -> Planted:
    """Draw canaries and plant them."""
    combinations, seed = data.train.schema.combinations, config.training.seed
    secrets = draw_canaries(combinations, seed, request.copies, request.each, request.formats)
    coins = _coin_records(request.coins, data, config, base, progress)
    chosen = np.array(included, dtype=bool)
    frame = plant(records_to_frame(data.train), data.text, data.attributes, secrets)
    thrown = records_to_frame(take_records(coins, np.flatnonzero(chosen)))
    frame = pd.concat([frame, thrown[frame.columns]], ignore_index=True)
    return Planted(secrets, coins, chosen, frame)


def _coin_records(
    many: int, data: Data, config: RunConfig, base: BaseModel, progress: Progress
) -> Records:
    schema, seed = data.train.schema, config.training.seed
    counts = proportional({c: 1.0 for c in schema.combinations}, OPENINGS)
    written = write_untrained_twin(config, schema, data.template, counts, progress)
    openings = [str(cell) for cell in written[schema.text]]
    texts = coin_canaries(openings, base.tokenizer, many, seed)
    drawn = np.random.default_rng(seed).integers(len(schema.combinations), size=many)
    return Records(texts, [schema.combinations[i] for i in drawn], schema)


def coin_canaries(openings: Sequence[str], tokenizer: Any, many: int, seed: int) -> list[str]:
    """Return distinct texts.

    Args:
        openings: texts whose first words begin the canaries.
        tokenizer: its words, of letters alone, end them.
        many: how many.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    words = _words(tokenizer)
    found = []
    for number in range(many):
        opening = openings[number % len(openings)].split()[:PREFIX_WORDS]
        found.append(" ".join([*opening, *rng.choice(words, SUFFIX_TOKENS)]))
    return found


def _words(tokenizer: Any) -> np.ndarray:
    """Return words of at least four letters that are one token."""
    decoded = (tokenizer.decode([token]).strip() for token in range(len(tokenizer)))
    known = {word for word in decoded if word.isascii() and word.isalpha() and len(word) > 3}
    return np.array(sorted(known))
