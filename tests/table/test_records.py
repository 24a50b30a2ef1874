"""A table becomes records and a schema, or is refused in one line that holds no cell."""

import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.refusals import SECRET, assert_silent, refusal
from twinset.errors import InputError
from twinset.sampling.twin_model import twin_frame
from twinset.table.read import read_frame, write_frame
from twinset.table.records import check_reserved, read_records, records_from_frame
from twinset.table.schema import ORDERED, Schema

REVIEWS = [f"review number {i} says {SECRET} again and again" for i in range(6)]


def table(**columns: object) -> pd.DataFrame:
    base: dict[str, object] = {"id": range(6), "mood": ["good", "bad"] * 3, "review": REVIEWS}
    return pd.DataFrame(base | columns)


def refused(frame: pd.DataFrame, text: str | None, attributes: list[str], **options) -> str:
    message = refusal(records_from_frame, frame, text, attributes, source="t.csv", **options)
    assert message.startswith("t.csv: ")
    return message


def test_records_and_schema() -> None:
    frame = table(stars=[5, 1, 5, 1, 3, 3])
    records, notes = records_from_frame(frame, "review", ["stars", "mood"])
    assert len(records) == 6 and records.texts == REVIEWS
    assert records.labels[:2] == [(5, "good"), (1, "bad")]
    assert [type(value) for value in records.labels[0]] == [int, str]
    schema = records.schema
    assert schema.columns == ("mood", "review", "stars") and "id" not in str(schema.to_dict())
    assert [a.values for a in schema.attributes] == [(1, 3, 5), ("bad", "good")]
    assert notes == ["leaving out column 'id': the twin will not have it"]


# --- guesses, and names that may be cells ---------------------------------------------------------


def test_guesses_are_noted() -> None:
    records, notes = records_from_frame(table(), None, [])
    assert records.schema.columns == ("mood", "review")
    assert notes[0] == "reading texts from column 'review' (guessed; `text` to change)"
    assert notes[1] == "reading labels from column 'mood' (guessed; `attributes` to change)"


TWO = table(title=[f"a title of words {i}" for i in range(6)], kind=[1, 1, 2, 2, 2, 1])
HEADLESS = table().rename(columns={"mood": "good", "review": REVIEWS[0] * 2})
SHORT_HEADLESS = table().rename(columns={"mood": "good", "review": "Great stuff"})
NO_TEXT = "'review', 'title' may each be a column of texts; choose with `text`"
NO_LABEL = "'mood', 'kind' may each be a column of labels; choose with `attri"
REST = "|'id', 'mood'"
A_TEXT = "Ann Lee has a fever and stays"


@pytest.mark.parametrize(
    ("frame", "text", "attributes", "parts"),
    [
        (TWO, None, ["mood"], NO_TEXT),
        (TWO, "review", [], NO_LABEL),
        (table()[["id", "mood"]], None, [], "nothing looks like a column of texts"),
        (table()[["id", "review"]], None, [], "nothing looks like a column of labels"),
        (HEADLESS, None, [], "is the header row missing?"),
        (HEADLESS, "text", [], "number 3 (is the header row missing?)"),
        (SHORT_HEADLESS, None, ["good"], "number 2 is like one of its values"),
        (table().rename(columns={"review": A_TEXT}), None, ["mood"], "column number 3 is|`text`"),
        (table(), "reveiw", ["mood"], f"no column 'reveiw'|did you mean column 'review'{REST}"),
        (table(), "Review", ["mood"], "did you mean column 'review'"),
        (table(), "review", ["mod"], "no column 'mod'|column 'mood'"),
        (table(), "review", ["mood", "mood"], "given twice|once"),
        (table(), "mood", ["mood"], "both `text` and `attributes`"),
        (table(), "id", ["mood"], "column 'id' holds no text|choose another with `text`"),
        (table(), "mood", ["review"], "6 distinct values in 6 rows|100 at most: group"),
        (table()[:0], "review", ["mood"], "no rows"),
        (table().set_axis(["mood", "mood", "review"], axis=1), "review", ["mood"], "same name"),
        (table().rename(columns={"id": 0}), "review", ["mood"], "must be text"),
    ],
)
def test_columns_that_are_refused(frame, text, attributes, parts) -> None:
    message = refused(frame, text, attributes)
    assert all(part in message for part in parts.split("|")), message


@pytest.mark.parametrize("name", ["reviews.text", "review (original)", A_TEXT])
def test_a_column_that_is_named_may_be_called_anything(name) -> None:
    frame = table().rename(columns={"review": name, "mood": "good"})
    assert records_from_frame(frame, name, ["good"])[0].schema.columns == ("good", name)


@pytest.mark.parametrize(
    ("names", "is_told"),
    [
        ({"review": "Comment?"}, True),
        ({"review": "Ann Lee"}, True),  # beside plausible names it is quoted as any column's
        ({"review": "Ann Lee", "mood": "good"}, False),
        ({"review": "Ann Lee", "id": "17"}, False),
        ({"review": A_TEXT}, False),
        ({"review": "Fever, none"}, False),  # a short sentence
    ],
)
def test_of_a_row_taken_for_the_header_no_cell_is_told(names, is_told) -> None:
    message = refused(table().rename(columns=names), "text", [])
    assert (names["review"] in message) == is_told
    assert is_told or "number 3" in message


def test_a_header_of_one_word_among_short_texts_is_not_told() -> None:
    frame = table(kind=["x", "y"] * 3, review=[*REVIEWS[:5], "well"])
    assert "'mood'" in refused(frame.rename(columns={"kind": "label"}), "text", [])  # the control
    message = refused(frame.rename(columns={"review": "fever", "kind": "Ann Lee"}), "text", [])
    assert "fever" not in message and "Ann Lee" not in message and "number 3" in message


def test_a_key_that_some_rows_lack_is_data(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"review": f"text number {i} of some words"} for i in range(8)]
    rows = [row | ({"mood": "ab"[i % 2]} if i else {}) for i, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = refusal(read_records, path, "review", [], drop_empty=True)
    assert "'mood' may be" in said and "not every row has this key" in said
    assert "'mood' is missing" in refusal(read_records, path, "review", ["mood"])
    records, notes = read_records(path, "review", ["mood"], drop_empty=True)
    assert records.schema.columns == ("review", "mood") and len(records) == 7
    assert "not every row has column 'mood': to name it makes its name public" in notes


# --- cells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"review": [*REVIEWS[:5], 7]}, ["'review'", "in 1 of 6", "row 6", "`drop_empty`"]),
        ({"mood": ["a", "b", "a", "a\x00", "b", "a"]}, ["'mood', row 4", "control character"]),
        ({"mood": ["same"] * 6}, ["'mood' has one value only"]),
        ({"mood": [0.1, 0.2, 0.3, 0.4, 0.1, 0.2]}, ["4 distinct values", "cut them with `bins="]),
        ({"mood": [1.5, float("inf")] * 3}, ["'mood', row 2", "infinite"]),
        ({"mood": [True, 2] * 3}, ["mixes text, numbers"]),
    ],
)
def test_wrong_cells(columns: dict[str, list], parts: list[str]) -> None:
    frame = table().astype({name: object for name in columns}).assign(**columns)
    message = refused(frame, "review", ["mood"])
    assert all(part in message for part in parts), message


def test_drop_empty_leaves_rows_out_and_keeps_row_numbers() -> None:
    frame = table(mood=["a", "b", "a", "b", None, "a"])
    frame["review"] = pd.Series([REVIEWS[0], REVIEWS[1], 3, *REVIEWS[3:]], dtype=object)
    records, notes = records_from_frame(frame, "review", ["mood"], drop_empty=True)
    assert records.texts == [REVIEWS[0], REVIEWS[1], REVIEWS[3], REVIEWS[5]]
    assert records.labels == [("a",), ("b",), ("b",), ("a",)]
    assert "leaving out 2 of 6 rows: text or label missing or blank" in notes
    frame.loc[5, "review"] = "a\x07 b"
    assert "row 6" in refused(frame, "review", ["mood"], drop_empty=True, strict=True)
    frame["mood"] = None
    assert "no row has both" in refused(frame, "review", ["mood"], drop_empty=True)


def test_a_gap_in_whole_numbers_does_not_change_the_label(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("review,stars\n" + "".join(f"r{i},{i % 2 + 1}\n" for i in range(6)) + "r,\n")
    message = refusal(read_records, path, "review", ["stars"])
    assert "t.csv: column 'stars' " in message and " 1 of 7 rows, first in row 8" in message
    records, _ = read_records(path, "review", ["stars"], drop_empty=True)
    assert records.schema.attributes[0].values == (1, 2)


def test_tabs_line_breaks_and_latin_controls_are_texts() -> None:
    texts = ["a\tb", "a\r\nb", "a\x96b", "<|endoftext", "é", "🙂"]
    records, _ = records_from_frame(
        table(review=texts), "review", ["mood"], reserved=["<|endoftext|>", ""]
    )
    assert records.texts == texts


def test_characters_that_were_removed_stay_so_in_a_part() -> None:
    frame = table(review=[f"a text {i}\x07 with a bell" for i in range(6)])
    for part in records_from_frame(frame, "review", ["mood"])[0].split(range(3)):
        assert len(part) == 3 and not any("\x07" in text for text in part.texts)


def test_too_many_labels_and_duplicates() -> None:
    frame = pd.DataFrame({"t": ["same words"] * 404, "n": list(range(101)) * 4})
    assert "101 distinct values in 404 rows" in refused(frame, "t", ["n"])
    _, notes = records_from_frame(frame.assign(n=[0, 1] * 202), "t", ["n"])
    assert notes[0].startswith("403 rows repeat the text of an earlier row")


@pytest.mark.parametrize("drop", [False, True])
def test_records_on_the_disk_are_those_in_memory(tmp_path, monkeypatch, drop) -> None:
    monkeypatch.setattr("twinset.table.arrow_columns.ROWS_AT_ONCE", 7)
    texts = [f"Film {i} was\n{'gööd' if i % 2 else 'bad, 日本'}." for i in range(60)]
    frame = pd.DataFrame({"review": texts, "stars": [i % 5 for i in range(60)], "who": range(60)})
    if drop:
        frame.loc[[3, 20, 59], "review"] = None
    write_frame(frame, tmp_path / "t.csv")
    named = {"text": "review", "attributes": ["stars"], "owner": "who", "drop_empty": drop}
    (whole, notes), (on_disk, other_notes) = (
        records_from_frame(read_frame(tmp_path / "t.csv", None, at), **named)
        for at in (None, tmp_path)
    )
    assert on_disk.texts == whole.texts == frame["review"].dropna().tolist()
    assert on_disk.labels == whole.labels and on_disk.labels[1] == (1,)
    assert on_disk.schema == whole.schema and notes == other_notes
    assert (on_disk.owners == whole.owners).all()
    assert on_disk.fingerprint() == whole.fingerprint()
    changed = frame.dropna().assign(review=on_disk.texts[:-1] + ["another"])
    assert records_from_frame(changed, **named)[0].fingerprint() != whole.fingerprint()


def test_special_tokens_are_found_later_by_the_same_rows() -> None:
    reviews = pd.Series([None, "a <s> here", *REVIEWS[2:5], "and <s>"], dtype=object)
    frame, named = table(review=reviews), ("review", ["mood"])
    records, _ = records_from_frame(frame, *named, drop_empty=True)
    check_reserved(records, frame, ["</s>", " "])
    later = refusal(check_reserved, records, frame, ["</s>", "<s>"], "t.csv")
    assert "row 2: contains a special" in later and "as do 1 more rows" in later
    assert later == refused(frame, *named, drop_empty=True, reserved=["<s>"])
    frame = table(mood=["a", "b<s>"] * 3)
    records, _ = records_from_frame(frame, *named)
    said = refusal(check_reserved, records, frame, ["<s>"])
    assert "'mood', row 2: contains a special" in said and "as do 2 more rows" in said


# --- dtypes ---------------------------------------------------------------------------------------

COLUMNS = {
    "int64": pd.Series([3, 1, 2] * 4),
    "int32": pd.Series([3, 1, 2] * 4, dtype="int32"),
    "Int64": pd.Series([3, 1, 2] * 4, dtype="Int64"),
    "bool": pd.Series([True, False, True] * 4),
    "boolean": pd.Series([True, False, True] * 4, dtype="boolean"),
    "float64": pd.Series([3.0, 1.0, 2.0] * 4),
    "halves": pd.Series([0.5, 1.0, 1.5] * 4, dtype="float32"),
    "str": pd.Series(["c", "a", "NA"] * 4),
    "string": pd.Series(["c", "a", "b"] * 4, dtype="string"),
    "object": pd.Series(["c", "a", "b"] * 4, dtype=object),
    "arrow": pd.Series([3, 1, 2] * 4, dtype="int64[pyarrow]"),
    "category": pd.Series(["c", "a", "b"] * 4, dtype="category"),
    "floats": pd.Series([3.0, 1.0, 2.0] * 4, dtype="category"),
    "ordered": pd.Series(pd.Categorical(["lo", "hi", "mid"] * 4, ["lo", "mid", "hi"], True)),
}
# In memory a gap makes floats of whole numbers, and a number objects of texts.
BY_VALUES = {"float64": "int64", "object": "str"}
ORDER = {"ordered": ("lo", "mid", "hi"), "category": ("a", "b", "c"), "float64": (1, 2, 3)}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_twin_has_the_tables_dtypes(name: str) -> None:
    frame = pd.DataFrame({"label": COLUMNS[name], "text": [f"text {i}" for i in range(12)]})
    records, _ = records_from_frame(frame, "text", ["label"])
    schema = Schema.from_dict(json.loads(json.dumps(records.schema.to_dict())))
    (attribute,) = schema.attributes
    assert all(type(v) in (int, str, bool, float) for v in attribute.values)
    assert attribute.values == ORDER.get(name, attribute.values)
    assert (attribute.dtype == ORDERED) == (name == "ordered")
    if name in BY_VALUES:
        frame = frame.astype({"label": BY_VALUES[name]})
    pd.testing.assert_frame_equal(twin_frame(schema, records.texts, records.labels), frame)
    shuffled, _ = records_from_frame(frame[::-1], "text", ["label"])
    assert shuffled.schema == records.schema  # the order of the rows is not in the schema
    assert twin_frame(schema, [], []).dtypes.to_dict() == frame.dtypes.to_dict()


# --- any table ------------------------------------------------------------------------------------

cells = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5).map(lambda t: SECRET + t),
    st.just(SECRET),
    st.binary(max_size=2),
    st.lists(st.just(SECRET), max_size=1),
    st.dates(),
    st.just(pd.NA),
)
columns = st.lists(cells, min_size=8, max_size=8) | st.lists(
    st.sampled_from([SECRET, f"{SECRET} a b c", f"{SECRET}\x00", "", "p"]), min_size=8, max_size=8
)


@settings(max_examples=60, deadline=None)
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
    options = {"drop_empty": drop, "reserved": ["<s>"]}
    try:
        records, notes = records_from_frame(frame, text, attributes, **options)
    except InputError as error:
        assert_silent(error)
        assert "\n" not in str(error)
        return
    assert not any(SECRET in note for note in notes)
    assert set(records.labels) <= set(records.schema.combinations)
    twin = twin_frame(records.schema, records.texts, records.labels)
    assert twin[records.schema.text].tolist() == records.texts
