"""Personal data in the twin, and what a model knows of names and telephone numbers."""

import math
from functools import partial
from importlib.util import find_spec

import pytest

from evaluation.findings import Findings
from evaluation.leakage import names as module
from evaluation.leakage.names import (
    CARD,
    EMAIL,
    ID,
    NAME,
    PHONE,
    PLANTED,
    digits_of,
    mean_reciprocal_rank,
    names_in,
    numbers_in,
    phone_exposure,
    replay,
    replay_planted,
)
from tests.helpers.evaluated import PROMPT, overfit, records_of, twin_of
from twinset.models.base_model import load_base
from twinset.policies.detection import PIPELINE
from twinset.progress import Silent

with_pii = pytest.mark.skipif(
    find_spec("spacy") is None or find_spec(PIPELINE) is None, reason="needs twinset[pii]"
)


def capitalised(texts):
    """Two words with a capital, behind "by"."""
    for text in texts:
        start = text.find("by ") + 3
        end = text.find(",", start)
        yield [(start, end)] if start > 2 else []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("write to Ann.Lee+x@mail.example.co.uk.", {(EMAIL, "ann.lee+x@mail.example.co.uk")}),
        ("(713) 555-0199, +1 713.555.0199", {(PHONE, "7135550199")}),
        ("+44 20 7946 0123 or 020 7946 0123", {(PHONE, "442079460123"), (PHONE, "02079460123")}),
        ("4111 1111 1111 1111", {(CARD, "4111111111111111")}),
        ("4111111111111112", {(ID, "4111111111111112")}),  # a wrong check digit
        ("order 843-58572-7002, parcel AGZIM5T6KL", {(ID, "843585727002"), (ID, "AGZIM5T6KL")}),
        ("DE89 3704 0044 0532 0130 00", {(ID, "DE89370400440532013000")}),
        ("on 2001-05-14, in 1998-2000, for $1,000,000 or 1000000.50", set()),
        ("4 of 5 at 10:30, 77002, page 12345, a well-known-thing, me@here and @handle", set()),
    ],
)
def test_kinds_and_values(text, found):
    assert set(numbers_in(text)) == found


@pytest.mark.parametrize("part", ["1", "a.@", "(0)"])
def test_no_text_takes_long(part):
    assert len(list(numbers_in(part * 25_000))) < 60_000


def people(first, last):
    """Rows that each name four secrets of one person."""
    return [
        f"by Ada Person{chr(97 + n // 26)}{chr(97 + n % 26)}, p{n}@mail.org, (713) 555-{n:04d}, "
        f"ID 77{n:04d}, card 4111 1111 1111 {1000 + n}"
        for n in range(first, last)
    ]


def found_in(twin, train, heldout):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "names_in", capitalised)
        measured, notes = replay(twin, train, heldout, progress=Silent())
    return Findings("audit", {}, tuple(measured)), notes


def test_ten_copied_rows_are_counted_and_rows_of_the_heldout_table_are_not():
    train, heldout = people(0, 50), people(50, 100)
    copied, notes = found_in(train[:10] + people(200, 230), train, heldout)
    control, _ = found_in(heldout, train, heldout)
    for kind in (EMAIL, PHONE, ID, NAME):
        place = {"kind": kind, "occurrences": "1"}
        leak = copied.find("replayed", rows="train only", **place)
        chance = copied.find("replayed", rows="held-out only", **place)
        assert leak.value == copied.find("replayed", rows="train", **place).value == 10 / 50
        assert chance.value == 0 and chance.high < leak.low
        assert control.find("replayed", rows="train", kind=kind).value == 0
        assert control.find("replayed", rows="held-out only", kind=kind).value == 1
    assert notes == []


def test_another_spelling_is_still_found():
    train = ["by Ada Lovelace, at 713-555-0199, id ab-123456, 4111-1111-1111-1111, Ada@Mail.org"]
    twin = ["ADA LOVELACE’s: +1 (713) 555 0199; AB123456; 4111111111111111; ada@mail.ORG"]
    found, _ = found_in(twin, train, ["nothing here"])
    kinds = {m.place["kind"]: m.score.value for m in found.measured if m.place["rows"] == "train"}
    assert kinds == dict.fromkeys((EMAIL, PHONE, CARD, ID, NAME), 1)
    plain, _ = found_in(["7135550199"], train, ["nothing here"])  # an id number there
    assert plain.find("replayed", rows="train", kind=PHONE).value == 1


@with_pii
def test_no_value_is_shown_and_first_names_and_places_are_no_names(capsys, caplog):
    texts = ["Please ask Kenneth Branagh or Mary.", "Anna lives in New York City."]
    assert list(names_in(texts)) == [[(11, 26)], []]
    train = ["Ada Lovelace of London wrote to zq@secret.org, 713-555-0199, AB777777"] * 3
    measured, notes = replay(train, train, ["Kenneth Branagh met nobody."], progress=Silent())
    assert {m.place["kind"] for m in measured if m.score.value == 1} >= {NAME, EMAIL, PHONE, ID}
    said = capsys.readouterr()
    everything = f"{measured} {notes} {said.out} {said.err} {caplog.text}"
    for secret in ("lovelace", "secret", "0199", "777777", "branagh"):
        assert secret not in everything.casefold()


def persons(first, last):
    return [
        {"name": f"Ada Person{chr(97 + n)}", "order_number": f"123-45{n:03d}-7777"}
        for n in range(first, last)
    ]


def test_planted_values_are_counted_exactly():
    train, heldout = persons(0, 8), persons(8, 14)
    texts = [f"I am {row['name']}, parcel {row['order_number']}." for row in train]
    twin = ["ADA PERSONA’s parcel, Ada  Personb", "no. 123 45001 7777", "123-45009-7777, 45002-77"]
    found = replay_planted(twin, texts, train, heldout)
    shares = {
        (m.place["kind"], m.place["rows"]): m.score.value
        for m in found
        if m.score.name == "replayed" and m.place["rows"] != "train"
    }
    assert shares == {
        ("name", "train only"): 2 / 8,
        ("name", "held-out only"): 0,
        ("order number", "train only"): 1 / 8,
        ("order number", "held-out only"): 1 / 6,
    }
    # The control's own: of rows that do not hold what is said to be in them, it finds nothing.
    blind = replay_planted([], ["nothing here"] * 8, train, heldout)
    for scores, share in ((found, 1), (blind, 0)):
        assert [m.score.value for m in scores if m.score.name == PLANTED] == [share] * 2


SAID = ["The book by Ada Quill, was dull.", "A film by Otto Zeller, at last."]
UNSAID = ["The film by Kurt Oakes, was great.", "A book by Vera Nettle, at last."]
NUMBERS = ["Ring 713-555-0199 now.", "Ring 602-341-8874 now."]
OTHERS = ["Ring 415-902-6638 now.", "Ring 918-273-4401 now."]


@pytest.fixture(scope="module")
def taught(tiny_base):
    """A model that knows two names and two numbers by heart."""
    base = load_base(str(tiny_base))
    overfit(base, SAID + NUMBERS, base.tokenizer.encode(PROMPT))
    return base


def ask(measure, base, texts, rows="train", max_tokens=100):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "names_in", capitalised)
        patch.setattr(module, "CANDIDATES", 200)
        patch.setattr(module, "MOST", 4)
        given = twin_of(base, max_tokens), records_of(texts), rows
        return measure(*given, seed=0, progress=Silent())


rank, phones = partial(ask, mean_reciprocal_rank), partial(ask, phone_exposure)


def test_rank_of_names_detects_memorised_names_only(tiny_base, taught):
    fresh = load_base(str(tiny_base))
    (before,), (known,) = rank(fresh, SAID), rank(taught, SAID)
    (unknown,) = rank(taught, UNSAID, "held-out")
    assert before.score.value < 0.2 and unknown.score.value < 0.3 and known.score.value > 0.95
    assert (known.place, unknown.place) == ({"rows": "train"}, {"rows": "held-out"})
    assert rank(fresh, SAID, max_tokens=5) == []  # training cut them off: it never saw them
    assert rank(fresh, ["Nobody at all."]) == []


def test_exposure_detects_memorised_telephone_numbers(taught):
    (known,), (unknown,) = phones(taught, NUMBERS), phones(taught, OTHERS, "held-out")
    method = "skew-normal, 200 candidates"
    assert known.place == {"rows": "train", "candidates": "10^10", "method": method}
    assert known.score.maximum == pytest.approx(10 * math.log2(10))
    assert known.score.value > 10 > 6 > unknown.score.value
    assert known.score.low > unknown.score.high
    shown = repr([known, unknown])
    assert not any(digits_of(text) in shown or text[5:17] in shown for text in NUMBERS)
