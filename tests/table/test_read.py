"""Files of every format: read and written alike, or refused."""

import csv
import gc
import json
import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from tests.helpers.refusals import refusal
from twinset.errors import InputError
from twinset.table import text_formats
from twinset.table.read import FORMULA_STARTS, read_frame, write_frame, written_names
from twinset.table.records import records_from_frame

TEXTS = ['plain, "quoted"', "two\nlines\r\nthree", "a\rreturn", "ünïcödé 日本 🙂", "NA", "null"]


def table() -> pd.DataFrame:
    scores, kinds = [0.1, 1 / 3, 1e-9, 2.0, 3.5, 4.25], pd.Categorical(["b", "a", "c"] * 2)
    columns = {"text": TEXTS, "stars": [1, 2, 3] * 2, "good": [True, False] * 3}
    return pd.DataFrame(columns | {"score": scores, "kind": kinds})


HOSTILE = ['"', 'half "', '" half', "a,b\tc", 'x","y', "line\nbreak", "back\\", '\\"', "'", " "]
HOSTILE += ["\ttab"]


BY_PANDAS = {  # what twinset reads and does not write
    ".json": lambda frame, path: frame.to_json(path, orient="records"),
    ".xlsx": lambda frame, path: frame.to_excel(path, index=False),
    ".feather": lambda frame, path: frame.to_feather(path),
    ".saved": lambda frame, path: Dataset.from_pandas(frame).save_to_disk(str(path)),
}
WRITTEN = [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", *BY_PANDAS]


@pytest.mark.parametrize("ending", WRITTEN)
def test_removing_one_record_changes_no_other(tmp_path, ending) -> None:
    """A record's cells decide nothing about how the others are taken apart."""
    write = BY_PANDAS.get(ending, partial(write_frame, guard_formulas=False))
    whole = pd.DataFrame({"text": HOSTILE * 2, "label": ["a", "b"] * len(HOSTILE)})
    write(whole, tmp_path / f"whole{ending}")
    read = read_frame(tmp_path / f"whole{ending}")
    assert read["text"].tolist() == whole["text"].tolist()
    for row in range(len(HOSTILE)):
        less = whole.drop(row).reset_index(drop=True)
        write(less, tmp_path / f"less{ending}")
        found = read_frame(tmp_path / f"less{ending}")
        pd.testing.assert_frame_equal(found, read.drop(row).reset_index(drop=True))


DAMAGED = [b"caf\xe9 \xc3", b"\xc3\x28", b"\xf0\x9f\x92", b'"\xff,"', b"\xed\xa0\xbd"]
DAMAGED += ["é日🙂".encode() * 9] * 2  # which say that it is UTF-8


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_damaged_bytes_are_their_records_own(tmp_path, ending) -> None:
    def read(cells: list[bytes]) -> list[str]:
        rows = [cell + b",a" for cell in cells]
        if ending == ".jsonl":
            rows = [b'{"text": "' + cell.strip(b'"') + b'"}' for cell in cells]
        else:
            rows.insert(0, b"text,label")
        (tmp_path / f"t{ending}").write_bytes(b"\n".join(rows))
        return read_frame(tmp_path / f"t{ending}")["text"].tolist()

    whole = read(DAMAGED)
    assert whole[0] == "caf\ufffd \ufffd" and whole[-1] == "é日🙂" * 9
    for row in range(len(DAMAGED)):
        assert read(DAMAGED[:row] + DAMAGED[row + 1 :]) == whole[:row] + whole[row + 1 :]


LONG = pd.DataFrame({"review": [f"Film {i} was\ngööd, 日本." for i in range(60)], "stars": 5})


# --- written and read ----------------------------------------------------------------------------

READERS = {
    ".csv": partial(pd.read_csv, keep_default_na=False),
    ".tsv.gz": partial(pd.read_csv, keep_default_na=False, sep="\t"),
    ".jsonl": partial(pd.read_json, lines=True),
    ".parquet": pd.read_parquet,
}


@pytest.mark.parametrize("ending", READERS)
def test_written_tables_are_read_by_us_and_by_pandas(tmp_path, ending) -> None:
    path = tmp_path / f"twin{ending}"
    assert write_frame(table(), path) == 0
    expected = table()
    if ending != ".parquet":
        expected["kind"] = expected["kind"].astype("str")
    pd.testing.assert_frame_equal(read_frame(path), expected)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == ending.endswith(".gz")
    assert os.listdir(tmp_path) == [path.name]
    write_frame(table(), tmp_path / f"again{ending}")  # the same rows make the same bytes
    assert path.read_bytes() == (tmp_path / f"again{ending}").read_bytes()
    frame = READERS[ending](path)
    assert list(frame.columns) == list(table().columns)
    for name in ("text", "stars", "good", "kind"):
        assert frame[name].tolist() == table()[name].tolist()
    assert frame["score"].tolist() == pytest.approx(table()["score"].tolist())


@pytest.mark.parametrize("start", FORMULA_STARTS)
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
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


def test_a_file_is_no_more_open_than_its_folder(tmp_path: Path) -> None:
    for mode, wanted in ((0o700, 0o600), (0o755, 0o644)):
        tmp_path.chmod(mode)
        write_frame(pd.DataFrame({"a": [1]}), tmp_path / "t.csv")
        assert (tmp_path / "t.csv").stat().st_mode & 0o777 == wanted


# --- refused -------------------------------------------------------------------------------------


def test_saved_folders(tmp_path: Path) -> None:
    data = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    data.save_to_disk(str(tmp_path / "one"))
    DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "two"))
    assert read_frame(tmp_path / "one")["text"].tolist() == ["a", "b"]
    assert str(read_frame(tmp_path / "two", "test")["label"].dtype) == "int64"
    (tmp_path / "other").mkdir()
    for folder, split, part in [
        ("two", None, "choose a split with `split`: train, test"),
        ("one", "train", "has no splits. Leave `split` out"),
        ("other", None, "not a folder saved by datasets.save_to_disk"),
    ]:
        assert part in refusal(read_frame, tmp_path / folder, split)
    stream = data.to_iterable_dataset()
    assert read_frame(stream)["text"].tolist() == ["a", "b"]
    assert "no stated types. Give" in refusal(read_frame, stream.map(dict))
    assert read_frame(data.with_format("numpy"))["text"].tolist() == ["a", "b"]
    assert "has a transform. Apply" in refusal(read_frame, data.with_transform(dict))


def test_threads_read_long_cells(tmp_path: Path) -> None:
    """The most letters of a cell are set for the whole process."""
    before = csv.field_size_limit()
    for name, texts in (("long.csv", ["x" * 200_000] * 20), ("short.csv", ["x"] * 4000)):
        pd.DataFrame({"text": texts, "label": 1}).to_csv(tmp_path / name, index=False)
    places = [tmp_path / name for name in ("long.csv", "short.csv") * 4]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            rows = list(map(len, threads.map(read_frame, places)))
    finally:
        sys.setswitchinterval(switch)
    assert rows == [20, 4000] * 4 and csv.field_size_limit() == before


@pytest.mark.parametrize("ending", [".csv.gz", ".jsonl", ".parquet"])
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


# --- nobody can find a large table on the disk ----------------------------------------------------


def test_texts_lie_in_a_file_without_a_name_that_goes_with_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("twinset.table.columns.ROWS_AT_ONCE", 7)  # so that sixty are many
    path, maps = tmp_path / "t.csv", Path("/proc/self/maps")
    write_frame(LONG[:7], path)
    assert len(read_frame(path, None, tmp_path)) == 7  # a small table makes no file
    assert str(tmp_path) not in maps.read_text()
    write_frame(LONG, path)
    frame = read_frame(path, None, tmp_path)
    (mine,) = [line for line in maps.read_text().splitlines() if str(tmp_path) in line]
    assert mine.endswith("(deleted)") and os.listdir(tmp_path) == ["t.csv"]
    assert frame["review"].tolist() == LONG["review"].tolist()
    del frame
    gc.collect()
    assert str(tmp_path) not in maps.read_text()


def test_an_array_is_read_wherever_its_blocks_end(tmp_path, monkeypatch):
    table = [{"text": f"number {i}, [and] more", "label": "ab"[i % 2]} for i in range(9)]
    path = tmp_path / "t.json"
    for indent in (None, 1):
        path.write_text(json.dumps(table, indent=indent))
        for block in range(2, 130):
            monkeypatch.setattr(text_formats, "_BLOCK", block)
            assert read_frame(path).to_dict("records") == table
    monkeypatch.undo()
    for wrong in ("[{}{}]", "[{},]", "[,{}]", "[{}][{}]", "\n"):
        path.write_text(wrong)
        with pytest.raises(InputError):
            records_from_frame(read_frame(path), "text", ["label"])


def test_half_a_character_of_utf_16_is_its_records_own(tmp_path):
    rows = [f"Zeile {i} mit größerem Text;{'ab'[i % 2]}" for i in range(24)]
    whole = "\ufeff" + "\n".join(["text;label", *rows, ""])
    data = whole.encode("utf-16-be").replace("Zeile 5 ".encode("utf-16-be"), b"\xd8\x3d" * 3)
    (tmp_path / "t.csv").write_bytes(data)
    frame = read_frame(tmp_path / "t.csv")
    assert len(frame) == 24 and frame.text[6] == "Zeile 6 mit größerem Text"
    assert frame.text[5] == "\ufffd" * 3 + "mit größerem Text"


WRITTEN = pd.DataFrame(
    {
        "int": [1, 2],
        "gaps": pd.array([1, None], "Int64"),
        "float": np.array([1.5, 2], np.float32),
        "truth": pd.array([True, None], "boolean"),
        "when": pd.to_datetime(["2024-01-02", None]),
        "zoned": pd.to_datetime(["2024-01-02", None]).tz_localize("Europe/Berlin"),
        "group": pd.Categorical([7, None]),
        "empty": pd.Series([None, None], dtype=object),
    }
)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_every_type_is_written_in_every_format(tmp_path, ending):
    write_frame(WRITTEN, tmp_path / f"t.{ending}")
    again = read_frame(tmp_path / f"t.{ending}")
    for name in WRITTEN:
        assert again[name].isna().tolist() == WRITTEN[name].isna().tolist(), name
    assert str(again["when"][0])[:10] == "2024-01-02"


def test_mixed_cells_are_refused_without_being_quoted(tmp_path):
    mixed = pd.DataFrame({"a": [1, "secret"]})
    assert "secret" not in refusal(write_frame, mixed, tmp_path / "t.parquet")
    assert "t.xlsx: unknown format" in refusal(write_frame, mixed, tmp_path / "t.xlsx")
    assert not list(tmp_path.iterdir())


# -- the order of an ordered category --------------------------------------------------------------


def sizes(values=("S", "M", "L"), numbers=(1, 0, 2, 2)) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(numbers, pa.int8()), pa.array(values), ordered=True
    )


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)


WHOLE = pa.table({"size": sizes()})
PIECES = pa.table({"size": pa.chunked_array([sizes(), sizes(("M", "S", "L"))])})
GAP = pa.table({"size": sizes(("S", "M", None))})
# Arrow would take the order in which cells have the values, so that one cell decides it.
UNSTATED = {
    "a plain encoding": ("t.parquet", partial(pq.write_table, WHOLE, use_dictionary=False)),
    "two row groups": ("t.parquet", partial(pq.write_table, PIECES, row_group_size=4)),
    "two batches": ("t.arrow", partial(write_stream, PIECES)),
    "a gap as a value": ("t.arrow", partial(write_stream, GAP)),
}


@pytest.mark.parametrize("name", UNSTATED)
def test_an_order_that_cells_would_decide_is_refused(tmp_path, name):
    file, write = UNSTATED[name]
    write(tmp_path / file)
    with pytest.raises(InputError, match="an ordered category"):
        read_frame(tmp_path / file)


def test_an_order_that_the_file_states_is_kept(tmp_path):
    pq.write_table(WHOLE, tmp_path / "t.parquet")
    write_stream(pa.table({"size": pa.chunked_array([sizes(), sizes()])}), tmp_path / "t.arrow")
    for file in ("t.parquet", "t.arrow"):
        assert list(read_frame(tmp_path / file)["size"].cat.categories) == ["S", "M", "L"]
