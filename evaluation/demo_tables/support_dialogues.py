"""Made-up customer support dialogues with made-up personal data in known places.

In the manner of CustomerSim (Shi et al. 2022): an agenda of turns, several wordings of each, and
words for the gaps. Everything is drawn by the seed alone. No person, address or number is real:
telephone numbers are of the block 555-01xx, which is kept for fiction, and e-mail goes to the
domains that RFC 2606 reserves. Knows nothing of models and detectors.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

TEXT, TOPIC, SATISFIED, SECRETS = "text", "topic", "satisfied", "secrets"
KINDS = ("name", "phone", "email", "address", "order_number", "tracking_number")

# Words for the gaps, and the wordings of each turn.
_STATED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_WORDS = {name: words.split() for name, words in _STATED["words"].items()}
_TURNS = _STATED["turns"]


def support_dialogues(rows: int = 1000, seed: int = 0) -> DataFrame:
    """Return a table of dialogues; of the same seed, more rows begin with the same ones.

    Returns:
        Columns `text`, `topic` (delivery, refund, damage or moving), `satisfied` ("yes" or "no"),
        and `secrets`: JSON of what is private in the text, by kind; each value stands there once.

    Raises:
        ValueError: fewer than one row.
    """
    import pandas as pd

    if rows < 1:
        raise ValueError("there is no table of no rows")
    rng = np.random.default_rng(seed)
    return pd.DataFrame([_dialogue(rng) for _ in range(rows)])


def _dialogue(rng: np.random.Generator) -> dict[str, str]:
    topic, satisfied = _one(rng, list(_TURNS["wish"])), _one(rng, list(_TURNS["last"]))
    secrets = _person(rng)
    asked = ["name", *sorted(rng.permutation(list(_TURNS["question"])[1:])[:2])]
    turns = [("SYS", _one(rng, _TURNS["greeting"])), ("USR", _wish(rng, topic))]
    for kind in asked:
        turns += [
            ("SYS", _one(rng, _TURNS["question"][kind])),
            ("USR", _one(rng, _TURNS["answer"][kind]).format(secrets[kind])),
        ]
    turns += [
        ("SYS", _TURNS["end"][topic].format(**secrets)),
        ("USR", _one(rng, _TURNS["last"][satisfied])),
    ]
    said = {kind: secrets[kind] for kind in KINDS if kind in (*asked, "tracking_number")}
    text = "\n".join(f"{role}: {words}" for role, words in turns)
    return {TEXT: text, TOPIC: topic, SATISFIED: satisfied, SECRETS: json.dumps(said)}


def _wish(rng: np.random.Generator, topic: str) -> str:
    return _one(rng, _TURNS["wish"][topic]).format(thing=_word(rng, "thing"))


def _person(rng: np.random.Generator) -> dict[str, str]:
    first, last = _word(rng, "first"), _word(rng, "last")
    street = f"{_word(rng, 'street')} {_word(rng, 'way')}"
    town = f"{_word(rng, 'town')}, {_word(rng, 'state')}"
    return {
        "name": f"{first} {last}",
        "phone": f"({_digits(rng, 3)}) 555-01{_digits(rng, 2)}",
        "email": f"{first}.{last}{_digits(rng, 2)}@{_word(rng, 'domain')}".lower(),
        "address": f"{rng.integers(1, 9999)} {street}, {town} {_digits(rng, 5)}",
        "order_number": f"{_digits(rng, 3)}-{_digits(rng, 5)}-{_digits(rng, 4)}",
        "tracking_number": _code(rng),
    }


def _code(rng: np.random.Generator) -> str:
    """Return two letters and eight digits or letters, one digit at least."""
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    tail = "".join(_one(rng, letters + "0123456789") for _ in range(7))
    return f"{_one(rng, letters)}{_one(rng, letters)}{tail}{_digits(rng, 1)}"


def _digits(rng: np.random.Generator, many: int) -> str:
    """Return digits, of which the first is no zero."""
    return str(rng.integers(10 ** (many - 1), 10**many))


def _word(rng: np.random.Generator, kind: str) -> str:
    return _one(rng, _WORDS[kind])


def _one(rng: np.random.Generator, some: list[str] | str) -> str:
    return str(some[int(rng.integers(len(some)))])
