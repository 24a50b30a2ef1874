"""A record's cells are its own: one row more changes no other row's text, label or owner."""

import datetime
import json

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from openpyxl import Workbook

from twinset.errors import InputError
from twinset.table import read
from twinset.table.labels import LabelRules
from twinset.table.read import dataset_frame, read_frame
from twinset.table.records import records_from_frame

PRICES = ["3.50", "007", "1e3", "12", "True", "7.0", "0.1"]
ROWS = [[f"a text number {i}", PRICES[i % len(PRICES)], "ab"[i % 2]] for i in range(40)]


def written(path, rows, names=("title", "price", "label")):
    lines = [",".join(names), *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def records_of(path, text="text", **how):
    return records_from_frame(read_frame(path), text, ["label"], **how)[0]


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
    monkeypatch.setattr(read, "typed", inferred)
    rows = [["a text", "3.50", "ab"[i % 2]] for i in range(40)]
    fewer = texts_of(written(tmp_path / "a.csv", rows))
    more = texts_of(written(tmp_path / "b.csv", [*rows, ["one more", "free", "a"]]))
    assert more[:-1] != fewer


def inferred(column):
    try:
        return pd.to_numeric(column)
    except ValueError:
        return column


def test_a_row_more_moves_no_other_to_another_label(tmp_path):
    rows = [[f"a text number {i}", ("1", "2.50")[i % 2]] for i in range(40)]
    rules = LabelRules(declared={"label": ("1", "2.50", "other")}, drop=True)
    found = []
    for more in ([], [["one more", "other"]]):
        path = written(tmp_path / "t.csv", [*rows, *more], ("text", "label"))
        records = records_of(path, rules=rules)
        found.append([str(label) for (label,) in records.labels])
    assert found[1][:40] == found[0] and len(found[1]) == 41


def test_numbers_that_nobody_declared_are_numbers(tmp_path):
    for cells, values in ((("1.0", "2.0"), (1, 2)), (("true", "FALSE"), (False, True))):
        rows = [[f"a text number {i}", cells[i % 2]] for i in range(40)]
        path = written(tmp_path / "t.csv", rows, ("text", "label"))
        for rules in (None, LabelRules()):
            (attribute,) = records_of(path, rules=rules).schema.attributes
            assert attribute.values == values and type(attribute.values[0]) is type(values[0])


@pytest.mark.parametrize("more", [[], [["one more", "a", "x"]]], ids=["alone", "beside x"])
def test_owners_are_told_apart_as_they_are_written(tmp_path, more):
    owners = ["007", "7", "7.0", "900719925474099301", "900719925474099302"]
    rows = [[f"a text number {i}", "ab"[i % 2], owners[i % 5]] for i in range(40)]
    path = written(tmp_path / "t.csv", [*rows, *more], ("text", "label", "who"))
    records = records_of(path, owner="who")
    assert len(set(records.owners[:40])) == 5


@pytest.mark.parametrize("blank", ["", " "], ids=["empty", "blank"])
def test_nobody_is_no_owner(tmp_path, blank):
    rows = [[f"a text number {i}", "ab"[i % 2], blank if i == 3 else f"p{i}"] for i in range(40)]
    path = written(tmp_path / "t.csv", rows, ("text", "label", "who"))
    with pytest.raises(InputError, match="every record needs an owner"):
        records_of(path, owner="who")


def test_characters_that_were_removed_stay_so_in_a_part():
    rows = [f"a text {i}\x07 with a bell" for i in range(40)]
    frame = pd.DataFrame({"text": rows, "label": ["a", "b"] * 20})
    records, _ = records_from_frame(frame, "text", ["label"])
    for part in records.split(range(10)):
        assert not any("\x07" in text for text in part.texts)


LARGE = 2**60  # floats are whole multiples of 256 there


def as_jsonl(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_frame(path.rename(path.with_suffix(".jsonl")))


def as_parquet(rows, path):
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return read_frame(path.with_suffix(".parquet"))


def as_feather(rows, path):
    feather.write_feather(pa.Table.from_pylist(rows), path.with_suffix(".feather"))
    return read_frame(path.with_suffix(".feather"))


def as_dataset(rows, path):
    return dataset_frame(Dataset.from_list(rows))


def as_saved(rows, path):
    Dataset.from_list(rows).save_to_disk(str(path))
    return read_frame(path)


def as_sheet(rows, path):
    book = Workbook()
    for row in (list(rows[0]), *(list(row.values()) for row in rows)):
        book.active.append(row)
    for cells in book.active.iter_rows(min_row=2):
        for cell in cells:
            if isinstance(cell.value, datetime.timedelta):
                cell.number_format = "[h]:mm:ss"
    book.save(path.with_suffix(".xlsx"))
    return read_frame(path.with_suffix(".xlsx"))


def numbered(i, **cells):
    return {"title": f"a text number {i}", "id": LARGE + i, "label": "ab"[i % 2]} | cells


TABLE = [numbered(i) for i in range(40)]
GAP = numbered(40, id=None)
TYPED = [as_jsonl, as_parquet, as_feather, as_dataset, as_saved]


def joined(frame):
    return list(records_from_frame(frame, "{id}: {title}", ["label"])[0].texts)


@pytest.mark.parametrize("made", TYPED)
def test_a_gap_changes_no_other_whole_number(tmp_path, made):
    expected = [f"{LARGE + i}: a text number {i}" for i in range(40)]
    assert joined(made([*TABLE, GAP], tmp_path / "t"))[:40] == expected
    assert joined(made(TABLE, tmp_path / "u")) == expected


def test_a_fraction_changes_no_whole_number_of_jsonl(tmp_path):
    rows = [*TABLE, numbered(40, id=2.5)]
    found = as_jsonl(rows, tmp_path / "t")
    assert joined(found)[:40] == joined(as_jsonl(TABLE, tmp_path / "u"))
    inferred = found.assign(id=pd.Series(found["id"].tolist()))  # a negative control
    assert joined(inferred)[:40] != joined(found)[:40]


@pytest.mark.parametrize("made", TYPED)
def test_a_gap_makes_no_others_one_owner(tmp_path, made):
    """Also that of a row that is left out."""
    frame = made([*TABLE, GAP | {"title": None}], tmp_path / "t")
    records, _ = records_from_frame(frame, "title", ["label"], owner="id", rules=LabelRules())
    assert len(set(records.owners)) == len(records) == 40


@pytest.mark.parametrize("odd", [None, "a while"])
def test_durations_of_a_sheet_are_written_alike(tmp_path, odd):
    rows = [numbered(i, id=datetime.timedelta(hours=20 + i)) for i in range(10)]
    expected = joined(as_sheet(rows, tmp_path / "t"))
    assert expected[0].startswith("20:00:00") and expected[4].startswith("1 day, 0:00:00")
    assert joined(as_sheet([*rows, numbered(10, id=odd)], tmp_path / "u"))[:10] == expected


@pytest.mark.parametrize("made", [*TYPED, lambda rows, _: pd.DataFrame(rows)])
def test_a_row_that_is_left_out_changes_no_schema(tmp_path, made):
    """Its label is none, or not declared; beside the latter stands a fraction."""
    rows = [numbered(i, stars=1 + i % 3) for i in range(60)]
    rules = LabelRules({"label": ["a", "b"]}, drop=True)
    found = []
    for number, more in enumerate(({}, {"label": "z", "stars": 7}, {"stars": None})):
        extra = [numbered(60, **more)] if more else []
        frame = made([*rows, *extra], tmp_path / str(number))
        found.append(records_from_frame(frame, "title", ["label", "stars"], rules=rules)[0])
    assert [len(records) for records in found] == [60] * 3
    assert found[0].schema == found[1].schema == found[2].schema


@pytest.mark.parametrize("ending", ["csv", "jsonl", "memory"])
def test_a_fraction_that_is_left_out_makes_no_fractions(tmp_path, ending):
    rows = [numbered(i, stars=1 + i % 3) for i in range(60)]
    rules = LabelRules({"label": ["a", "b"]}, drop=True)
    found = []
    for extra in ([], [numbered(60, label="z", stars=2.5)]):
        frame = pd.DataFrame([*rows, *extra])
        if ending == "csv":
            frame.astype({"stars": object}).to_csv(tmp_path / "t.csv", index=False)
        elif ending == "jsonl":
            frame = as_jsonl([*rows, *extra], tmp_path / str(len(extra)))
        frame = read_frame(tmp_path / "t.csv") if ending == "csv" else frame
        found.append(records_from_frame(frame, "title", ["label", "stars"], rules=rules)[0])
    assert found[0].schema == found[1].schema
    assert found[0].schema.attributes[1].values == (1, 2, 3)


def test_a_cell_that_is_no_text_changes_no_type():
    schemas = []
    for extra in ([], [numbered(40, title=7)]):
        frame = pd.DataFrame([*TABLE, *extra])
        schemas.append(records_from_frame(frame, "title", ["label"], rules=LabelRules())[0].schema)
    assert schemas[0] == schemas[1]


def test_one_record_does_not_change_which_column_is_guessed():
    """A value that it alone has takes a column from the guess, and its other cell gives another."""
    rows = [{"text": f"this is text number {i} of some", "a": "xy"[i % 2]} for i in range(60)]
    rows = [row | {"b": "w" if i == 0 else "uv"[i % 2]} for i, row in enumerate(rows)]
    for extra in ([], [{"text": "this is one more text", "a": "zzz", "b": "w"}]):
        frame = pd.DataFrame([*rows, *extra])
        with pytest.raises(InputError, match="columns 'a', 'b' may each be a column of labels"):
            records_from_frame(frame, "text", [], rules=LabelRules())


def test_that_variants_would_be_merged_is_said_whether_or_not_there_are_any():
    rows = [{"text": f"text {i}", "label": ("positive", "negative")[i % 2]} for i in range(60)]
    for extra in ([], [{"text": "one more", "label": "postive"}]):
        rules = LabelRules(merge=True)
        records, _ = records_from_frame(
            pd.DataFrame([*rows, *extra]), "text", ["label"], rules=rules
        )
        assert records.whose == {"label": "table, merged"}
