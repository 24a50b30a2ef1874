"""A table becomes records and a schema, or is refused in one line that holds no cell."""

import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.refusals import SECRET, assert_silent, refusal
from tests.helpers.tables import with_found
from twinset.errors import InputError
from twinset.sampling.twin_model import twin_frame
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame
from twinset.table.records import records_from_frame, without_reserved
from twinset.table.schema import ORDERED, Schema

REVIEWS = [f"review number {i} says {SECRET} again and again" for i in range(6)]


def table(**columns: object) -> pd.DataFrame:
    base: dict[str, object] = {"id": range(6), "mood": ["good", "bad"] * 3, "review": REVIEWS}
    return pd.DataFrame(base | columns)


def refused(frame: pd.DataFrame, text: str | None, attributes: list[str], **options) -> str:
    message = refusal(records_from_frame, frame, text, attributes, source="t.csv", **options)
    assert message.startswith("t.csv: ")
    return message


# --- guesses, and names that may be cells ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "attributes", "part"),
    [
        ("review", ["mood", "mood"], "name a column twice"),
        ("mood", ["mood"], "name a column twice"),
        ("id", ["mood"], "column 'id' holds no text"),
    ],
)
def test_columns_that_are_refused(text, attributes, part) -> None:
    assert part in refused(table(), text, attributes)


@pytest.mark.parametrize(
    ("names", "is_told"),
    [
        ({"review": "Comment"}, True),
        ({"review": "comment_en"}, True),
        ({"review": "Great stay"}, False),  # short, as a text may be
        ({"review": "Ann Lee"}, False),
        ({"who": "u-7"}, False),  # a value that no other row has, as each row has its own
        ({"review": "Ann Lee", "mood": "good"}, False),
        ({"review": "Ann Lee", "id": "17"}, False),
        ({"review": "Ann Lee has a fever and stays"}, False),
        ({"review": "Fever, none"}, False),  # a short sentence
    ],
)
def test_a_row_taken_for_the_header_is_never_quoted(names, is_told) -> None:
    frame, renamed = table(who=[f"u-{i}" for i in range(6)]), next(iter(names))
    message = refused(frame.rename(columns=names), "text", [])
    assert (names[renamed] in message) == is_told
    assert is_told or f"number {list(frame).index(renamed) + 1}" in message


def test_a_key_that_some_rows_lack_is_data(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"review": f"text number {i} of some words"} for i in range(8)]
    rows = [row | ({"mood": "ab"[i % 2]} if i else {}) for i, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame = read_frame(path)
    said = refusal(records_from_frame, frame, "review", [], drop_empty=True)
    assert "column 'mood' is not in every row, but may be a column of labels" in said
    assert "'mood' is missing" in refusal(records_from_frame, frame, "review", ["mood"])
    records, notes = records_from_frame(frame, "review", ["mood"], drop_empty=True)
    assert records.schema.columns == ("review", "mood") and len(records) == 7
    assert "not every row has column 'mood'. You named it, so its name is public." in notes


# --- cells ----------------------------------------------------------------------------------------


def test_special_tokens_are_removed_record_by_record_or_refused_strictly() -> None:
    reviews = pd.Series([None, "a <s> here", "<s></s>", "a <</s>s> b", "c", "d"], dtype=object)
    frame, named, tokens = table(review=reviews), ("review", ["mood"]), ["</s>", "<s>", " "]
    records, _ = records_from_frame(frame, *named, drop_empty=True)
    found, notes = without_reserved(records, frame, tokens)
    assert list(found.texts) == ["a   here", "  ", "a < s> b", "c", "d"]
    assert notes == [
        "removed special tokens of the base model from 3 texts (`strict` refuses them)"
    ]
    nested = table(review=["<s " * 50_000 + "s>" * 50_000, *"abcde"])  # it takes one reading
    deep, _ = without_reserved(records_from_frame(nested, *named)[0], nested, ["<s s>"])
    assert "<s s>" not in deep.texts[0] and "!" in deep.texts[0]
    # one record more changes no other
    less, _ = records_from_frame(frame.drop(1), *named, drop_empty=True)
    assert list(without_reserved(less, frame, tokens)[0].texts) == list(found.texts)[1:]
    assert without_reserved(found, frame, tokens)[1] == []
    later = refusal(without_reserved, records, frame, tokens, "t.csv", strict=True)
    assert "row 2: contains a special" in later and ", as do 2 more rows. Remove" in later
    frame = table(mood=["a", "b<s>"] * 3)
    records, _ = records_from_frame(frame, *named)
    said = refusal(without_reserved, records, frame, ["<s>"])
    assert "'mood', row 2: contains a special" in said and ", as do 2 more rows. Remove" in said
    alone = table(mood=["a", "b<s>"] + ["a"] * 4)
    only = refusal(without_reserved, records_from_frame(alone, *named)[0], alone, ["<s>"])
    assert only.endswith("token of the base model. Remove it."), only


# --- dtypes ---------------------------------------------------------------------------------------

COLUMNS = {
    "int64": pd.Series([3, 1, 2] * 4),
    "bool": pd.Series([True, False, True] * 4),
    "float64": pd.Series([3.0, 1.0, 2.0] * 4),
    "halves": pd.Series([0.5, 1.0, 1.5] * 4, dtype="float32"),
    "str": pd.Series(["c", "a", "NA"] * 4),
    "category": pd.Series(["c", "a", "b"] * 4, dtype="category"),
    "ordered": pd.Series(pd.Categorical(["lo", "hi", "mid"] * 4, ["lo", "mid", "hi"], True)),
}
# In memory a gap makes floats of whole numbers, and one number a wider type.
BY_VALUES = {"float64": "int64", "halves": "float64"}
ORDER = {"ordered": ("lo", "mid", "hi"), "category": ("a", "b", "c"), "float64": (1, 2, 3)}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_twin_has_the_tables_dtypes(name: str) -> None:
    frame = pd.DataFrame({"label": COLUMNS[name], "text": [f"text {i}" for i in range(12)]})
    records, notes = records_from_frame(frame, "text", ["label"], rules=LabelRules())
    assert notes == []
    records = with_found(records, notes)
    said = "column 'label' holds whole numbers as float64. The twin has int64."
    assert (said in notes) == (name == "float64") and len(notes) == 1 + (name == "float64")
    schema = Schema.from_dict(json.loads(json.dumps(asdict(records.schema))))
    (attribute,) = schema.attributes
    assert all(type(v) in (int, str, bool, float) for v in attribute.values)
    assert attribute.values == ORDER.get(name, attribute.values)
    assert (attribute.dtype == ORDERED) == (name == "ordered")
    if name in BY_VALUES:
        frame = frame.astype({"label": BY_VALUES[name]})
    pd.testing.assert_frame_equal(twin_frame(schema, records.texts, records.labels), frame)
    shuffled, _ = records_from_frame(frame[::-1], "text", ["label"])
    assert shuffled.schema == records.schema  # the order of the rows is not in the schema


def test_an_ordered_text_column_becomes_a_plain_category() -> None:
    texts = pd.Categorical([f"text {i}" for i in range(12)], ordered=True)
    frame = pd.DataFrame({"label": COLUMNS["str"], "text": texts})
    schema = records_from_frame(frame, "text", ["label"])[0].schema
    assert twin_frame(schema, ["new"], [("a",)])["text"].dtype == "category"


NARROW = {
    "int8": ([1, 2, 300], "int64"),
    "Int8": ([1, 2, 300], "Int64"),
    "int8[pyarrow]": ([1, 2, 300], "int64[pyarrow]"),
    "float32": ([0.5, 2.5, 1e300], "float64"),
    "Float32": ([0.5, 2.5, 1e300], "Float64"),
    "string": (["a", "b", "c"], "string"),
}


@pytest.mark.parametrize("narrow", NARROW)
def test_one_cell_in_memory_decides_no_dtype(narrow: str) -> None:
    (*values, wide), expected = NARROW[narrow]
    label, found = pd.Series(values * 6, dtype=narrow), []
    for cells in (label, pd.concat([label.astype(expected), pd.Series([wide], dtype=expected)])):
        texts = pd.Series([f"text {i}" for i in range(len(cells))], dtype="string")
        frame = pd.DataFrame({"label": cells.to_numpy(), "text": texts.to_numpy()})
        frame = frame.astype({"label": cells.dtype, "text": "string"})
        declared = LabelRules({"label": values}, drop=True)
        found.append(records_from_frame(frame, "text", ["label"], rules=declared)[0].schema)
    assert found[0] == found[1] and found[0].attributes[0].dtype == expected
    assert found[0].text_dtype == "string"


# --- any table ------------------------------------------------------------------------------------

kinds = [st.booleans(), st.integers(), st.floats(), st.binary(max_size=2), st.dates()]
texts = [st.text(max_size=5).map(lambda t: SECRET + t), st.lists(st.just(SECRET), max_size=1)]
cells = st.one_of(*kinds, *texts, st.sampled_from([None, SECRET, pd.NA]))
columns = st.lists(cells, min_size=8, max_size=8) | st.lists(
    st.sampled_from([SECRET, f"{SECRET} a b c", f"{SECRET}\x00", "", "p"]), min_size=8, max_size=8
)


@settings(max_examples=25, deadline=None)
@given(
    data=st.dictionaries(st.sampled_from(["text", "label", "other"]), columns),
    text=st.sampled_from([None, "text", "label"]),
    attributes=st.lists(st.sampled_from(["label", "other"]), max_size=2),
    drop=st.booleans(),
    typed=st.booleans(),
)
def test_any_table_is_read_or_refused_in_one_silent_line(
    data: dict[str, list], text: str | None, attributes: list[str], drop: bool, typed: bool
) -> None:
    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in data.items()})
    frame = frame.infer_objects() if typed else frame
    try:
        records, notes = records_from_frame(frame, text, attributes, drop_empty=drop)
        without_reserved(records, frame, ["<s>"], strict=True)
    except InputError as error:
        assert_silent(error)
        assert "\n" not in str(error)
        return
    assert not any(SECRET in note for note in notes)
    assert set(records.labels) <= set(records.schema.combinations)
    twin = twin_frame(records.schema, records.texts, records.labels)
    assert twin[records.schema.text].tolist() == list(records.texts)
