"""Masked texts hold nothing of what is masked: the guarantee of selective privacy's first phase."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinset.policies.detection.detectors import Patterns
from twinset.policies.detection.masking import PLACEHOLDER, mask, masked, private_runs


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
    runs = private_runs(text, spans)
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
        ("Bo", [(0, 2)], "___"),
        ("a Bo Li b", [(2, 4), (5, 7)], "a ___ b"),
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
    texts = masked([f"Call {s} now." for s in shapes], Patterns(), lambda *done: calls.append(done))
    assert set(texts) == {"Call ___ now."}
    assert calls == [(n, 5) for n in range(1, 6)]
