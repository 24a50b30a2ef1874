from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.refusals import SECRET, assert_silent, refusal
from twinset.errors import InputError
from twinset.sampling.twin_model import twin_frame
from twinset.table.read import FORMATS, write_frame
from twinset.table.records import read_records, records_from_frame
from twinset.table.schema import ORDERED, Schema

REVIEWS = [f"review number {i} says {SECRET} again and again" for i in range(6)]
DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


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


def test_guesses_are_noted() -> None:
    records, notes = records_from_frame(table(), None, [])
    assert records.schema.columns == ("mood", "review")
    assert notes[0] == "reading texts from column 'review' (guessed; `text` to change)"
    assert notes[1] == "reading labels from column 'mood' (guessed; `attributes` to change)"


TWO = table(title=[f"a title of words {i}" for i in range(6)], kind=[1, 1, 2, 2, 2, 1])
HEADLESS = table().rename(columns={"mood": "good", "review": REVIEWS[0] * 2})

SHORT_HEADLESS = table().rename(columns={"mood": "good", "review": "Great stuff"})


@pytest.mark.parametrize("name", ["reviews.text", "Comment?", "review (original)"])
def test_names_with_marks_are_names(name) -> None:
    frame = table().rename(columns={"review": name})
    assert records_from_frame(frame, name, ["mood"])[0].schema.columns == ("mood", name)
    assert f"'{name}'" in refused(frame, "text", [])


@pytest.mark.parametrize(
    ("frame", "text", "attributes", "message"),
    [
        (
            TWO,
            None,
            ["mood"],
            "'review', 'title' may each be a column of texts; choose with `text`",
        ),
        (TWO, "review", [], "'mood', 'kind' may each be a column of labels; choose with `attri"),
        (table()[["id", "mood"]], None, [], "nothing looks like a column of texts"),
        (table()[["id", "review"]], None, [], "nothing looks like a column of labels"),
        (HEADLESS, None, [], "is the header row missing?"),
        (HEADLESS, "text", [], "number 3 (is the header row missing?)"),
        (SHORT_HEADLESS, None, ["good"], "number 2 is like one of its values"),
    ],
)
def test_no_guess_where_there_is_doubt(frame, text, attributes, message) -> None:
    assert message in refused(frame, text, attributes)


@pytest.mark.parametrize("names", [{"mood": "good"}, {"id": "17"}])
def test_of_a_row_taken_for_the_header_no_cell_is_told(names) -> None:
    """The control: beside plausible names the same one is quoted, as any column's."""
    assert "'Ann Lee'" in refused(table().rename(columns={"review": "Ann Lee"}), "text", [])
    message = refused(table().rename(columns={"review": "Ann Lee"} | names), "Ann", [])
    assert "Ann Lee" not in message and "number 3 (is the header row missing?)" in message


@pytest.mark.parametrize(
    "names",
    [
        {"review": "Ann Lee has a fever and stays"},  # a text, where all others differ
        {"review": "Fever, none"},  # a short sentence
        {"review": "fever", "kind": "Ann Lee"},  # one word, as some of the texts are
    ],
)
def test_a_row_of_cells_that_none_repeats_is_not_told_either(names) -> None:
    """The control: above the same cells, names are quoted, as what is in the table is no name."""
    frame = table(kind=["x", "y"] * 3, review=[*REVIEWS[:5], "well"])
    assert "'mood'" in refused(frame.rename(columns={"kind": "label"}), "text", [])
    message = refused(frame.rename(columns=names), "text", [])
    assert not any(cell in message for cell in names.values()) and "number 3" in message


def test_a_column_of_texts_is_not_guessed_by_what_may_be_a_record() -> None:
    frame = table().rename(columns={"review": "Ann Lee has a fever and stays"})
    message = refused(frame, None, ["mood"])
    assert "column number 3 is like one of its values" in message and "`text`" in message
    named, _ = records_from_frame(frame, "Ann Lee has a fever and stays", ["mood"])
    assert len(named) == len(frame)


def test_a_named_column_may_be_called_as_a_cell_is() -> None:
    records, _ = records_from_frame(table().rename(columns={"mood": "good"}), "review", ["good"])
    assert records.schema.columns == ("good", "review")


@pytest.mark.parametrize(
    ("text", "attributes", "parts"),
    [
        (
            "reveiw",
            ["mood"],
            ["no column 'reveiw'", "did you mean column 'review'", "'id', 'mood'"],
        ),
        ("Review", ["mood"], ["did you mean column 'review'"]),
        ("review", ["mod"], ["no column 'mod'", "column 'mood'"]),
        ("review", ["mood", "mood"], ["given twice", "once"]),
        ("mood", ["mood"], ["both `text` and `attributes`"]),
        ("id", ["mood"], ["column 'id' holds no text", "choose another with `text`"]),
        ("mood", ["review"], ["6 distinct values in 6 rows", "100 at most: group"]),
    ],
)
def test_wrong_columns(text: str, attributes: list[str], parts: list[str]) -> None:
    message = refused(table(), text, attributes)
    assert all(part in message for part in parts), message


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


def test_tabs_line_breaks_and_latin_controls_are_texts() -> None:
    texts = ["a\tb", "a\r\nb", "a\x96b", "<|endoftext", "é", "🙂"]
    records, _ = records_from_frame(
        table(review=texts), "review", ["mood"], reserved=["<|endoftext|>", ""]
    )
    assert records.texts == texts


def test_tables_without_rows_or_with_unusable_names() -> None:
    assert "no rows" in refused(table()[:0], "review", ["mood"])
    twice = table()
    twice.columns = ["mood", "mood", "review"]
    assert "same name" in refused(twice, "review", ["mood"])
    assert "must be text" in refused(table().rename(columns={"id": 0}), "review", ["mood"])


def test_too_many_labels_and_duplicates() -> None:
    frame = pd.DataFrame({"t": ["same words"] * 404, "n": list(range(101)) * 4})
    assert "101 distinct values in 404 rows" in refused(frame, "t", ["n"])
    _, notes = records_from_frame(frame.assign(n=[0, 1] * 202), "t", ["n"])
    assert notes[0].startswith("403 rows repeat the text of an earlier row")


PLAIN = [{"review": f"text number {i} of some words", "stars": 1 + i % 2} for i in range(8)]
# One record more: its schema must be that of the others alone.
ONE_MORE = {
    "a key that no other has": {"review": "one more text of words", "stars": 1, SECRET: "x"},
    "a gap": {"review": "one more text of words", "stars": None},
    "a gap in the text": {"review": None, "stars": 2},
    "no text, and half a star": {"review": None, "stars": 1.5},
    "a star that is written 1.0": {"review": "one more text of words", "stars": 1.0},
    "a text that is a number": {"review": 7, "stars": 1},
}


@pytest.mark.parametrize("more", ONE_MORE)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_no_single_record_shows_in_the_schema(tmp_path, ending, first, more) -> None:
    """What follows from the schema is shared; a record that is left out is in no count at all."""
    row = ONE_MORE[more]
    typed = row["stars"] != 1.5 and isinstance(row["review"], str | None)
    if ending != ".jsonl" and SECRET in row or ending == ".parquet" and not typed:
        pytest.skip("such a table cannot be written")
    if ending == ".jsonl":
        row = dict(reversed(row.items()))
    rows = [row, *PLAIN] if first else [*PLAIN, row]
    schemas = [schema_of(tmp_path / f"{n}{ending}", some) for n, some in enumerate((PLAIN, rows))]
    assert schemas[0] == schemas[1]


def schema_of(path: Path, rows) -> Schema:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        types = pa.schema([("review", pa.string()), ("stars", pa.int32())])
        pq.write_table(pa.Table.from_pylist(rows, types), path)
    else:
        cells = [
            {name: "" if row[name] is None else str(row[name]) for name in PLAIN[0]} for row in rows
        ]
        pd.DataFrame(cells).to_csv(path, index=False)
    records, notes = read_records(path, "review", ["stars"], drop_empty=True)
    assert SECRET not in str(notes)
    return records.schema


def test_a_key_that_some_rows_lack_is_data(tmp_path: Path) -> None:
    rows = [row | ({"mood": "ab"[i % 2 > 0]} if i else {}) for i, row in enumerate(PLAIN)]
    path = tmp_path / "t.jsonl"
    rows = [{name: row[name] for name in row if name != "stars"} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="'mood'.* not every row has this key.*`attributes`"):
        read_records(path, "review", [], drop_empty=True)
    with pytest.raises(InputError, match="'mood' is missing"):
        read_records(path, "review", ["mood"])
    records, notes = read_records(path, "review", ["mood"], drop_empty=True)
    assert records.schema.columns == ("review", "mood") and len(records) == 7
    assert "not every row has column 'mood': to name it makes its name public" in notes


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


@pytest.mark.parametrize("name", COLUMNS)
def test_the_twin_has_the_tables_dtypes(name: str) -> None:
    frame = pd.DataFrame({"label": COLUMNS[name], "text": [f"text {i}" for i in range(12)]})
    records, _ = records_from_frame(frame, "text", ["label"])
    schema = Schema.from_dict(json.loads(json.dumps(records.schema.to_dict())))
    assert all(type(v) in (int, str, bool, float) for v in schema.attributes[0].values)
    if name in BY_VALUES:
        frame = frame.astype({"label": BY_VALUES[name]})
    pd.testing.assert_frame_equal(twin_frame(schema, records.texts, records.labels), frame)
    shuffled, _ = records_from_frame(frame[::-1], "text", ["label"])
    assert shuffled.schema == records.schema  # the order of the rows is not in the schema
    assert twin_frame(schema, [], []).dtypes.to_dict() == frame.dtypes.to_dict()


def test_value_order_and_whole_floats() -> None:
    def attribute(column: pd.Series):
        frame = pd.DataFrame({"t": [f"x {i}" for i in range(12)], "a": column})
        return records_from_frame(frame, "t", ["a"])[0].schema.attributes[0]

    assert attribute(COLUMNS["ordered"]).values == ("lo", "mid", "hi")
    assert attribute(COLUMNS["ordered"]).dtype == ORDERED
    assert attribute(COLUMNS["category"]).values == ("a", "b", "c")
    whole = attribute(COLUMNS["float64"])
    assert whole.values == (1, 2, 3) and {type(v) for v in whole.values} == {int}


@pytest.mark.parametrize("ending", FORMATS)
def test_files_round_trip(tmp_path: Path, ending: str) -> None:
    frame = table(
        stars=[5, 1, 5, 1, 3, 3], ok=[True, False] * 3, kind=pd.Categorical(list("xyx") * 2)
    )
    write_frame(frame, tmp_path / f"private{ending}")
    records, _ = read_records(tmp_path / f"private{ending}", "review", ["stars", "ok", "kind"])
    twin = twin_frame(records.schema, records.texts, records.labels)
    write_frame(twin, tmp_path / f"twin{ending}")
    again, _ = read_records(tmp_path / f"twin{ending}", "review", ["stars", "ok", "kind"])
    assert (again.texts, again.labels) == (records.texts, records.labels)
    assert again.schema.attributes == records.schema.attributes
    assert again.schema.columns == ("review", "stars", "ok", "kind")


def test_a_gap_in_whole_numbers_does_not_change_the_label(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("review,stars\n" + "".join(f"r{i},{i % 2 + 1}\n" for i in range(6)) + "r,\n")
    message = refusal(read_records, path, "review", ["stars"])
    assert "t.csv: column 'stars' " in message and " 1 of 7 rows, first in row 8" in message
    records, _ = read_records(path, "review", ["stars"], drop_empty=True)
    assert records.schema.attributes[0].values == (1, 2)


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


@settings(max_examples=150, deadline=None)
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


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data sets")
@pytest.mark.parametrize(
    ("name", "attributes", "rows"),
    [("imdb_short", ["sentiment"], 2000), ("blitzer_dvd_kitchen", ["sentiment", "product"], 800)],
)
def test_public_sets(name: str, attributes: list[str], rows: int) -> None:
    records, _ = read_records(
        DATA / name / "test.csv.gz", "text", attributes, reserved=["<|endoftext|>"]
    )
    assert len(records) == rows and len(records.schema.combinations) == 2 ** len(attributes)
