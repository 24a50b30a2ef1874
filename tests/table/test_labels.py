"""Which label values become public, and that no record alone decides it."""

import pandas as pd
import pytest

from tests.helpers.refusals import SECRET, refusal
from twinset.errors import InputError
from twinset.table.labels import LabelRules, nearest
from twinset.table.records import records_from_frame
from twinset.table.templates import PromptFile, Template, load_template, written_template

PAIR = {"label": ["negative", "positive"]}
EVEN = ["positive", "negative"] * 30


def table(labels, **columns) -> pd.DataFrame:
    texts = [f"text number {i} of some words" for i in range(len(labels))]
    return pd.DataFrame({"review": texts, "label": list(labels), **columns})


def settled(frame, attributes=("label",), owner=None, **rules):
    """Return records and notes, under these rules."""
    return records_from_frame(
        frame, "review", list(attributes), source="t.csv", owner=owner, rules=LabelRules(**rules)
    )


def refused(frame, *attributes, **rules) -> str:
    return refusal(settled, frame, attributes or ("label",), **rules)


def values_of(records, number=0):
    return records.schema.attributes[number].values


# --- nothing is declared -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "is_rare"),
    [
        ({"a": 30, "b": 1}, True),  # without that record the value would not be there
        ({"a": 30, "b": 2}, False),
        ({"a": 4000, "b": 9}, True),
        ({"a": 4000, "b": 10}, False),
    ],
)
def test_a_value_that_few_records_hold_stops(counts, is_rare):
    frame = table([value for value, count in counts.items() for _ in range(count)])
    if is_rare:
        assert "to become public" in refused(frame)
        return
    records, notes = settled(frame)
    assert values_of(records) == tuple(counts) and records.whose == {"label": "table"}
    listed = ", ".join(map(repr, counts))
    assert f"of column 'label' become public as the table has them: {listed};" in notes[0]


@pytest.mark.parametrize("owners", [1, 2])
def test_what_one_owner_alone_holds_is_rare_however_many_records(owners):
    """A value that only one person has shows that this person is in the table."""
    who = [*range(40), *(100 + i % owners for i in range(20))]
    frame = table(["a"] * 20 + ["b"] * 20 + ["c"] * 20, who=who)
    assert len(settled(frame)[0]) == 60
    if owners == 1:
        assert "owners hold to become public (rows 41, 42" in refused(frame, owner="who")
    else:
        assert values_of(settled(frame, owner="who")[0]) == ("a", "b", "c")


@pytest.mark.parametrize("others", [20, 2000])
@pytest.mark.parametrize("value", ["other", "postive"])
def test_one_record_more_never_changes_the_list_that_is_published(others, value):
    """One of two such tables is refused."""
    lists = []
    for n in range(13):
        try:
            records, _ = settled(table([*["positive", "negative"] * (others // 2), *[value] * n]))
            lists.append(values_of(records))
        except InputError:
            lists.append(None)
    pairs = list(zip(lists, lists[1:], strict=False))
    assert all(one == other or None in (one, other) for one, other in pairs)
    assert lists[0] and lists[12] and lists[0] != lists[12] and lists[1] is None


def test_the_refusal_names_rows_and_common_values_and_no_rare_one():
    said = refused(table([*EVEN, SECRET, f"{SECRET}2", "postive"]))  # which asserts no SECRET
    assert "rows 61, 62, 63" in said and "postive" not in said
    assert "`merge_labels=True`" in said and "`drop_undeclared=True`" in said
    assert "`labels={'label': ['negative', 'positive']}`" in said
    assert "`merge_labels" not in refused(table([*EVEN, SECRET]))


@pytest.mark.parametrize(
    ("rare", "into"),
    [
        ("postive", "positive"),
        ("NEGATIVE", "negative"),
        ("neutral", None),
        ("positiv3", None),  # a digit tells values apart
    ],
)
def test_rare_variants_stop_and_are_merged(rare, into):
    frame = table([*EVEN, rare])
    if into is None:
        assert "`merge_labels" not in refused(frame)
        return
    assert "`merge_labels=True`" in refused(frame)
    assert "`merge_labels=True`" in refused(table([*EVEN, *[rare] * 4]))
    records, notes = settled(frame, merge=True)
    assert values_of(records) == ("negative", "positive") and records.labels[60:] == [(into,)]
    assert records.whose == {"label": "table, merged"}
    assert f"into {into!r}" in notes[0] and "row" in notes[0] and rare not in str(notes)


def test_short_values_and_numbers_are_no_variants_of_each_other():
    for values in ("ABC", ["m", "f"], ["1", "2"], [1, 2, 3], [True, False], ["2019", "2020"]):
        frame = table([*values] * 20 + [values[0]])
        assert len(values_of(settled(frame, merge=True)[0])) == len(values)
    assert nearest("cats", ["cots", "bats"]) is None  # two are as near


def test_what_gets_rare_when_other_rows_are_left_out_is_rare():
    frame = table(["good", "bad"] * 10 + [SECRET] * 5, city=["a", "b"] * 10 + ["c"] * 4 + ["b"])
    assert len(values_of(settled(frame, ["label", "city"])[0], 1)) == 3
    rules = {"declared": {"label": ["good", "bad"]}, "drop": True}
    assert values_of(settled(frame, ["label", "city"], **rules)[0], 1) == ("a", "b")
    frame.loc[24, ["label", "city"]] = "good", "c"
    assert "'city'" in refused(frame, "label", "city", **rules)


# --- declared ------------------------------------------------------------------------------------


def test_declared_values_are_all_public_and_the_only_ones():
    frame = table([*EVEN, SECRET, SECRET])
    rules = {"declared": {"label": ["positive", "mixed", "negative"]}}
    said = refused(frame, **rules)
    assert "`labels` does not declare in 2 of 62 rows (rows 61, 62)" in said
    records, notes = settled(frame, **rules, drop=True)
    assert values_of(records) == ("positive", "mixed", "negative") and len(records) == 60
    assert records.whose == {"label": "owner"}
    assert "leaving out 2 of 62 rows" in notes[0] and "no row has 'mixed'" in notes[1]
    assert SECRET not in str(notes)


ODD = ["postive", "NEGATIVE", " positive", "other", "negatives", "posative", SECRET]


@pytest.mark.parametrize("left_out", [0, 12, 15, 18])
def test_no_record_decides_the_label_of_another_where_values_are_declared(left_out):
    """Negative control: where the table merges, one record more does (below)."""
    frame = table([*EVEN[:13], *ODD])
    rules = {"declared": PAIR, "merge": True, "drop": True}
    whole, without = (settled(f, **rules)[0] for f in (frame, frame.drop(index=left_out)))
    pairs = set(zip(whole.texts, whole.labels, strict=True))
    assert set(zip(without.texts, without.labels, strict=True)) <= pairs
    assert len(pairs) - len(without.texts) in (0, 1) and whole.schema == without.schema


def test_where_the_table_merges_one_record_decides_for_others():
    frame = table(["positive"] * 60 + ["negative"] * 60 + ["postive"] * 10)
    assert len(values_of(settled(frame, merge=True)[0])) == 3
    assert len(values_of(settled(frame[:-1], merge=True)[0])) == 2


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"declared": {"a": ["x"]}}, "give 2 to 100 different values for 'a'"),
        ({"bins": {"a": [0, 3]}}, "`bins`: give 3 to 101 rising numbers"),
        ({"bins": {"a": [0, 1, 2]}, "declared": {"a": ["x", "y"]}}, "has `labels` and `bins`"),
        ({"drop": True}, "`drop_undeclared` does nothing without `labels`"),
    ],
)
def test_what_cannot_be_declared(rules, said):
    assert said in refusal(LabelRules, **rules)


# --- bins ----------------------------------------------------------------------------------------


def test_bins_have_their_upper_ends_and_the_first_both():
    frame = table([0, 2, 2.01, 5, 5.01, 10])
    records, _ = settled(frame, bins={"label": [0, 2, 5, 10, 20]})
    bins = ("0 to 2", "2 to 5", "5 to 10", "10 to 20")
    assert values_of(records) == bins and records.schema.attributes[0].dtype == "str"
    cut = pd.cut(frame.label, [0, 2, 5, 10, 20], labels=bins, include_lowest=True)
    assert [label for (label,) in records.labels] == cut.tolist()


# --- the prompt's words --------------------------------------------------------------------------

MINE = PromptFile("mine", "{label}:", wording={"label": {"good": "fine", "bad": "poor"}})


@pytest.mark.parametrize(
    ("prompt", "found", "values"),
    [
        ("film-review", [1, 2, 4, 5], (1, 2, 3, 4, 5)),
        ("film-review", ["fresh", "rotten"], ("rotten", "fresh")),
        (Template("mine", "{sentiment}:", {}, ("sentiment",)), ["x", "y"], None),
    ],
)
def test_words_of_the_prompt_declare(prompt, found, values):
    frame = table([*found] * 10 + [found[0]]).rename(columns={"label": "sentiment"})
    records, _ = settled(frame, ["sentiment"], prompt=written_template(prompt))
    assert values_of(records) == (values or tuple(sorted(found)))
    assert records.whose == {"sentiment": "prompt" if values else "table"}
    assert load_template("{sentiment}:" if values is None else prompt, records.schema)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_one_record_does_not_choose_the_prompts_scale(rows):
    """From four stars to five: what is published changes over a table that is refused."""
    frame = table([1, 2, 3, 4] * 10 + [5] * rows).rename(columns={"label": "sentiment"})
    words = {"prompt": written_template("film-review")}
    if rows == 1:
        assert "too few" in refused(frame, "sentiment", **words)
    else:
        whose = settled(frame, ["sentiment"], **words)[0].whose["sentiment"]
        assert whose == ("prompt" if rows else "table")


def test_words_for_single_values_declare_all_or_nothing():
    once = ["good"] * 20 + ["bad"]
    assert settled(table(once), prompt=MINE)[0].whose == {"label": "prompt"}
    said = "`prompt` does not declare in 1 of 22 rows"
    assert said in refused(table([*once, "bed"]), prompt=MINE)
    # not left out: where many have it, no word declares anything, and a record would decide that
    frame, declared = table([*once, "bed"], city=["a", "b"] * 11), {"city": ["a", "b"]}
    assert said in refused(frame, "label", "city", prompt=MINE, declared=declared, drop=True)
    records, _ = settled(table(once), declared={"label": ["bad", "good"]}, prompt=MINE)
    assert records.whose == {"label": "owner"}  # who wins over the prompt
