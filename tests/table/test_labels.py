"""What becomes of label values that are declared, and of those that were found."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from evaluation.release import records_to_frame
from tests.helpers.refusals import SECRET, refusal
from tests.helpers.tables import with_found
from twinset.config import RunConfig
from twinset.privacy.mechanism.randomness import Randomness
from twinset.table.columns import label_value
from twinset.table.labels import LabelRules, nearest, spelled_labels
from twinset.table.read import read_frame
from twinset.table.records import records_from_frame
from twinset.table.schema import Attribute, plain
from twinset.table.templates import PromptFile, Template, load_template, written_template

PAIR = {"label": ["negative", "positive"]}
EVEN = ["positive", "negative"] * 30
FOUND = {"label": {"positive": 31, "negative": 29}}
PRIVATE = RunConfig()


def table(labels, **columns) -> pd.DataFrame:
    texts = [f"text number {i} of some words" for i in range(len(labels))]
    return pd.DataFrame({"review": texts, "label": list(labels), **columns})


def settled(frame, attributes=("label",), owner=None, found=None, **rules):
    """Return records and notes, under these rules; of undeclared columns all values are found."""
    records, notes = records_from_frame(
        frame, "review", list(attributes), source="t.csv", owner=owner, rules=LabelRules(**rules)
    )
    return with_found(records, notes, found or {}), notes


def refused(frame, *attributes, **rules) -> str:
    return refusal(settled, frame, attributes or ("label",), **rules)


def values_of(records, number=0):
    return records.schema.attributes[number].values


# --- nothing is declared -------------------------------------------------------------------------


def test_found_values_become_public_and_other_rows_are_left_out():
    frame = table([*EVEN, SECRET, "postive"], who=[*range(20)] * 3 + [20, 0])
    for owner, units in ((None, 62), ("who", 21)):
        records, notes = settled(frame, owner=owner, found=FOUND)
        assert values_of(records) == ("negative", "positive")
        assert records.whose == {"label": "selected"} and len(records) == 60
        assert "leaving out 2 of 62 rows (rows 61, 62)" in str(notes)
        assert "become public by noisy counts: 'negative', 'positive'." in " ".join(notes)
        assert SECRET not in str(notes) and "postive" not in str(notes)
        own = records.units(PRIVATE)  # as many as before; one of them has no record any more
        drawn = own.draw(np.arange(len(own)), Randomness.for_tests(0).sampling)
        assert len(own) == units and sum(not unit for unit in drawn) == (1 if owner else 2)
        assert sorted(row for unit in drawn for row in unit) == [*range(60)]


@pytest.mark.parametrize(
    ("found", "said"),
    [({}, "has no value that is frequent enough"), ({"positive": 9}, "has only one value")],
)
def test_fewer_than_two_values_are_no_attribute(found, said):
    assert said in refused(table([*EVEN, SECRET]), found={"label": found})


@pytest.mark.parametrize(
    ("variant", "into"),
    [
        ("postive", "positive"),
        ("NEGATIVE", "negative"),
        ("neutral", None),
        ("positiv3", None),  # a digit tells values apart
    ],
)
def test_variants_of_found_values_are_merged(variant, into):
    frame = table([*EVEN, variant])
    assert len(settled(frame, found=FOUND)[0]) == 60
    records, notes = settled(frame, merge=True, found=FOUND)
    assert values_of(records) == ("negative", "positive")
    assert records.labels[60:] == ([(into,)] if into else [])
    said = f"into {into!r}" in str(notes) and "(row 61)" not in str(notes)
    assert said == (into is not None) and variant not in str(notes)


def test_of_found_values_that_differ_by_case_the_most_frequent_stays():
    frame = table([*EVEN, "Positive", "POSITIVE"])
    found = {"Positive": 40, "negative": 30, "positive": 29}
    records, _ = settled(frame, merge=True, found={"label": found})
    assert values_of(records) == ("Positive", "negative") and len(records) == 62
    assert len(values_of(settled(frame, found={"label": found})[0])) == 3


@pytest.mark.parametrize("other", ["a", SECRET, "3.5", "1.0"])
def test_types_of_labels_follow_from_the_found_values_alone(other, tmp_path):
    """Of a CSV: numbers, however other cells are written."""
    table(["1", "2"] * 20 + [other]).to_csv(tmp_path / "t.csv", index=False)
    frame = read_frame(tmp_path / "t.csv")
    cells = [label_value(value) for value in frame.label.unique() if plain(value) in ("1", "2")]
    records, _ = settled(frame, found={"label": dict.fromkeys(cells, 20)})
    assert records.schema.attributes[0] == Attribute("label", "int64", (1, 2))


@pytest.mark.parametrize(
    "cells",
    [["1", "2", "1 ", " 2"], ["true", "False", "TRUE", "False "], ["4.5", "3", "4.5", " 3"]],
)
def test_numbers_and_booleans_are_merged_alike_by_a_run_and_by_evaluate(cells, tmp_path):
    table(cells * 10).to_csv(tmp_path / "t.csv", index=False)
    frame, declared = read_frame(tmp_path / "t.csv"), [cell.strip() for cell in cells[:2]]
    counts = dict.fromkeys(frame.label.unique(), 10)
    records, _ = settled(frame, merge=True, found={"label": counts})
    rules = LabelRules({"label": records.schema.attributes[0].values}, merge=True)
    again, _ = records_from_frame(frame, "review", ["label"], rules=rules)
    assert len(records) == len(again) == 40 and list(again.labels) == list(records.labels)
    rules = LabelRules({"label": declared}, merge=True)
    assert len(records_from_frame(frame, "review", ["label"], rules=rules)[0]) == 40


def test_short_values_and_numbers_are_no_variants_of_each_other():
    for values in ("ABC", ["m", "f"], ["1", "2"], [1, 2, 3], [True, False], ["2019", "2020"]):
        frame = table([*values] * 20 + [values[0]])
        assert len(values_of(settled(frame, merge=True)[0])) == len(values)
    assert nearest("cats", ["cots", "bats"]) is None  # two are as near


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
    frame = table([*EVEN[:13], *ODD])
    rules = {"declared": PAIR, "merge": True, "drop": True}
    whole, without = (settled(f, **rules)[0] for f in (frame, frame.drop(index=left_out)))
    pairs = set(zip(whole.texts, whole.labels, strict=True))
    assert set(zip(without.texts, without.labels, strict=True)) <= pairs
    assert len(pairs) - len(without.texts) in (0, 1) and whole.schema == without.schema


@pytest.mark.parametrize("odd", ["n/a", "2", True, 3])
@pytest.mark.parametrize("usual", [[1, 2], ["1", "2"]])
@pytest.mark.parametrize("kind", ["xlsx", "jsonl"])
def test_a_label_of_another_kind_is_alone_in_it(tmp_path, kind, usual, odd):
    frame, path = table([odd, *usual * 20]), tmp_path / f"t.{kind}"
    (frame.to_excel if kind == "xlsx" else partial(frame.to_json, orient="records", lines=True))(
        path, **({"index": False} if kind == "xlsx" else {})
    )
    found = read_frame(path)
    if type(odd) is not type(usual[0]):
        said = refused(found)
        assert f"first in {'row 2' if kind == 'xlsx' else 'line 1'}" in said
        if kind == "jsonl":  # where cells have types, one would decide the type of all labels
            assert said in refused(found, declared={"label": usual}, drop=True)
            return
    whole, without = (
        settled(each, declared={"label": usual}, drop=True)[0] for each in (found, found[1:])
    )
    assert whole.schema == without.schema and list(whole.labels)[-40:] == list(without.labels)
    # evaluate, too, reads each label by itself
    spelt = spelled_labels(found["label"], without.schema.attributes[0], "t")
    assert spelt[1:] == ["1", "2"] * 20 and spelt[0] in (None, str(odd))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"declared": {"a": ["x"]}}, "give 2 to 100 different values for 'a'"),
        ({"bins": {"a": [0, 3]}}, "`bins`: give 3 to 101 rising numbers"),
        ({"bins": {"a": [0, 1, 2]}, "declared": {"a": ["x", "y"]}}, "has both `labels` and `bins`"),
        ({"drop": True}, "`drop_undeclared` does nothing without `labels`"),
    ],
)
def test_what_cannot_be_declared(rules, said):
    assert said in refusal(LabelRules, **rules)


COLLECTIONS = [
    np.array(["a", "b"]),
    pd.Index(["a", "b"]),
    pd.Series(["a", "b"]),
    pd.Series(["a", "b"], dtype="category").cat.categories,
    {"a": 1, "b": 2}.keys(),
    np.array([3.5, 1], "float32"),
    list(np.array([True, False])),
    range(1, 4),
]


@pytest.mark.parametrize("given", COLLECTIONS, ids=repr)
def test_values_are_declared_in_the_forms_of_pandas_and_numpy(given):
    rules = LabelRules({"a": given}, {"b": np.array([0, 2, 5])})
    assert rules.declared == {"a": [v.item() if hasattr(v, "item") else v for v in given]}
    assert {type(v) for v in rules.declared["a"]} <= {str, int, float, bool}
    assert rules.bins == {"b": [0, 2, 5]} and json.loads(json.dumps(rules.to_dict()))


# --- bins ----------------------------------------------------------------------------------------


def test_bins_have_their_upper_ends_and_the_first_both():
    frame = table([0, 2, 2.01, 5, 5.01, 10])
    records, _ = settled(frame, bins={"label": [0, 2, 5, 10, 20]})
    bins = ("0 to 2", "2 to 5", "5 to 10", "10 to 20")
    assert values_of(records) == bins and records.schema.attributes[0].dtype == "str"
    cut = pd.cut(frame.label, [0, 2, 5, 10, 20], labels=bins, include_lowest=True)
    assert [label for (label,) in records.labels] == cut.tolist()


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (("1500,50", "900,25", "2.500,00"), "high low high"),
        (("1,500.50", "900", "$2,500.00"), "high low high"),
        (("1500,50", "1,500", "900,00"), "high none low"),  # 1500 or 1.5
        (("1500,50", "0,900", "900,00"), "high low low"),  # 0.9 in either case
        (("1.250", "950", "2.750,50"), "none low high"),  # 1250 or 1.25
        (("1.250", "950", "2750"), "none low high"),  # pandas reads this column as numbers
        (("3.456", "950", "2750"), "low low high"),  # 3456 is outside
    ],
)
def test_bins_read_numbers_as_people_write_them(tmp_path, cells, labels):
    table(cells * 4).to_csv(tmp_path / "t.csv", index=False)
    records, notes = settled(
        read_frame(tmp_path / "t.csv"), bins={"label": [0, 1000, 3000]}, drop=True
    )
    names = {"low": "0 to 1000", "high": "1000 to 3000"}
    found = [names[label] for label in labels.split() if label in names]
    assert [label for (label,) in records.labels] == found * 4
    assert ("leaving out 4 of 12 rows" in str(notes)) == ("none" in labels)


BELOW, GERMAN = [1.234, 500.0, 2750.0], ["1.250", "950", "2.750,50"]


@pytest.mark.parametrize(
    ("cells", "edges", "source", "labels"),
    [
        (BELOW, [0, 1000, 3000], "csv", "none low high"),  # 1.234 or 1234
        *((BELOW, [0, 1000, 3000], kind, "low low high") for kind in ("xlsx", "parquet", "memory")),
        # 1.234 is below the lowest edge, and 1234 is no reading of a number's own cell
        *((BELOW, [100, 1000, 3000], kind, "none low high") for kind in ("csv", "xlsx", "parquet")),
        *((GERMAN, [0, 1000, 3000], kind, "none low high") for kind in ("csv", "xlsx", "parquet")),
        (GERMAN, [0, 1000, 3000], "memory", "none low high"),
    ],
)
def test_a_source_decides_whether_a_number_has_two_meanings(tmp_path, cells, edges, source, labels):
    frame = table(cells * 4)
    if source != "memory":
        path = tmp_path / f"t.{source}"
        {"csv": frame.to_csv, "xlsx": frame.to_excel, "parquet": frame.to_parquet}[source](
            path, index=False
        )
        frame = read_frame(path)
    records, notes = settled(frame, bins={"label": edges}, drop=True)
    names = {"low": f"{edges[0]} to 1000", "high": "1000 to 3000"}
    found = [names[label] for label in labels.split() if label in names]
    assert [label for (label,) in records.labels] == found * 4
    assert ("leaving out 4 of 12 rows" in str(notes)) == ("none" in labels)


def test_names_of_bins_are_read_as_bins(tmp_path):
    """Files of a run's own records have them, and are read by its rules."""
    bins = {"label": [0, 1000, 3000]}
    records, _ = settled(table([500, 1500] * 4), bins=bins)
    again, _ = settled(records_to_frame(records), bins=bins)
    assert list(again.labels) == list(records.labels)


def test_refused_numbers_of_two_meanings_are_explained(tmp_path):
    table(["1,500", "900"] * 4).to_csv(tmp_path / "t.csv", index=False)
    said = refused(read_frame(tmp_path / "t.csv"), bins={"label": [0, 1000, 3000]})
    assert "write 1,234 and 1.234 so that they have one meaning" in said


@pytest.mark.parametrize(
    ("cells", "declared"),
    [
        (("4.0", "1.0", "2.0"), [1, 2, 4]),  # as pandas writes them beside a gap
        (("0.5", "1.0", "1.5"), [0.5, 1, 1.5]),
        (("0.5", "1.0", "1.5"), ["0.5", "1", "1.5"]),
    ],
)
def test_declared_numbers_are_found_with_a_zero_behind_them(tmp_path, cells, declared):
    table(cells * 4).to_csv(tmp_path / "t.csv", index=False)
    records, _ = settled(read_frame(tmp_path / "t.csv"), declared={"label": declared})
    assert [label for (label,) in records.labels] == [float(cell) for cell in cells] * 4


def test_declared_versions_stay_apart(tmp_path):
    """The control: 3.10 is not 3.1."""
    table(["3.1", "3.10", "3.2"] * 4).to_csv(tmp_path / "t.csv", index=False)
    frame = read_frame(tmp_path / "t.csv")
    assert "in 4 of 12 rows" in refused(frame, declared={"label": [3.1, 3.2]})


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
    assert records.whose == {"sentiment": "prompt" if values else "selected"}
    assert load_template("{sentiment}:" if values is None else prompt, records.schema)


@pytest.mark.parametrize("fives", [0, 20])
def test_found_values_choose_the_prompts_scale(fives):
    frame = table([1, 2, 3, 4] * 10 + [5]).rename(columns={"label": "sentiment"})
    found = {1: 10, 2: 10, 3: 10, 4: 10} | ({5: fives} if fives else {})
    words = {"prompt": written_template("film-review"), "found": {"sentiment": found}}
    records, _ = settled(frame, ["sentiment"], **words)
    assert records.whose["sentiment"] == ("prompt" if fives else "selected")
    assert len(records) == (41 if fives else 40) and len(values_of(records)) == 4 + bool(fives)


def test_words_for_single_values_declare_all_or_nothing():
    frame, found = table(["good"] * 20 + ["bad", "bed"]), {"label": {"good": 20}}
    records, notes = settled(frame, prompt=MINE, found=found)
    assert records.whose == {"label": "prompt"} and len(records) == 21
    assert "a value that the `prompt` has no words for" in str(notes) and "row 22" in str(notes)
    assert settled(frame, prompt=MINE)[0].whose == {"label": "selected"}  # no words for a bed
    records, _ = settled(table(EVEN), declared=PAIR, prompt=MINE)
    assert records.whose == {"label": "owner"}  # who wins over the prompt
