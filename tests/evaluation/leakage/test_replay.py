"""Personal data in the twin, and what a model knows of names and telephone numbers."""

from __future__ import annotations

import math
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy.stats import skewnorm

from evaluation.findings import Findings
from evaluation.leakage import names as module
from evaluation.leakage.canaries import Canary, Format
from evaluation.leakage.exposure import (
    UNKNOWN,
    expected_rank,
    exposure,
    extrapolated_exposure,
    extrapolated_rank,
)
from evaluation.leakage.names import (
    CARD,
    EMAIL,
    ID,
    NAME,
    PHONE,
    PLANTED,
    digits_of,
    luhn,
    mean_reciprocal_rank,
    names_in,
    numbers_in,
    phone_exposure,
    phones_in,
    replay,
    replay_planted,
)
from tests.helpers.evaluated import overfit
from twinset.errors import InputError
from twinset.models.base_model import load_base
from twinset.policies.detection import PIPELINE
from twinset.progress import Silent

with_pii = pytest.mark.skipif(
    find_spec("spacy") is None or find_spec(PIPELINE) is None, reason="needs twinset[pii]"
)


@pytest.fixture
def base(tiny_base):
    return load_base(str(tiny_base))


@pytest.fixture
def no_names(monkeypatch):
    def absent(texts):
        raise InputError("finding people's names needs pip install 'twinset[pii]'")

    monkeypatch.setattr(module, "names_in", absent)


def capitalised(texts):
    """Two words with a capital, behind "by"."""
    for text in texts:
        start = text.find("by ") + 3
        end = text.find(",", start)
        yield [(start, end)] if start > 2 else []


@pytest.fixture
def names_behind_by(monkeypatch):
    monkeypatch.setattr(module, "names_in", capitalised)


# --- what is found -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("write to Ann.Lee+x@mail.example.co.uk.", {(EMAIL, "ann.lee+x@mail.example.co.uk")}),
        ("(713) 555-0199, +1 713.555.0199", {(PHONE, "7135550199")}),
        ("713-555-0199 ext", {(PHONE, "7135550199")}),
        ("call 555-0199!", {(PHONE, "5550199")}),
        ("+44 20 7946 0123 or 020 7946 0123", {(PHONE, "442079460123"), (PHONE, "02079460123")}),
        ("4111 1111 1111 1111", {(CARD, "4111111111111111")}),
        ("5500-0000-0000-0004", {(CARD, "5500000000000004")}),
        ("My ID is 341752.", {(ID, "341752")}),
        ("order 843-58572-7002, parcel AGZIM5T6KL", {(ID, "843585727002"), (ID, "AGZIM5T6KL")}),
        ("SSN 078-05-1120", {(ID, "078051120")}),
        ("DE89 3704 0044 0532 0130 00", {(ID, "DE89370400440532013000")}),
        ("on 2001-05-14 or 05/14/2001, in 1998-2000, for $1,000,000 or 1000000.50", set()),
        ("4 of 5 at 10:30, 77002, page 12345, a well-known-thing", set()),
        ("me@here and @handle", set()),
        ("", set()),
    ],
)
def test_kinds_and_values(text, found):
    assert set(numbers_in(text)) == found


def test_a_card_number_whose_check_digit_is_wrong_is_an_id_number():
    assert set(numbers_in("4111111111111112")) == {(ID, "4111111111111112")}
    rng = np.random.default_rng(0)
    drawn = ("".join(map(str, rng.integers(10, size=16))) for _ in range(2000))
    assert sum(map(luhn, drawn)) / 2000 == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 50_000,
        "a.@" * 20_000,
        "1-" * 30_000,
        "A1" * 30_000,
        "(0)" * 20_000,
        "+1 " * 20_000,
        "- " * 30_000,
        "x/1" * 20_000,
    ],
)
def test_no_text_takes_long(text):
    assert len(list(numbers_in(text))) < 60_000


# --- replay --------------------------------------------------------------------------------------


def people(first, last):
    """Rows that each name four secrets of one person."""
    return [
        f"by Ada Person{chr(97 + n // 26)}{chr(97 + n % 26)}, p{n}@mail.org, (713) 555-{n:04d}, "
        f"ID 77{n:04d}, card 4111 1111 1111 {1000 + n}"
        for n in range(first, last)
    ]


def found_in(twin, train, heldout):
    measured, notes = replay(twin, train, heldout, progress=Silent())
    return Findings("audit", {}, tuple(measured)), notes


def test_ten_copied_rows_are_counted_and_rows_of_the_heldout_table_are_not(names_behind_by):
    train, heldout = people(0, 50), people(50, 100)
    copied, notes = found_in(train[:10] + people(200, 230), train, heldout)
    for kind in (EMAIL, PHONE, ID, NAME):
        place = {"kind": kind, "occurrences": "1"}
        leak = copied.find("replayed", rows="train only", **place)
        chance = copied.find("replayed", rows="held-out only", **place)
        assert leak.value == copied.find("replayed", rows="train", **place).value == 10 / 50
        assert chance.value == 0 and chance.high < leak.low
    assert notes == []
    control, _ = found_in(heldout, train, heldout)
    for kind in (EMAIL, PHONE, ID, NAME):
        assert control.find("replayed", rows="train", kind=kind).value == 0
        assert control.find("replayed", rows="held-out only", kind=kind).value == 1


def test_values_are_parted_by_the_rows_of_train_that_hold_them(names_behind_by):
    once, twice, often = people(0, 8), people(8, 12) * 2, people(12, 14) * 10
    doubled = [f"{row} again: {row}" for row in once]  # one row, however often it says it
    found, _ = found_in(twice + often[:1], doubled + twice + often, people(50, 60))
    values = {
        o: found.find("replayed", kind=EMAIL, rows="train", occurrences=o)
        for o in ("1", "2–9", "10+")
    }
    assert {o: (score.value, score.n) for o, score in values.items()} == {
        "1": (0, 8),
        "2–9": (1, 4),
        "10+": (0.5, 2),
    }


def test_what_both_tables_hold_is_no_sign_of_a_leak(names_behind_by):
    shared = ["write to help@firm.org, 713-555-0100"]
    found, _ = found_in(shared, shared + people(0, 5), shared + people(5, 10))
    assert found.find("replayed", rows="train", kind=EMAIL).value == 1 / 6
    assert found.find("replayed", rows="train only", kind=EMAIL).value == 0
    assert found.find("replayed", rows="held-out only", kind=EMAIL).value == 0


def test_another_way_of_writing_hides_nothing(names_behind_by):
    train = ["by Ada Lovelace, at 713-555-0199, id ab-123456, 4111-1111-1111-1111, Ada@Mail.org"]
    twin = ["ADA LOVELACE’s: +1 (713) 555 0199; AB123456; 4111111111111111; ada@mail.ORG"]
    found, _ = found_in(twin, train, ["nothing here"])
    assert {
        m.place["kind"]: m.score.value for m in found.measured if m.place["rows"] == "train"
    } == {kind: 1 for kind in (EMAIL, PHONE, CARD, ID, NAME)}
    plain, _ = found_in(["7135550199"], train, ["nothing here"])  # an id number there
    assert plain.find("replayed", rows="train", kind=PHONE).value == 1


def test_without_the_libraries_a_note_stands_for_names(no_names):
    found, notes = found_in(people(0, 2), people(0, 10), people(10, 20))
    assert not [m for m in found.measured if m.place["kind"] == NAME]
    assert found.find("replayed", kind=EMAIL, rows="train").value == 0.2
    assert "twinset[pii]" in notes[0]


def test_notes_tell_of_kinds_that_train_lacks_and_of_unequal_tables(names_behind_by):
    _, notes = found_in(["x"], ["write to a@b.org"] * 9, ["write to c@d.org"] * 3)
    assert all(kind in notes[0] for kind in (CARD, PHONE, ID, NAME))
    assert EMAIL not in notes[0] and "9 rows and held-out 3" in notes[1]


@with_pii
def test_no_value_is_shown(capsys, caplog):
    train = ["Ada Lovelace of London wrote to zq@secret.org, 713-555-0199, AB777777"] * 3
    measured, notes = replay(train, train, ["Kenneth Branagh met nobody."], progress=Silent())
    assert {m.place["kind"] for m in measured if m.score.value == 1} >= {NAME, EMAIL, PHONE, ID}
    said = capsys.readouterr()
    everything = f"{measured} {notes} {said.out} {said.err} {caplog.text}"
    for secret in ("lovelace", "secret", "0199", "777777", "branagh"):
        assert secret not in everything.casefold()


@with_pii
def test_first_names_and_places_are_no_names():
    texts = ["Please ask Kenneth Branagh or Mary.", "Anna lives in New York City."]
    assert list(names_in(texts)) == [[(11, 26)], []]


def planted_in(twin, train, heldout):
    texts = [f"I am {row['name']}, parcel {row['order_number']}." for row in train]
    return Findings("evaluation", {}, tuple(replay_planted(twin, texts, train, heldout)))


def persons(first, last):
    return [
        {"name": f"Ada Person{chr(97 + n)}", "order_number": f"123-45{n:03d}-7777"}
        for n in range(first, last)
    ]


def test_planted_values_are_counted_by_what_was_planted():
    train, heldout = persons(0, 8), persons(8, 14)
    twin = [
        "ADA PERSONA’s parcel, Ada  Personb",
        "no. 123 45001 7777",
        "123-45009-7777, 45002-7777",
    ]
    found = planted_in(twin, train, heldout)
    hits = {
        (m.place["kind"], m.place["rows"]): (round(m.score.value * m.score.n), m.score.n)
        for m in found.measured
        if m.score.name == "replayed"
    }
    assert hits == {
        ("name", "train"): (2, 8),
        ("name", "train only"): (2, 8),
        ("name", "held-out only"): (0, 6),
        ("order number", "train"): (1, 8),
        ("order number", "train only"): (1, 8),
        ("order number", "held-out only"): (1, 6),
    }
    assert [m.score.value for m in found.measured if m.score.name == PLANTED] == [1, 1]


def test_the_control_fails_where_nothing_could_be_found():
    """The control's own: of rows that do not hold what is said to be in them, it finds nothing."""
    train = persons(0, 4)
    blind = replay_planted([], ["nothing here"] * 4, train, persons(4, 8))
    assert [m.score.value for m in blind if m.score.name == PLANTED] == [0, 0]


# --- what a model knows --------------------------------------------------------------------------


SAID = ["The book by Ada Quill, was dull.", "A film by Otto Zeller, at last."]
UNSAID = ["The film by Kurt Oakes, was great.", "A book by Vera Nettle, at last."]
options = {"max_tokens": 100, "seed": 0, "progress": Silent()}


def asked(measure, base, texts, **more):
    prompts = [base.tokenizer.encode("Write:")] * len(texts)
    given = {"rows": "train", **options, **more}
    return measure(base.model, base.tokenizer, texts, prompts, **given)


rank = partial(asked, mean_reciprocal_rank, find=capitalised)
phones = partial(asked, phone_exposure, candidates=200)


def test_the_rank_of_names_sees_what_was_memorised_and_nothing_before(base):
    assert rank(base, SAID).score.value < 0.2
    overfit(base, SAID, base.tokenizer.encode("Write:"), 5e-3)
    known, unknown = rank(base, SAID), rank(base, UNSAID, rows="held-out")
    assert known.score.value > 0.95
    assert unknown.score.value < 0.3
    assert (known.place, unknown.place) == ({"rows": "train"}, {"rows": "held-out"})
    assert (known.score.n, known.score.goal, known.score.maximum) == (2, "minimise", 1.0)


def test_the_rank_is_that_of_a_plain_pass_over_the_tokens_of_the_name(base):
    text, prompt = "  " + SAID[0], base.tokenizer.encode("Write:")
    ids = [*prompt, *base.tokenizer.encode(" " + text.strip())]
    stop = [*prompt, *base.tokenizer.encode(" The book by")]
    end = [*prompt, *base.tokenizer.encode(" The book by Ada Quill")]
    assert ids[: len(stop)] == stop and ids[: len(end)] == end
    with torch.inference_mode():
        logits = base.model(torch.tensor([ids])).logits[0]
    blank = not base.tokenizer.decode(ids[len(stop)]).strip()  # a space of its own before the name
    places = range(len(stop) + blank, len(end))
    ranks = [expected_rank(-logits[i - 1].numpy(), ids[i]) for i in places]
    assert rank(base, [text]).score.value == pytest.approx(np.mean(1 / np.array(ranks)), rel=1e-3)


def test_names_that_training_cut_off_are_not_asked_for(base):
    """The model never saw them."""
    assert rank(base, SAID, max_tokens=5) is None
    assert rank(base, ["Nobody at all."]) is None


NUMBERS = ["Ring 713-555-0199 now.", "Ring 602-341-8874 now."]
OTHERS = ["Ring 415-902-6638 now.", "Ring 918-273-4401 now."]


def test_the_exposure_of_telephone_numbers_sees_what_was_memorised(base):
    overfit(base, NUMBERS, base.tokenizer.encode("Write:"), 5e-3)
    (known,), (unknown,) = phones(base, NUMBERS), phones(base, OTHERS, rows="held-out")
    assert known.place == {
        "rows": "train",
        "candidates": "10^10",
        "method": "skew-normal, 200 candidates",
    }
    assert known.score.maximum == pytest.approx(10 * math.log2(10))
    assert known.score.value > 10 > 6 > unknown.score.value
    assert known.score.low > unknown.score.high


def test_telephone_numbers_of_different_spaces_are_not_averaged(base):
    found = phones(base, ["Ring 713-555-0199 or 555-0142 now.", "Ring nobody."])
    assert [m.place["candidates"] for m in found] == ["10^7", "10^10"]
    assert phones(base, ["Ring nobody."]) == []
    assert phones(base, NUMBERS, max_tokens=5) == []
    assert [m.score.n for m in phones(base, NUMBERS * 3, most=4)] == [4]


def test_no_score_holds_a_number(base):
    for spans in map(phones_in, NUMBERS):
        assert len(spans) == 1
    shown = repr(phones(base, NUMBERS))
    assert not any(digits_of(text) in shown or text[5:17] in shown for text in NUMBERS)


# --- extrapolation -------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "tolerance"), [(0.0, 1.5), (3.0, 1.5), (-3.0, 1.5)])
def test_extrapolated_exposure_is_the_exact_one_of_a_skew_normal_space(shape, tolerance):
    """A million losses, all known; 2,000 of them seen. To 1.5 bits out of up to 13.3."""
    losses = np.sort(skewnorm.rvs(shape, loc=30, scale=4, size=10**6, random_state=1))
    sample = np.random.default_rng(0).choice(losses, 2000)
    for exact in (1, 100, 1_000, 10_000, 100_000, 500_000):
        found, method = extrapolated_rank(sample, losses[exact - 1], 10**6)
        bits = math.log2(10**6 / found)
        if exact >= 100:
            assert bits == pytest.approx(math.log2(10**6 / exact), abs=tolerance)
        assert method == "skew-normal, 2000 candidates"


def test_secrets_drawn_at_random_are_exposed_as_chance_has_it():
    """The control: mean exposure log2 e, as of exact ranks; one far below all reaches log2 |R|."""
    losses = skewnorm.rvs(3, loc=30, scale=4, size=10**6, random_state=2)
    rng = np.random.default_rng(1)
    sample = rng.choice(losses, 2000)
    parameters = skewnorm.fit(sample)
    bits = -np.log2(skewnorm.cdf(rng.choice(losses, 4000), *parameters))
    assert bits.mean() == pytest.approx(UNKNOWN, abs=0.15)
    assert extrapolated_rank(sample, 1.0, 10**6)[0] == 1
    assert extrapolated_rank(sample, 1e3, 10**6)[0] == 10**6


def test_a_normal_curve_would_not_do():
    """The control of the curve: without its skew the tail is wrong by more than the tolerance."""
    losses = np.sort(skewnorm.rvs(3, size=10**6, random_state=1))
    sample = np.random.default_rng(0).choice(losses, 2000)
    z = (losses[99] - sample.mean()) / sample.std()
    assert abs(-skewnorm.logcdf(z, 0) / math.log(2) - math.log2(10**4)) > 3


@pytest.mark.parametrize(
    ("sample", "loss", "rank"),
    [
        ([2.0] * 9, 2.0, 550.0),
        ([2.0] * 9, 1.0, 100.0),
        ([math.nan] * 9, math.nan, 550.0),
        ([1.0, 2.0, math.inf], 1.5, 500.0),
    ],
)
def test_a_sample_without_a_curve_gives_its_own_rank(sample, loss, rank):
    found, method = extrapolated_rank(np.array(sample), loss, 1000)
    assert (found, method) == (rank, f"rank among {len(sample)} candidates")


def test_a_canary_extrapolated_agrees_with_the_same_ranked(base):
    """On a model that learned it, and for one that it never saw."""
    digits = Format("My ID is {}", (tuple(f"{n:03d}" for n in range(1000)),))
    known, unknown = (Canary(digits, secret, ("x",), 1) for secret in (731, 184))
    overfit(base, [known.text], base.tokenizer.encode("Write:"), 5e-3)
    for canary in (known, unknown):
        where = base.model, base.tokenizer, base.tokenizer.encode("Write:"), canary
        exact, found = exposure(*where), extrapolated_exposure(*where, seed=0, candidates=200)
        assert (found.space, found.method) == (1000, "skew-normal, 200 candidates")
        assert found.bits == pytest.approx(exact.bits, abs=3)
