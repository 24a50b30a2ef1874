"""Which label values become public, and that no record alone decides it."""

import pandas as pd
import pytest

from tests.helpers.refusals import SECRET, refusal
from twinset.errors import InputError
from twinset.table.labels import MANY_NUMBERS, LabelRules, nearest
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
        ({"a": 3, "b": 3}, False),
        ({"a": 30, "b": 2}, False),
        ({"1": 20, "2": 40, "3": 2, "4": 60, "5": 70}, False),  # stars
        ({"a": 495, "b": 4}, True),
        ({"a": 495, "b": 5}, False),
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
        ("positivee", "positive"),
        ("pasitive", "positive"),
        ("positive ", "positive"),
        ("NEGATIVE", "negative"),
        ("  Postive", "positive"),
        ("neutral", None),
        ("positiv3", None),  # a digit tells values apart
        ("pstve", None),
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


def test_that_variants_would_be_merged_is_said_whether_or_not_there_are_any():
    assert settled(table(EVEN), merge=True)[0].whose == {"label": "table, merged"}


def test_short_values_and_numbers_are_no_variants_of_each_other():
    for values in ("ABC", ["m", "f"], ["1", "2"], [1, 2, 3], [True, False], ["2019", "2020"]):
        frame = table([*values] * 20 + [values[0]])
        assert len(values_of(settled(frame, merge=True)[0])) == len(values)
    assert nearest("cats", ["cots", "bats"]) is None  # two are as near


def test_common_spellings_are_merged_only_by_case_and_blanks():
    frame = table(["Yes"] * 20 + ["yes"] * 30 + ["No"] * 50 + ["Nope"] * 30 + ["Nopes"] * 30)
    assert len(values_of(settled(frame)[0])) == 5
    assert values_of(settled(frame, merge=True)[0]) == ("No", "Nope", "Nopes", "yes")


def test_too_many_values_are_refused_first_and_numbers_are_offered_bins():
    said = refused(table([i + 0.5 for i in range(60)]))
    assert "60 distinct" in said and "`bins={'label': [0, 3, 5]}`" in said
    assert "bins" not in refused(table([f"{SECRET} {i}" for i in range(60)]))


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
    records, _ = settled(table([*EVEN, "rare"]), declared={"label": ["rare", *PAIR["label"]]})
    assert "rare" in values_of(records) and len(records) == 61


ODD = ["postive", "NEGATIVE", " positive", "other", "negatives", "posative", SECRET]


@pytest.mark.parametrize("left_out", range(0, 20, 3))
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


TYPES = [
    ([1, 2, 3] * 5, ["1", "2", "3", "4"], (1, 2, 3, 4), "int64"),
    ([1.5, 2.0] * 5, ["1.5", "2"], (1.5, 2.0), "float64"),
    ([1.0, 2.0] * 5, [1, 2], (1, 2), "int64"),
    ([True, False] * 5, ["true", "False"], (True, False), "bool"),
    (["1", "2"] * 5, [1, 2], ("1", "2"), "str"),
    (pd.Categorical(["a", "b"] * 5), ["b", "a", "c"], ("b", "a", "c"), "category"),
]


@pytest.mark.parametrize(("cells", "declared", "values", "dtype"), TYPES)
def test_declared_values_get_the_type_of_the_column(cells, declared, values, dtype):
    records, _ = settled(table(EVEN[:10]).assign(label=cells[:10]), declared={"label": declared})
    (attribute,) = records.schema.attributes
    assert (attribute.values, attribute.dtype) == (values, dtype)
    assert [type(v) for v in attribute.values] == [type(v) for v in values]
    assert set(records.labels) <= set(records.schema.combinations)


def test_a_declared_column_needs_no_attribute_and_another_name_is_refused():
    frame = table(EVEN, city=["a", "b"] * 30)
    records, _ = settled(frame, (), declared=PAIR)
    assert [a.name for a in records.schema.attributes] == ["label"]
    said = refused(frame, "city", declared=PAIR)
    assert said == "`labels`: 'label' is no label column; add it to `attributes`"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"declared": {"a": ["x"]}}, "give 2 to 100 different values for 'a'"),
        ({"declared": {"a": "xy"}}, "give a list"),
        ({"declared": {"a": [1, float("nan")]}}, "give a list"),
        ({"declared": {"a": [1, 10**5000]}}, "give a list"),
        ({"declared": {"a": ["x", " "]}}, "is blank"),
        ({"declared": {"a": ["x", "y\x07"]}}, "control"),
        ({"declared": {"a": [1, "1"]}}, "different"),
        ({"declared": {"a": list(range(101))}}, "2 to 100"),
        ({"bins": {"a": [0, 3]}}, "`bins`: give 3 to 101 rising numbers"),
        ({"bins": {"a": [0, float("inf"), 2]}}, "rising"),
        ({"bins": {"a": "012"}}, "rising"),
        ({"bins": {"a": 3}}, "`bins`: give a list for each column"),
        ({"declared": ["x", "y"]}, "`labels`: give a list for each column"),
        ({"bins": {"a": [0, 1, 2]}, "declared": {"a": ["x", "y"]}}, "has `labels` and `bins`"),
        ({"drop": True}, "`drop_undeclared` does nothing without `labels`"),
    ],
)
def test_what_cannot_be_declared(rules, said):
    assert said in refusal(LabelRules, **rules)


def test_declared_values_that_the_column_cannot_hold():
    frame = table([1, 2] * 10)
    assert "holds numbers; declare different numbers" in refused(frame, declared=PAIR)
    assert "different" in refused(frame, declared={"label": ["1", "1.0"]})


# --- bins ----------------------------------------------------------------------------------------


def test_many_numbers_that_become_public_are_offered_bins():
    for many in (MANY_NUMBERS - 1, MANY_NUMBERS):
        _, notes = settled(table([*range(many)] * 3))
        offer = f"`bins={{'label': [0, {many // 2}, {many - 1}]}}` would cut"
        assert any(offer in note for note in notes) == (many == MANY_NUMBERS)


def test_bins_have_their_upper_ends_and_the_first_both():
    frame = table([0, 2, 2.01, 5, 5.01, 10])
    records, _ = settled(frame, bins={"label": [0, 2, 5, 10, 20]})
    bins = ("0 to 2", "2 to 5", "5 to 10", "10 to 20")
    assert values_of(records) == bins and records.schema.attributes[0].dtype == "str"
    cut = pd.cut(frame.label, [0, 2, 5, 10, 20], labels=bins, include_lowest=True)
    assert [label for (label,) in records.labels] == cut.tolist()


def test_what_no_bin_holds_is_refused_or_left_out():
    frame = table([0, 1, 2, 30, -1, SECRET, 4, 3]).astype({"label": str})
    rules = {"bins": {"label": [0, 2, 5]}}
    assert "`bins` does not declare in 3 of 8 rows (rows 4, 5, 6)" in refused(frame, **rules)
    assert len(settled(frame, **rules, drop=True)[0]) == 5


# --- the prompt's words --------------------------------------------------------------------------

MINE = PromptFile("mine", "{label}:", wording={"label": {"good": "fine", "bad": "poor"}})


@pytest.mark.parametrize(
    ("prompt", "found", "values"),
    [
        ("film-review", [1, 2, 4, 5], (1, 2, 3, 4, 5)),
        ("film-review", ["fresh", "rotten"], ("rotten", "fresh")),
        (Template("mine", "{sentiment}:", {}, ("sentiment",)), ["x", "y"], None),
        ("film-review", ["fresh", "rotten", "x"], None),
        (None, ["x", "y"], None),
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
    assert "too few" in refused(table(["good"] * 20 + ["bed"] * 20 + ["bad"]), prompt=MINE)
    records, _ = settled(table(once), declared={"label": ["bad", "good"]}, prompt=MINE)
    assert records.whose == {"label": "owner"}  # who wins over the prompt
