"""Tables that anybody may have: public film reviews, and support dialogues made up here.

The dialogues are in the manner of CustomerSim (Shi et al. 2022): an agenda of turns, several
wordings of each, and words for the gaps. Their personal data is made up and in known places.
Nothing here knows of models, training and detectors.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twinset.models.assets import Say, asset_path, silent

if TYPE_CHECKING:
    from pandas import DataFrame

HELD_OUT_SHARE = 0.2  # of the films

TEXT, TOPIC, SATISFIED, SECRETS = "text", "topic", "satisfied", "secrets"
KINDS = ("name", "phone", "email", "address", "order_number", "tracking_number")
# Words for the gaps of dialogues, and the wordings of each turn.
_STATED = tomllib.loads(Path(__file__).with_name("support_dialogues.toml").read_text("utf-8"))
_WORDS = {name: words.split() for name, words in _STATED["words"].items()}
_TURNS = _STATED["turns"]


def load_reviews(say: Say = silent) -> tuple[DataFrame, DataFrame]:
    """Return the training and the held-out film reviews. No film and no text is in both.

    Args:
        say: is called with what is fetched.

    Returns:
        Two tables with the columns `film`, `verdict` ("fresh" or "rotten") and `review`. They have
        the same rows in the same order every time.

    Raises:
        InputError: the asset `demo-reviews` is neither in the cache nor within reach.
    """
    import pandas as pd

    corpus = pd.read_csv(asset_path("demo-reviews", say), compression="bz2")
    reviews = tidy_corpus(corpus)
    held_out = reviews["film"].map(is_held_out)
    return reviews[~held_out].reset_index(drop=True), reviews[held_out].reset_index(drop=True)


def tidy_corpus(corpus: DataFrame) -> DataFrame:
    """Keep the reviews of the corpus: no plots, no blank texts, the first of equal texts.

    Stray spaces are removed first. They make two films of one, and two reviews of one.
    """
    reviews = corpus[corpus["category"].isin(["fresh", "rotten"])].dropna(subset="text")
    reviews = reviews.rename(
        columns={"movie_name": "film", "category": "verdict", "text": "review"}
    )[["film", "verdict", "review"]]
    for column in ("film", "review"):
        reviews[column] = reviews[column].str.split().str.join(" ")
    return reviews[reviews["review"] != ""].drop_duplicates("review", ignore_index=True)


def is_held_out(film: str) -> bool:
    """Tell on which side a film is, by a hash of its name that no library version changes."""
    digest = hashlib.sha256(film.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def make_dialogues(rows: int = 1000, seed: int = 0) -> DataFrame:
    """Return a table of support dialogues. With the same seed, more rows begin with the same ones.

    No person, address or number is real: telephone numbers are of the block 555-01xx, which is
    kept for fiction, and e-mail goes to the domains that RFC 2606 reserves.

    Args:
        rows: of the table.
        seed: decides everything.

    Returns:
        Columns `text`, `topic` (delivery, refund, damage or moving), `satisfied` ("yes" or "no"),
        and `secrets`: JSON of what is private in the text, by kind. Each value stands there once.

    Raises:
        ValueError: fewer than one row.
    """
    import pandas as pd

    if rows < 1:
        raise ValueError("there is no table of no rows")
    rng = np.random.default_rng(seed)
    return pd.DataFrame([_make_dialogue(rng) for _ in range(rows)])


def _make_dialogue(rng: np.random.Generator) -> dict[str, str]:
    # Every draw moves the generator, so the order of these lines decides the table.
    def choose(some: list[str] | str) -> str:
        return str(some[int(rng.integers(len(some)))])

    def draw_word(kind: str) -> str:
        return choose(_WORDS[kind])

    def draw_digits(many: int) -> str:  # the first is no zero
        return str(rng.integers(10 ** (many - 1), 10**many))

    topic, satisfied = choose(list(_TURNS["wish"])), choose(list(_TURNS["last"]))
    first, last = draw_word("first"), draw_word("last")
    street = f"{draw_word('street')} {draw_word('way')}"
    town = f"{draw_word('town')}, {draw_word('state')}"
    secrets = {
        "name": f"{first} {last}",
        "phone": f"({draw_digits(3)}) 555-01{draw_digits(2)}",
        "email": f"{first}.{last}{draw_digits(2)}@{draw_word('domain')}".lower(),
        "address": f"{rng.integers(1, 9999)} {street}, {town} {draw_digits(5)}",
        "order_number": f"{draw_digits(3)}-{draw_digits(5)}-{draw_digits(4)}",
    }
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    tail = "".join(choose(letters + "0123456789") for _ in range(7))
    # Two letters and eight digits or letters, with one digit at least.
    secrets["tracking_number"] = f"{choose(letters)}{choose(letters)}{tail}{draw_digits(1)}"
    asked = ["name", *sorted(rng.permutation(list(_TURNS["question"])[1:])[:2])]
    greeting, wish = choose(_TURNS["greeting"]), choose(_TURNS["wish"][topic])
    turns = [("SYS", greeting), ("USR", wish.format(thing=draw_word("thing")))]
    for kind in asked:
        turns += [
            ("SYS", choose(_TURNS["question"][kind])),
            ("USR", choose(_TURNS["answer"][kind]).format(secrets[kind])),
        ]
    turns += [
        ("SYS", _TURNS["end"][topic].format(**secrets)),
        ("USR", choose(_TURNS["last"][satisfied])),
    ]
    said = {kind: secrets[kind] for kind in KINDS if kind in (*asked, "tracking_number")}
    text = "\n".join(f"{role}: {words}" for role, words in turns)
    return {TEXT: text, TOPIC: topic, SATISFIED: satisfied, SECRETS: json.dumps(said)}
