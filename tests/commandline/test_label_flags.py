"""What is proposed can be pasted, whatever the values hold; what is given is read or refused."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.refusals import refusal
from twinset.commandline.entry_point import with_flags
from twinset.commandline.label_flags import flag_value, read_bins, read_labels
from twinset.table.labels import proposal

NAMES = st.text(st.characters(exclude_characters="="), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1)
ODD = st.sampled_from([" a", "a ", "@a", 'a"b', '"', "a,b", "a'b", "$(a)", "\\", "a b"])


@settings(deadline=None)
@given(NAMES, st.lists(VALUES | ODD, min_size=1, max_size=5))
def test_what_is_proposed_is_read_as_it_was_meant(name, values):
    (word,) = shlex.split(flag_value(str({name: values})))
    assert read_labels([word]) == {name: values}


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        (["a", "b"], "--labels city=a,b"),
        (["New York", "a, b"], "--labels 'city=New York,\"a, b\"'"),
        ([1, 2.5, True], "--labels city=1,2.5,True"),
        (["a`b", "c"], "--labels"),  # what stands in backticks cannot hold one
        (["a"], "--labels"),
        (["long" * 50, "c"], "--labels"),
    ],
)
def test_a_proposal_becomes_a_flag(values, flag):
    assert with_flags(f"try {proposal('labels', 'city', values)}.") == f"try {flag}."


@pytest.mark.parametrize("given", ["city", "=a,b", "city=", "city=@", "city=a\rb"])
def test_what_is_no_list_is_refused(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(read_labels, [given]).startswith("`labels")


@pytest.mark.parametrize("given", ["stars", "stars=a,b", "stars=1,,2", "=1,2,3", "stars=1\r2"])
def test_what_are_no_edges_is_refused(given):
    assert refusal(read_bins, [given]).startswith("`bins")


def test_a_file_has_a_value_a_line_whatever_it_begins_with(tmp_path):
    (tmp_path / "v.txt").write_text("\ufeffa, b\r\n\n@c\n", newline="")
    assert read_labels([f"city=@{tmp_path}/v.txt"]) == {"city": ["a, b", "@c"]}
    (tmp_path / "v.txt").write_bytes(b"caf\xe9\n")
    assert "UTF-8" in refusal(read_labels, [f"city=@{tmp_path}/v.txt"])
