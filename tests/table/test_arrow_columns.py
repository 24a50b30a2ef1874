"""A large table on the disk is the table: cells, dtypes, refusals; and nobody can find it there."""

import gc
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from tests.helpers.refusals import refusal
from twinset.table.arrow_columns import (
    TableReader,
    Texts,
    collect_table,
    shown,
    typed,
)
from twinset.table.read import read_frame, write_frame
from twinset.table.records import check_reserved, records_from_frame

ROWS = 60


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    """Seven rows a piece, so that sixty are many."""
    monkeypatch.setattr("twinset.table.arrow_columns.ROWS_AT_ONCE", 7)


def table(**columns) -> pd.DataFrame:
    base = {
        "review": [f"Film {i} was\n{'gööd' if i % 2 else 'bad, 日本'}." for i in range(ROWS)],
        "stars": [i % 5 for i in range(ROWS)],
        "score": [i / 7 for i in range(ROWS)],
        "seen": [i % 3 == 0 for i in range(ROWS)],
    }
    return pd.DataFrame(base | columns)


LATE = {  # what a reader of some rows takes for another dtype than a reader of all
    "a gap in whole numbers": {"odd": [*range(50), None, *range(9)]},
    "a text among numbers": {"odd": [*map(str, range(50)), "x", *map(str, range(9))]},
    "a gap among truths": {"odd": [*[True, False] * 25, None, *[True] * 9]},
    "empty at first": {"odd": [None] * 30 + ["x"] * 30},
    "a fraction": {"odd": [*range(50), 0.5, *range(9)]},
    "nothing at all": {"odd": [None] * ROWS},
    "numbers with zeros before": {"odd": [*["007"] * 59, "x"]},
    "categories": {"odd": pd.Categorical(["b", "a", "c"] * 20)},
}


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_it_is_the_table_that_is_read_whole(tmp_path: Path, ending: str, late: dict) -> None:
    path = tmp_path / f"t{ending}"
    write_frame(table(**late), path, guard_formulas=False)
    pd.testing.assert_frame_equal(read_frame(path, None, tmp_path), read_frame(path))
    assert os.listdir(tmp_path) == [path.name]


def test_a_key_that_comes_late_or_goes_is_a_column(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"t": f"x{i}"} | ({"n": 1} if i > 30 else {}) for i in range(ROWS)]
    path.write_text("\n".join(map(json.dumps, [*rows, {"n": 2}])))
    pd.testing.assert_frame_equal(read_frame(path, None, tmp_path), read_frame(path))


def test_a_saved_folder_is_read_alike(tmp_path: Path) -> None:
    saved, frame = tmp_path / "saved", table(**LATE["a gap in whole numbers"])
    Dataset.from_pandas(frame).save_to_disk(str(saved))
    pd.testing.assert_frame_equal(read_frame(saved, None, tmp_path), read_frame(saved))


def test_a_parquet_table_with_an_index_or_other_dtypes_is_read_alike(tmp_path: Path) -> None:
    frame = table(short=np.arange(ROWS, dtype="int16"), s=pd.Series(["x"] * ROWS, dtype="string"))
    for name, kept in (("plain", frame), ("by review", frame.set_index("review"))):
        kept.to_parquet(tmp_path / f"{name}.parquet")
        found = read_frame(tmp_path / f"{name}.parquet", None, tmp_path)
        pd.testing.assert_frame_equal(found, read_frame(tmp_path / f"{name}.parquet"))


def test_texts_lie_in_a_file_without_a_name_that_goes_with_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_frame(table(), path)
    frame = read_frame(path, None, tmp_path)
    maps = Path("/proc/self/maps").read_text()
    mine = [line for line in maps.splitlines() if str(tmp_path) in line]
    assert len(mine) == 1 and mine[0].endswith("(deleted)")
    assert os.listdir(tmp_path) == ["t.csv"]
    assert frame["review"].tolist() == table()["review"].tolist()
    del frame
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_small_table_makes_no_file(tmp_path: Path) -> None:
    write_frame(table()[:7], tmp_path / "t.csv")
    frame = read_frame(tmp_path / "t.csv", None, tmp_path)
    assert len(frame) == 7 and str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_disk_that_refuses_is_one_line(tmp_path: Path) -> None:
    pieces = iter([(7, {"a": ["x"] * 7})] * 2)
    assert "cannot be written" in refusal(collect_table, TableReader(pieces), tmp_path / "nowhere")


@pytest.mark.parametrize("drop", [False, True])
def test_records_are_those_of_the_table_in_memory(tmp_path: Path, drop: bool) -> None:
    frame = table()
    if drop:
        frame.loc[[3, 20, 21, 59], "review"] = None
    write_frame(frame, tmp_path / "t.csv")
    named = {"text": "review", "attributes": ["seen", "stars"], "owner": "score"}
    (whole, notes), (on_disk, other_notes) = (
        records_from_frame(read_frame(tmp_path / "t.csv", None, at), drop_empty=drop, **named)
        for at in (None, tmp_path)
    )
    assert on_disk.texts == whole.texts == frame["review"].dropna().tolist()
    assert on_disk.labels == whole.labels and on_disk.labels[1] == (False, 1)
    assert on_disk.schema == whole.schema and notes == other_notes
    assert (on_disk.owners == whole.owners).all()
    assert on_disk.fingerprint() == whole.fingerprint()
    changed = frame.dropna().assign(review=on_disk.texts[:-1] + ["another"])
    assert records_from_frame(changed, **named)[0].fingerprint() != whole.fingerprint()


def test_special_tokens_are_found_later_by_the_same_rows(tmp_path: Path) -> None:
    frame = table()
    frame.loc[[10, 30, 41], "review"] = [None, "a <s> here", "and <s>"]
    write_frame(frame, tmp_path / "t.csv")
    frame = read_frame(tmp_path / "t.csv", None, tmp_path)
    read = partial(records_from_frame, frame, "review", ["stars"], drop_empty=True)
    records, _ = read()
    check_reserved(records, frame, ["</s>", " "])
    later = refusal(check_reserved, records, frame, ["</s>", "<s>"])
    assert "row 32" in later and "as do 1 more rows" in later
    assert later == refusal(read, reserved=["<s>"])


def test_a_special_token_in_a_label_is_found_by_its_first_row() -> None:
    frame = table(mood=["a", "b<s>"] * 30)
    records, _ = records_from_frame(frame, "review", ["mood", "stars"])
    message = refusal(check_reserved, records, frame, ["<s>"])
    assert "'mood', row 2: contains a special " in message and "as do 29 more rows" in message


def test_repeats_are_counted_whatever_their_block() -> None:
    texts = Texts(pd.Series([f"text {i % 13}" for i in range(40)]))
    assert texts.repeats() == 27
    assert Texts(pd.Series(["a", "b"])).repeats() == 0


def test_texts_are_a_sequence() -> None:
    rows = np.array([0, 2, 9, 30, 31])
    texts = Texts(pd.Series([f"t{i}" for i in range(40)]), rows)
    assert list(texts) == [f"t{i}" for i in rows] == texts and texts[-1] == "t31"
    assert texts[1:3] == ["t2", "t9"] and len(texts) == 5 and texts != ["t0"]
    assert texts.rows_where(lambda text: "t3" in text) == [30, 31]


def test_cells_are_typed_block_by_block_as_the_whole_column_is() -> None:
    """A gap, a fraction or a text in a later block decides as it would in the same one."""
    numbers = [str(i) for i in range(ROWS)]
    large = str(2**60 + 1)
    for last, dtype in (
        (numbers[-1:], "int64"),
        ([None], "float64"),
        (["0.5"], "float64"),
        (["007"], "str"),
        (["True"], "str"),
        ([large], "int64"),
        ([large, None], "str"),
    ):
        column = pd.Series([*numbers, *last], dtype="str")
        assert typed(column).dtype == dtype
        assert list(map(shown, typed(column).dropna())) == column.dropna().tolist()
