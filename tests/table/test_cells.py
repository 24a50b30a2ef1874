"""A record's cells are its own: one row more changes no other row's text, label, owner or type."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from tests.helpers.refusals import SECRET, refusal
from tests.helpers.tables import with_found
from twinset.run.request import Source
from twinset.table import read
from twinset.table.columns import table_of
from twinset.table.labels import LabelRules
from twinset.table.read import read_frame
from twinset.table.records import records_from_frame
from twinset.table.text_formats import Layout

PRICES = ["3.50", "007", "1e3", "12", "True", "7.0", "0.1"]
ROWS = [[f"a text number {i}", PRICES[i % len(PRICES)], "ab"[i % 2]] for i in range(40)]


def written(path, rows, names=("title", "price", "label")):
    lines = [",".join(names), *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def records_of(table, text="text", attributes=("label",), **how):
    frame = table if isinstance(table, pd.DataFrame) else read_frame(table)
    records, notes = records_from_frame(frame, text, list(attributes), **how)
    assert SECRET not in str(notes)
    return with_found(records, notes)


def texts_of(path):
    return list(records_of(path, "{title}: {price}").texts)


@pytest.mark.parametrize("kept", [*PRICES, None], ids=str)
def test_a_row_more_changes_no_other_text(tmp_path, kept):
    """Of prices that are written in one way alone, and of all ways together."""
    rows = [row for row in ROWS if kept in (row[1], None)]
    fewer = texts_of(written(tmp_path / "a.csv", rows))
    for extra in ("free", "", "3.5"):
        more = texts_of(written(tmp_path / "b.csv", [*rows, ["one more", extra, "a"]]))
        assert more[:-1] == fewer == [f"{title}: {price}" for title, price, _ in rows]


def test_types_of_whole_columns_would_change_the_others(tmp_path, monkeypatch):
    """A negative control: what pandas infers depends on every cell."""

    def inferred(column):
        try:
            return pd.to_numeric(column)
        except ValueError:
            return column

    monkeypatch.setattr(read, "typed", inferred)
    rows = [["a text", "3.50", "ab"[i % 2]] for i in range(40)]
    fewer = texts_of(written(tmp_path / "a.csv", rows))
    more = texts_of(written(tmp_path / "b.csv", [*rows, ["one more", "free", "a"]]))
    assert more[:-1] != fewer


@pytest.mark.parametrize("more", [[], [["one more", "a", "x"]]], ids=["alone", "beside x"])
def test_owners_are_compared_by_their_spelling(tmp_path, more):
    owners = ["007", "7", "7.0", "900719925474099301", "900719925474099302"]
    rows = [[f"a text number {i}", "ab"[i % 2], owners[i % 5]] for i in range(40)]
    path = written(tmp_path / "t.csv", [*rows, *more], ("text", "label", "who"))
    assert len(set(records_of(path, owner="who").owners[:40])) == 5


OF_ONE = ["p1", "P1", "p1 ", "p1\xa0", " \u200bp1", "\uff50\uff11"]
SPELLINGS = [*OF_ONE, "p 2", "P  2", "p2", "p\xe9", "pe\u0301"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_persons_protection_is_not_split_by_how_an_owner_is_spelt(tmp_path, ending):
    cells = [*SPELLINGS, *(f"q{i}" for i in range(29))]
    rows = [(f"a text number {i}", "ab"[i % 2], cell) for i, cell in enumerate(cells)]
    frame = pd.DataFrame(rows, columns=["text", "label", "who"])
    read.write_frame(frame, tmp_path / f"t.{ending}")
    frame = read_frame(tmp_path / f"t.{ending}")
    records, notes = records_from_frame(frame, "text", ["label"], owner="who")
    assert records.owners[:12].tolist() == [0] * 6 + [1, 1, 2, 3, 3, 4]
    assert any("7 owners are merged with others that differ only by case" in note for note in notes)
    assert not any("p1" in note.casefold() for note in notes)
    # a record says by itself whose it is
    less = records_from_frame(frame.drop(0), "text", ["label"], owner="who")[0]
    assert less.owners.tolist() == records.owners[1:].tolist()
    # control: what differs otherwise is told apart, of numbers too
    cells = [1, "1", 1.5, "x1", *range(10, 46)]
    mixed = frame.assign(who=pd.Series(cells, dtype=object))
    assert len(set(records_from_frame(mixed, "text", ["label"], owner="who")[0].owners)) == 39


@pytest.mark.parametrize("blank", ["", " ", "\u200b"], ids=["empty", "blank", "invisible"])
def test_a_row_without_an_owner_is_refused(tmp_path, blank):
    rows = [[f"a text number {i}", "ab"[i % 2], blank if i == 3 else f"p{i}"] for i in range(40)]
    path = written(tmp_path / "t.csv", rows, ("text", "label", "who"))
    assert "Give every record an owner" in refusal(records_of, path, owner="who")
    frame = read_frame(path).assign(who=[["x"]] * 40)
    assert "holds lists" in refusal(records_of, frame, owner="who")


# --- formats that state types ---------------------------------------------------------------------

LARGE = 2**60  # floats are whole multiples of 256 there


TYPED = ["jsonl", "parquet", "feather", "dataset", "saved"]


def made(kind, rows, path):
    """Return a table of these rows, by way of a file of this kind."""
    file, frame = path.with_suffix(f".{kind}"), pd.DataFrame(rows, dtype=object)
    write = {
        "saved": lambda: Dataset.from_list(rows).save_to_disk(str(file)),
        "jsonl": lambda: file.write_text("".join(json.dumps(row) + "\n" for row in rows)),
        "csv": lambda: frame.to_csv(file, index=False),
        "xlsx": lambda: frame.to_excel(file, index=False),
        "parquet": lambda: pq.write_table(pa.Table.from_pylist(rows), file),
        "feather": lambda: feather.write_feather(pa.Table.from_pylist(rows), file),
    }
    if kind in ("memory", "dataset"):
        return pd.DataFrame(rows) if kind == "memory" else read_frame(Dataset.from_list(rows))
    write[kind]()
    return read_frame(file)


def numbered(i, **cells):
    return {"title": f"a text number {i}", "id": LARGE + i, "label": "ab"[i % 2]} | cells


TABLE = [numbered(i) for i in range(40)]


def joined(frame):
    return list(records_of(frame, "{id}: {title}").texts)


@pytest.mark.parametrize("kind", TYPED)
def test_a_gap_changes_no_other_whole_number(tmp_path, kind):
    """Also that of an owner whose row is left out."""
    expected = [f"{LARGE + i}: a text number {i}" for i in range(40)]
    assert joined(made(kind, TABLE, tmp_path / "u")) == expected
    frame = made(kind, [*TABLE, numbered(40, id=None, title=None)], tmp_path / "t")
    assert joined(frame)[:40] == expected
    records = records_of(frame, "title", owner="id", rules=LabelRules())
    assert len(set(records.owners)) == len(records) == 40


# One record more: the schema must be that of the others alone, whether it is left out or not.
ONE_MORE = {
    "a label that is not declared": {"label": "z", "stars": 7},
    "a gap in the label": {"stars": None},
    "a gap in the text": {"title": None},
    "half a star in a row that is left out": {"label": "z", "stars": 2.5},
    "half a star without a text": {"title": None, "stars": 1.5},
    "a star that is a float": {"stars": 1.0},
    "a text that is a number": {"title": 7},
    "a key that no other has": {SECRET: "x"},
}


@pytest.mark.parametrize("more", ONE_MORE)
@pytest.mark.parametrize("kind", [*TYPED, "csv", "xlsx", "memory"])
def test_no_single_record_shows_in_the_schema(tmp_path, kind, more):
    """What follows from the schema is shared; a record that is left out is in no count at all."""
    odd = ONE_MORE[more]
    is_mixed = isinstance(odd.get("stars"), float) or isinstance(odd.get("title"), int)
    if SECRET in odd and kind != "jsonl" or is_mixed and kind in TYPED[1:]:
        pytest.skip("such a table cannot be written")
    if kind == "csv" and odd.get("stars") == 1.0:
        pytest.skip("what is spelt 1.0 is a label of its own")
    rows = [numbered(i, stars=1 + i % 3) for i in range(60)]
    row = numbered(60, stars=1) | odd
    rules = LabelRules({"label": ["a", "b"]}, drop=True)
    tables = [rows, [*rows, row]]
    if kind in ("jsonl", "memory"):  # a key's place in JSONL is a record's own
        first = dict(reversed(row.items())) if kind == "jsonl" else row
        tables.append([first, *rows])
    found = [
        records_of(made(kind, some, tmp_path / str(n)), "title", ("label", "stars"), rules=rules)
        for n, some in enumerate(tables)
    ]
    assert all(records.schema == found[0].schema for records in found)
    assert found[0].schema.attributes[1].values == (1, 2, 3) and len(found[0]) == 60


def test_one_record_does_not_change_which_column_is_guessed():
    """A value that it alone has takes a column from the guess, and its other cell gives another."""
    rows = [{"text": f"this is text number {i} of some", "a": "xy"[i % 2]} for i in range(120)]
    rows = [row | {"b": "w" if i == 0 else "uv"[i % 2]} for i, row in enumerate(rows)]
    for extra in ([], [{"text": "this is one more text", "a": "zzz", "b": "w"}]):
        frame = pd.DataFrame([*rows, *extra])
        said = refusal(records_of, frame, "text", (), rules=LabelRules())
        assert "columns 'a', 'b' may each be a column of labels" in said


LISTS = pd.array([[1, 2]] * 20, pd.ArrowDtype(pa.list_(pa.int64())))
ODD = {
    "lists as labels": (LISTS, "other than text"),
    "numbers of no type": (pd.Series([2**63, -1] * 10, dtype=object), "more than 64 bits"),
}
NO_TABLES = {
    "numbers as names": ({1: ["a"], 2: ["b"]}, "names must be text"),
    "half a character": ({"a\ud83d": ["a"]}, "names must be text"),
    "a number as a column": ({"text": 5}, "equally long"),
    "columns of two lengths": ({"text": ["x"], "label": ["y", "z"]}, "equally long"),
    "nothing as a column": ({"text": None}, "equally long"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_label_columns_are_refused_in_one_line(kind):
    labels, said = ODD[kind]
    texts = [f"{SECRET} text {n} of words" for n in range(20)]
    frame = pd.DataFrame({"text": texts, "label": labels})
    for attributes in (["label"], []):
        line = refusal(records_from_frame, frame, "text", attributes)
        assert SECRET not in line and (not attributes or said in line)


@pytest.mark.parametrize("kind", NO_TABLES)
def test_what_is_no_table_in_memory_is_refused_in_one_line(kind):
    made, said = NO_TABLES[kind]
    assert said in refusal(table_of, made)


def test_half_a_character_in_memory_is_left_out():
    records = records_of(table_of({"text": ["so \ud83d", *"bcd"], "label": ["x", "y\ud83d"] * 2}))
    assert list(records.texts) == ["so ", *"bcd"] and records.labels[1] == ("y\ufffd",)


def test_a_given_encoding_keeps_no_byte_order_mark(tmp_path):
    for encoding in ("utf-16-le", "utf-16-be", "utf-8"):
        path = tmp_path / "t.csv"
        path.write_bytes("\ufefftext,label\nab c,x\n".encode(encoding))
        assert list(read_frame(path, layout=Layout(encoding))) == ["text", "label"]
    assert "unknown" in refusal(Layout, "idna")


ODD_LETTERS = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xff")]
)


def test_a_table_of_arrow_is_read_as_its_file_is(tmp_path):
    """A gap changes no large number, and nothing is quoted of damaged data."""
    labels = [[2**53 + 1, 2**53, 7][i % 3] if i != 5 else None for i in range(60)]
    times = pa.array([1] * 60, pa.time64("ns"))
    table = pa.table({"text": [f"text {i}" for i in range(60)], "label": labels, "at": times})
    pq.write_table(table, tmp_path / "t.parquet")
    found = [records_of(tmp_path / "t.parquet")]
    for data in (table, table.to_reader()):
        found.append(records_of(Source.of(data, "text", "label", None, None, 0, {}).data))
    assert found[0].schema.attributes[0].values == (7, 2**53, 2**53 + 1)
    assert len({(records.schema, records.fingerprint()) for records in found}) == 1
    damaged = pa.table({"text": ODD_LETTERS, "label": ["a", "b"]})
    said = refusal(Source.of, damaged, "text", "label", None, None, 0, {})
    assert said == "table: its data are damaged. Make it again."
    # control: one cell may have decided a type in memory, and only the family is taken
    narrow = table.set_column(1, "label", pa.array([1, 2] * 30, pa.int8()))
    made = records_of(Source.of(narrow, "text", "label", None, None, 0, {}).data)
    assert made.schema.attributes[0].dtype == "int64"
