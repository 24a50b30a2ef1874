"""Files of every format: read and written alike, in memory and on the disk, or refused."""

import gc
import gzip
import json
import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict, load_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.refusals import SECRET, refusal
from twinset.table.arrow_columns import TableReader, Texts, collect_table, shown, typed
from twinset.table.read import FORMATS, read_frame, write_frame, written_names

TEXTS = ['plain, "quoted"', "two\nlines\r\nthree", "a\rreturn", "ünïcödé 日本 🙂", "NA", "null"]
ROWS = 60


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "text": TEXTS,
            "stars": [1, 2, 3, 1, 2, 3],
            "good": [True, False] * 3,
            "score": [0.1, 1 / 3, 1e-9, 2.0, 3.5, 4.25],
            "kind": pd.Categorical(["b", "a", "c"] * 2),
        }
    )


def long_table(**columns) -> pd.DataFrame:
    base = {
        "review": [f"Film {i} was\n{'gööd' if i % 2 else 'bad, 日本'}." for i in range(ROWS)],
        "stars": [i % 5 for i in range(ROWS)],
        "score": [i / 7 for i in range(ROWS)],
    }
    return pd.DataFrame(base | columns)


@pytest.fixture
def few_at_once(monkeypatch):
    """Seven rows a piece, so that sixty are many."""
    monkeypatch.setattr("twinset.table.arrow_columns.ROWS_AT_ONCE", 7)


# --- written and read ----------------------------------------------------------------------------

CELLS = {"keep_default_na": False}
READERS = {
    ".csv": (pd.read_csv, "csv", CELLS),
    ".csv.gz": (pd.read_csv, "csv", CELLS),
    ".tsv": (pd.read_csv, "csv", CELLS | {"sep": "\t"}),
    ".tsv.gz": (pd.read_csv, "csv", CELLS | {"sep": "\t"}),
    ".jsonl": (partial(pd.read_json, lines=True), "json", {}),
    ".jsonl.gz": (partial(pd.read_json, lines=True), "json", {}),
    ".parquet": (pd.read_parquet, "parquet", {}),
}


@pytest.mark.parametrize("ending", FORMATS)
def test_what_is_written_is_read_by_us_by_pandas_and_by_datasets(tmp_path, ending) -> None:
    path, (read, builder, options) = tmp_path / f"twin{ending}", READERS[ending]
    assert write_frame(table(), path) == 0
    expected = table()
    if ending != ".parquet":
        expected["kind"] = expected["kind"].astype("str")
    if builder == "csv":  # what is written "2.0" is no other way to write 2
        expected["score"] = expected["score"].map(str).astype("str")
    pd.testing.assert_frame_equal(read_frame(path), expected)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == ending.endswith(".gz")
    assert os.listdir(tmp_path) == [path.name]
    write_frame(table(), tmp_path / f"again{ending}")  # the same rows make the same bytes
    assert path.read_bytes() == (tmp_path / f"again{ending}").read_bytes()
    cache = str(tmp_path / "cache")
    data = load_dataset(builder, data_files=str(path), split="train", cache_dir=cache, **options)
    for frame in (read(path, **options), data.to_pandas()):
        assert list(frame.columns) == list(table().columns)
        for name in ("text", "stars", "good", "kind"):
            assert frame[name].tolist() == table()[name].tolist()
        assert frame["score"].tolist() == pytest.approx(table()["score"].tolist())


def test_a_format_that_is_named_overrides_the_ending(tmp_path: Path) -> None:
    write_frame(table(), tmp_path / "t.out", format="jsonl")
    assert json.loads((tmp_path / "t.out").read_text().splitlines()[0])["stars"] == 1


def test_only_an_empty_csv_cell_is_missing_and_types_hold(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\ufefftext,n,b\nNA,1,True\nNone,2,False\n,3,True\n\nnull,4,True\n".encode())
    frame = read_frame(path)
    assert frame["text"].isna().tolist() == [False, False, True, False]
    assert frame["text"].dropna().tolist() == ["NA", "None", "null"]
    assert [str(frame[name].dtype) for name in ("n", "b")] == ["int64", "bool"]


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=1,
        max_size=20,
    )
)
def test_any_text_survives_every_format(tmp_path: Path, texts: list[str]) -> None:
    frame = pd.DataFrame({"text": [f"x{t}" for t in texts], "n": range(len(texts))})
    for ending in (".csv", ".tsv", ".jsonl", ".parquet"):
        write_frame(frame, tmp_path / f"t{ending}")
        assert read_frame(tmp_path / f"t{ending}")["text"].tolist() == frame["text"].tolist()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
def test_every_start_of_a_formula_is_guarded_in_cells_and_names(tmp_path, ending, start) -> None:
    cells = [f"{start}1+1", "fine", f"a{start}1", f" {start}1"]
    frame = pd.DataFrame({f"{start}1": cells, f"'{start}1": [-1] * 4})
    path = tmp_path / f"t{ending}"
    assert write_frame(frame, path) == 1
    read = read_frame(path)
    assert list(read.columns) == written_names(frame, ending[1:]) == [f"''{start}1", f"'{start}1"]
    assert read[f"''{start}1"].tolist() == [f"'{start}1+1", *cells[1:]]
    assert read[f"'{start}1"].tolist() == [-1] * 4
    assert frame[f"{start}1"].tolist() == cells  # the caller's table is not touched
    assert write_frame(frame, path, guard_formulas=False) == 0
    pd.testing.assert_frame_equal(read_frame(path), frame)


@pytest.mark.parametrize(("ending", "guarded"), [(".csv", 1), (".jsonl", 0), (".parquet", 0)])
def test_formulas_are_guarded_where_a_spreadsheet_reads(tmp_path, ending, guarded) -> None:
    path, frame = tmp_path / f"t{ending}", pd.DataFrame({"k": pd.Categorical(["-", "y", "y"])})
    assert write_frame(frame, path) == guarded
    assert read_frame(path)["k"].tolist() == ["'-" if guarded else "-", "y", "y"]


def test_a_file_is_no_more_open_than_its_folder(tmp_path: Path) -> None:
    for mode, wanted in ((0o700, 0o600), (0o755, 0o644)):
        tmp_path.chmod(mode)
        write_frame(pd.DataFrame({"a": [1]}), tmp_path / "t.csv")
        assert (tmp_path / "t.csv").stat().st_mode & 0o777 == wanted


# --- refused -------------------------------------------------------------------------------------

BAD_FILES = {
    "header.csv": (b"t\xffxt \xc3\xa9\xc3\xa9,l\na,b\n", ["the header", "UTF-8"]),
    "late.csv": (
        "text,l\né,1\né,1\n".encode() + b"x,1\n" * 9000 + b"\xff" + SECRET.encode() + b",1\n",
        ["row 9004", "UTF-8"],
    ),
    "cut.jsonl": (f'{{"t": "{SECRET}"}}\n'.encode("utf-16-le")[:-1], ["line 1", "UTF-16"]),
    "list.jsonl": (f'["{SECRET}"]\n'.encode(), ["line 1", "one object a line"]),
    "deep.jsonl": (b"[" * 100_000, ["line 1", "not valid JSON"]),
    "surrogate.jsonl": (f'{{"t": "{SECRET}\\ud800"}}\n'.encode(), ["line 1", "not valid JSON"]),
    "deep.json": (b"[" * 100_000, ["item 1", "array of objects"]),
    "no.parquet": (SECRET.encode(), ["Parquet"]),
    "no.feather": (SECRET.encode(), ["Feather"]),
    "no.arrow": (b"ARROW1" + SECRET.encode(), ["Feather"]),
    "no.xlsx": (SECRET.encode(), ["Excel", "password"]),
    "old.xls": (SECRET.encode(), ["unknown ending", ".xlsx"]),
    "no.csv.gz": (SECRET.encode(), ["gzip", "again"]),
    "cut.csv.gz": (gzip.compress(f"a,b\n{SECRET},1\n".encode())[:-9], ["gzip"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path: Path, name: str) -> None:
    content, parts = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    message = refusal(read_frame, tmp_path / name)
    assert all(part in message for part in [str(tmp_path / name), *parts]), message


def test_saved_folders(tmp_path: Path) -> None:
    data = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    data.save_to_disk(str(tmp_path / "one"))
    DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "two"))
    assert read_frame(tmp_path / "one")["text"].tolist() == ["a", "b"]
    assert str(read_frame(tmp_path / "two", "test")["label"].dtype) == "int64"
    (tmp_path / "other").mkdir()
    for folder, split, part in [
        ("two", None, "choose a split with `split`: train, test"),
        ("two", "dev", "choose a split"),
        ("one", "dev", "choose a split"),
        ("other", None, "not a folder saved by datasets.save_to_disk"),
    ]:
        assert part in refusal(read_frame, tmp_path / folder, split)


def test_absent_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    for source, part in [
        (tmp_path / "no.csv", "no such file"),
        (tmp_path / "no", "no such file or folder; check the path"),
        ("someone/nothing", "download it and give a CSV, Parquet or JSONL file"),
        ("nothing-here", "no such file or folder, and no such data set"),
    ]:
        message = refusal(read_frame, source)
        assert part in message and str(source) in message
    write_frame(table(), tmp_path / "t.csv")
    assert "a file has no splits" in refusal(read_frame, tmp_path / "t.csv", "train")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("t.xlsx", "unknown format"),
        ("t.parquet.gz", "unknown format"),
        ("no/t.csv", "cannot be written"),
        ("file/t.csv", "cannot be written"),
        ("folder.csv", "cannot be written"),
        ("n" * 300 + ".csv", "cannot be written"),
    ],
)
def test_places_that_cannot_be_written(tmp_path: Path, name: str, part: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.csv").mkdir()
    before = sorted(os.listdir(tmp_path))
    message = refusal(write_frame, table(), tmp_path / name)
    assert part in message and str(tmp_path / name) in message
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("ending", FORMATS)
def test_a_write_that_fails_midway_leaves_the_old_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"twin{ending}"
    path.write_bytes(b"old")
    frame = pd.DataFrame({"text": [os.urandom(32).hex() for _ in range(4000)]})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        assert "disk space" in refusal(write_frame, frame, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == [path.name]
    write_frame(frame, path)  # control: with space it is written
    pd.testing.assert_frame_equal(read_frame(path), frame)


# --- a large table on the disk is the table, and nobody can find it there -------------------------

LATE = {  # what a reader of some rows takes for another dtype than a reader of all
    "a gap in whole numbers": {"odd": [*range(50), None, *range(9)]},
    "a text among numbers": {"odd": [*map(str, range(50)), "x", *map(str, range(9))]},
    "a gap among truths": {"odd": [*[True, False] * 25, None, *[True] * 9]},
    "empty at first": {"odd": [None] * 30 + ["x"] * 30},
    "a fraction": {"odd": [*range(50), 0.5, *range(9)]},
    "nothing at all": {"odd": [None] * ROWS},
    "numbers with zeros before": {"odd": [*["007"] * 59, "x"]},
    "categories": {"odd": pd.Categorical(["b", "a", "c"] * 20)},
    "small numbers": {"odd": np.arange(ROWS, dtype="int16")},
}


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ""])
@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_it_is_the_table_that_is_read_whole(tmp_path, few_at_once, ending, late) -> None:
    path, frame = tmp_path / f"t{ending}", long_table(**late)
    if ending:
        write_frame(frame, path, guard_formulas=False)
    else:
        Dataset.from_pandas(frame).save_to_disk(str(path))
    pd.testing.assert_frame_equal(read_frame(path, None, tmp_path), read_frame(path))
    assert os.listdir(tmp_path) == [path.name]


def test_an_index_and_keys_that_come_late_are_read_alike(tmp_path: Path, few_at_once) -> None:
    late, indexed = tmp_path / "t.jsonl", tmp_path / "t.parquet"
    rows = [{"t": f"x{i}"} | ({"n": 1} if i > 30 else {}) for i in range(ROWS)]
    late.write_text("\n".join(map(json.dumps, [*rows, {"n": 2}])))
    long_table().set_index("review").to_parquet(indexed)
    for path in (late, indexed):
        pd.testing.assert_frame_equal(read_frame(path, None, tmp_path), read_frame(path))


def test_texts_lie_in_a_file_without_a_name_that_goes_with_them(tmp_path, few_at_once) -> None:
    path, maps = tmp_path / "t.csv", Path("/proc/self/maps")
    write_frame(long_table()[:7], path)
    assert len(read_frame(path, None, tmp_path)) == 7  # a small table makes no file
    assert str(tmp_path) not in maps.read_text()
    write_frame(long_table(), path)
    frame = read_frame(path, None, tmp_path)
    (mine,) = [line for line in maps.read_text().splitlines() if str(tmp_path) in line]
    assert mine.endswith("(deleted)") and os.listdir(tmp_path) == ["t.csv"]
    assert frame["review"].tolist() == long_table()["review"].tolist()
    del frame
    gc.collect()
    assert str(tmp_path) not in maps.read_text()


def test_a_disk_that_refuses_is_one_line(tmp_path: Path) -> None:
    pieces = iter([(7, {"a": ["x"] * 7})] * 2)
    assert "cannot be written" in refusal(collect_table, TableReader(pieces), tmp_path / "nowhere")


def test_texts_are_a_sequence(few_at_once) -> None:
    rows = np.array([0, 2, 9, 30, 31])
    texts = Texts(pd.Series([f"t{i}" for i in range(40)]), rows)
    assert list(texts) == [f"t{i}" for i in rows] == texts and texts[-1] == "t31"
    assert texts[1:3] == ["t2", "t9"] and len(texts) == 5 and texts != ["t0"]
    assert texts.rows_where(lambda text: "t3" in text) == [30, 31]
    assert Texts(pd.Series([f"text {i % 13}" for i in range(40)])).repeats() == 27


def test_a_column_of_texts_is_typed_by_all_of_its_cells(few_at_once) -> None:
    numbers, large = [str(i) for i in range(ROWS)], str(2**60 + 1)
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
