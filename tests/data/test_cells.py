"""A record's cells are its own: one row more changes no other row's text, label or owner."""

import pandas as pd
import pytest

from twinset.data import text_files
from twinset.data.formats import read_frame
from twinset.data.label_rules import LabelRules
from twinset.data.records import records_from_frame
from twinset.errors import InputError

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
    monkeypatch.setattr(text_files, "typed", inferred)
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
