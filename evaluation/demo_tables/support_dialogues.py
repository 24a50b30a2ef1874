"""Made-up customer support dialogues with made-up personal data in known places.

In the manner of CustomerSim (Shi et al. 2022): an agenda of turns, several wordings of each, and
words for the gaps. Everything is drawn by the seed alone. No person, address or number is real:
telephone numbers are of the block 555-01xx, which is kept for fiction, and e-mail goes to the
domains that RFC 2606 reserves. Knows nothing of models and detectors.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

TEXT, TOPIC, SATISFIED, SECRETS = "text", "topic", "satisfied", "secrets"
KINDS = ("name", "phone", "email", "address", "order_number", "tracking_number")

_FIRST = """Agnes Albert Amira Anton Beatrice Boris Carla Cedric Clara Conrad Daphne Derek Edith
Elena Emmett Erik Fatima Felix Fiona Gerald Gloria Hassan Hazel Hector Helga Igor Imani Ingrid Irene
Jamal Jasper Joan Jonas Judith Karim Keiko Kira Lars Leona Lionel Lorna Lydia Magnus Maren Marcus
Mina Nadia Neville Nina Olga Oscar Paloma Percy Priya Ralph Ramona Renata Rupert Sabine Samir Selma
Simon Sonia Stella Tariq Thelma Tobias Ursula Viktor Wanda Wilma Xavier Yusuf Zelda""".split()
_LAST = """Abernathy Adair Alcott Ansari Bancroft Barnaby Beckett Bellweather Blackwood Boone Brandt
Calloway Carver Chen Conway Cordova Crane Dalton Danvers Delgado Drummond Eastwood Egan Ekberg
Fairbanks Falk Ferrara Finch Gallagher Garrison Glover Granger Hadley Halloran Hargrove Hawthorne
Ibarra Inglewood Jensen Joyce Kamara Keller Kendrick Kowalski Langley Larsen Lockhart Lombardi
Mackenzie Marchetti Mercer Montrose Nakamura Novak Oakley Okafor Ortega Pemberton Pickering Prescott
Quimby Ramsey Redfern Rossi Rutherford Sandoval Schubert Shepard Sinclair Stokes Thackeray Tremaine
Underwood Valdez Vaughn Wakefield Weller Whitlock Winslow Yamada Zimmer""".split()
_STREETS = "Alder Birch Canal Chapel Garden Harbor Hill Lake Maple Mill Orchard Park River Station"
_WAYS = "Avenue Close Court Drive Lane Road Row Square Street Terrace Walk Way"
_TOWNS = """Ashford Brightwater Cedarville Dunmore Eastbrook Fairhaven Glenwood Highfield Kingsport
Lakemont Northvale Oakhurst Pinecrest Riverton Springdale Westerly"""
_STATES = "AL AZ CA CO FL GA IL IN KS KY MA MD MI MN MO NC NJ NY OH OR PA TN TX UT VA WA WI"
_GOODS = """backpack bicycle blender bookcase camera carpet chair clock coat desk guitar headset
heater jacket kettle keyboard lamp mattress microscope mirror monitor pot printer radio scarf
skateboard sofa stove suitcase table teapot tent toaster vase watch"""
_DOMAINS = "example.com", "example.net", "example.org"

_GREETINGS = (
    "Hello, this is customer support. What can I do for you?",
    "Hi, you are talking to the support team. How can I help?",
    "Welcome to our service desk. What is it about?",
)
_WISHES = {
    "delivery": (
        "Hello. My {thing} has not arrived yet, where is it?",
        "Hi! I ordered a {thing} two weeks ago and can't track it.",
        "Could you tell me where my {thing} is? It should be here by now.",
    ),
    "refund": (
        "I sent the {thing} back and want my money.",
        "Hi. The {thing} does not fit, I would like a refund.",
        "Good morning, when will I be paid back for the {thing}?",
    ),
    "damage": (
        "The {thing} came broken. What now?",
        "Hello, there is a crack in the {thing} that you sent.",
        "My new {thing} stopped working after a day.",
    ),
    "moving": (
        "I am moving, please send the {thing} to my new place.",
        "Hi, the {thing} must go to another address.",
        "Could I change where my {thing} is delivered?",
    ),
}
_QUESTIONS = {
    "name": ("May I have your full name?", "Who am I talking to, please?", "Your name, please?"),
    "phone": ("What is your phone number?", "Under which number can we call you?"),
    "email": ("Which e-mail address did you use?", "Please tell me your e-mail address."),
    "address": ("What is the shipping address?", "Please confirm the address for the parcel."),
    "order_number": ("Verify your order number please.", "Could you give me the order number?"),
}
_ANSWERS = {
    "name": ("Sure, {}.", "My name is {}.", "{}.", "This is {}."),
    "phone": ("It's {}.", "You can reach me at {}.", "{}."),
    "email": ("It is {}", "Write to {}", "{}"),
    "address": ("Ok, it is {}.", "{}.", "Please send it to {}."),
    "order_number": ("It's {}.", "The number is {}.", "{}."),
}
_ENDS = {
    "delivery": "Your parcel is on its way, its tracking number is {tracking_number}.",
    "refund": "The refund is booked; its slip was sent under {tracking_number}.",
    "damage": "A new one was sent today, the tracking number is {tracking_number}.",
    "moving": "It will go there. Follow it with the tracking number {tracking_number}.",
}
_LAST_WORDS = {
    "yes": ("Great, thank you!", "That's it, thanks a lot.", "All good. See you."),
    "no": ("That does not help me at all.", "I am not happy with this.", "This took far too long."),
}


def support_dialogues(rows: int = 1000, seed: int = 0) -> DataFrame:
    """Return a table of dialogues; of the same seed, more rows begin with the same ones.

    Args:
        rows: how many.
        seed: of all draws.

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
    topic, satisfied = _one(rng, list(_WISHES)), _one(rng, list(_LAST_WORDS))
    secrets = _person(rng)
    asked = ["name", *sorted(rng.permutation(list(_QUESTIONS)[1:])[:2])]
    turns = [("SYS", _one(rng, _GREETINGS)), ("USR", _wish(rng, topic))]
    for kind in asked:
        turns += [
            ("SYS", _one(rng, _QUESTIONS[kind])),
            ("USR", _one(rng, _ANSWERS[kind]).format(secrets[kind])),
        ]
    turns += [("SYS", _ENDS[topic].format(**secrets)), ("USR", _one(rng, _LAST_WORDS[satisfied]))]
    said = {kind: secrets[kind] for kind in KINDS if kind in (*asked, "tracking_number")}
    text = "\n".join(f"{role}: {words}" for role, words in turns)
    return {TEXT: text, TOPIC: topic, SATISFIED: satisfied, SECRETS: json.dumps(said)}


def _wish(rng: np.random.Generator, topic: str) -> str:
    return _one(rng, _WISHES[topic]).format(thing=_one(rng, _GOODS.split()))


def _person(rng: np.random.Generator) -> dict[str, str]:
    first, last = _one(rng, _FIRST), _one(rng, _LAST)
    street = f"{_one(rng, _STREETS.split())} {_one(rng, _WAYS.split())}"
    town = f"{_one(rng, _TOWNS.split())}, {_one(rng, _STATES.split())}"
    return {
        "name": f"{first} {last}",
        "phone": f"({_digits(rng, 3)}) 555-01{_digits(rng, 2)}",
        "email": f"{first}.{last}{_digits(rng, 2)}@{_one(rng, _DOMAINS)}".lower(),
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


def _one(rng: np.random.Generator, some: tuple[str, ...] | list[str] | str) -> str:
    return str(some[int(rng.integers(len(some)))])
